"""Shared pieces: a small federation on digits, small networks, tiny recipes."""

import os

import pytest
import torch

import bayesfed as bf

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores: with a thread for every core in each of them they wait for one
    # another.
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def digits():
    return bf.digits()


@pytest.fixture(scope="session")
def clients(digits):
    train, _ = digits
    return bf.federate(train, bf.dirichlet(train.targets, 4, 0.5, bf.Key(0, "partition")))


@pytest.fixture
def net():
    return bf.mlp([64, 16, 10], bf.Key(0, "net"))


@pytest.fixture
def declared(net):
    return bf.declare(net, likelihood=bf.Categorical(temperature=0.2))


@pytest.fixture(autouse=True)
def _global_stream_is_left_alone():
    """No test may leave torch's global generator other than it found it, so none can depend on
    order.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def pytest_collection_modifyitems(items):
    """A name with an address in it differs between workers, and then nothing runs: now and then,
    which is worse.
    """
    if odd := [
        item.nodeid for item in items if " at 0x" in item.nodeid or "<function" in item.nodeid
    ]:
        raise pytest.UsageError(f"test names with addresses, give them ids: {odd[:3]}")


def tree_equal(left, right):
    return left.keys() == right.keys() and all(
        torch.equal(leaf, right[name]) for name, leaf in left.items()
    )
