"""What `Training` does with the rows of a step: in parts, in bfloat16, augmented; each against a
loop of torch's own.
"""

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.errors import ArgumentError, DataError
from tests.conftest import tree_equal

RATE = 0.1


def rows(count=12):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 4, generator=generator)
    return bf.Dataset(inputs, (inputs[:, 0] > 0).long())


def trained(data, rounds=1, net=None, clients=1, **settings):
    work = bf.Training(**{"steps": 3, "batch_size": None, "optimiser": bf.Sgd(RATE)} | settings)
    algorithm = bf.fed_avg(net or bf.mlp([4, 3, 2], bf.Key(0, "net")), training=work)
    parts = bf.federate(data, bf.iid(len(data), clients, bf.Key(0, "parts")))
    return bf.run(algorithm, parts, rounds=rounds, progress=False).snapshot.state


def by_torch(step, count=12):
    net = bf.mlp([4, 3, 2], bf.Key(0, "net"))
    optimiser = torch.optim.SGD(net.parameters(), RATE)
    (data,) = bf.federate(rows(count), bf.iid(count, 1, bf.Key(0, "parts"))).values()
    for _ in range(3):
        optimiser.zero_grad()
        step(net, data)
        optimiser.step()
    return {f"model/{name}": leaf.detach() for name, leaf in net.named_parameters()}


def close(found, wanted, error=1e-6):
    assert found.keys() == wanted.keys()
    return all(torch.allclose(found[name], wanted[name], atol=error) for name in found)


@pytest.mark.parametrize("parts", [5, 12, 100])
def test_gradients_in_parts_are_those_of_torch_and_of_the_whole(parts):
    def step(net, data):
        for part in torch.arange(12).chunk(parts):
            outputs = net(data.inputs[part])
            (nn.functional.cross_entropy(outputs, data.targets[part]) * len(part) / 12).backward()

    found = trained(rows(), accumulate=parts)
    assert close(found, by_torch(step))
    assert close(found, trained(rows()))
    assert tree_equal(trained(rows(), accumulate=1), trained(rows()))


def test_parts_of_a_batch_are_all_that_a_network_sees():
    class Seen(nn.Linear):
        most = 0

        def forward(self, x):
            Seen.most = max(Seen.most, len(x))
            return super().forward(x)

    trained(rows(), net=Seen(4, 2), accumulate=4)
    assert Seen.most == 3


def test_a_network_in_bfloat16_is_that_of_torchs_autocast():
    def step(net, data):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = net(data.inputs)
        assert outputs.dtype == torch.bfloat16
        nn.functional.cross_entropy(outputs.float(), data.targets).backward()

    # One row, since the order of rows in a sum changes its last bits.
    found = trained(rows(1), bfloat16=True)
    assert tree_equal(found, by_torch(step, 1))
    assert not close(found, trained(rows(1)), 0.0)
    assert {leaf.dtype for leaf in found.values()} == {torch.float32}


def test_methods_with_priors_and_adapters_train_in_bfloat16():
    net, data = bf.mlp([4, 3, 2], bf.Key(0, "net")), rows()
    clients = bf.federate(data, bf.iid(12, 2, bf.Key(0, "parts")))
    plain = bf.Training(steps=2)
    half = bf.Training(steps=2, bfloat16=True)
    for make in (
        lambda work: bf.d_turbo_vbi(bf.declare(net), observations=12, training=work),
        lambda work: bf.fed_lora(bf.lora(net, 1, bf.Key(0, "lora")), training=work),
    ):
        one, other = (
            bf.run(make(work), clients, rounds=1, progress=False).snapshot.state
            for work in (plain, half)
        )
        assert not tree_equal(one, other)
        assert {leaf.dtype for leaf in other.values()} == {leaf.dtype for leaf in one.values()}


class Noise:
    """Add noise; note what was drawn."""

    def __init__(self):
        self.drawn = []

    def __call__(self, inputs):
        self.drawn.append(torch.randn(inputs.shape))
        return inputs + self.drawn[-1]


def noisy(inputs):
    return inputs + torch.randn(inputs.shape)


def test_rows_are_augmented_anew_by_step_client_and_round():
    noise = Noise()
    trained(rows(), rounds=2, clients=2, augment=noise)
    sums = {round(float(one.sum()), 4) for one in noise.drawn}
    assert len(noise.drawn) == len(sums) == 2 * 2 * 3
    again = Noise()
    trained(rows(), rounds=2, clients=2, augment=again)
    assert all(map(torch.equal, noise.drawn, again.drawn))
    assert tree_equal(trained(rows(), augment=lambda inputs: inputs), trained(rows()))


def test_augmented_rows_have_the_same_bits_in_workers_and_cohorts():
    work = bf.Training(steps=3, batch_size=4, augment=noisy)
    algorithm = bf.fed_avg(bf.mlp([4, 3, 2], bf.Key(0, "net")), training=work)
    clients = bf.federate(rows(40), bf.iid(40, 3, bf.Key(0, "parts")))
    pools = [clients, bf.InProcess(clients, workers=2), bf.InProcess(clients, cohort="auto")]
    states = [bf.run(algorithm, one, rounds=2, progress=False).snapshot.state for one in pools]
    assert tree_equal(states[0], states[1])
    assert tree_equal(states[0], states[2])


def test_rows_that_are_dicts_are_augmented_as_such():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, seen, shift):
            return self.layer(seen + shift)

    data = rows()
    tree = bf.Dataset({"seen": data.inputs, "shift": torch.zeros(12, 4)}, data.targets)

    def moved(given):
        return {**given, "shift": given["shift"] + 1.0}

    torch.manual_seed(0)
    net = Two()
    shifted = bf.Dataset({"seen": data.inputs, "shift": torch.ones(12, 4)}, data.targets)
    assert tree_equal(trained(tree, net=net, augment=moved), trained(shifted, net=net))


def test_what_an_augmentation_must_return():
    with pytest.raises(bf.errors.ClientError, match="expected inputs of the 12 rows") as told:
        trained(rows(), augment=lambda inputs: inputs[:5])
    assert isinstance(told.value.__cause__, DataError)


@pytest.mark.parametrize("setting", [{"accumulate": 2}, {"bfloat16": True}, {"augment": noisy}])
def test_methods_with_steps_of_their_own_refuse(setting):
    net, work = bf.mlp([4, 3, 2], bf.Key(0, "net")), bf.Training(**setting)
    told = f"training.{next(iter(setting))}: expected none"
    with pytest.raises(ArgumentError, match=told):
        bf.fed_rlr(net, 2, training=work)
    with pytest.raises(ArgumentError, match=told):
        bf.federated_svi(bf.models.bayesian(net), example=rows()[:2], training=work)
