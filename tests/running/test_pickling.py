"""Results as pickles: whole, with the functions of their method and records that are on a disk."""

import copy
import io
import pickle

import pytest
import torch

import bayesfed as bf
from tests.house.wrong_calls.given import CLIENTS, DATA, KEY, avg, go, net, svi_done


@pytest.mark.parametrize("there", [False, True], ids=["in memory", "on disk"])
def test_a_result_comes_back_whole_and_goes_on(tmp_path, there):
    where = {"records": tmp_path / "records"} if there else {}
    result = go(rounds=2, test=DATA, **where)
    again = pickle.loads(pickle.dumps(result))
    assert [record.metrics for record in again.history] == [
        record.metrics for record in result.history
    ]
    assert torch.equal(again.model(DATA.inputs), result.model(DATA.inputs))
    assert again.data.keys() == CLIENTS.keys()
    longer = [go(rounds=3, resume=one.snapshot) for one in (result, again)]
    assert torch.equal(*(one.model(DATA.inputs) for one in longer))


def test_posteriors_wrappers_and_torch_save():
    laplace = go(bf.laplace(net()))
    private = go(bf.private(avg(), clip=1.0, noise=1.0, participants=2, key=KEY))
    for result in (svi_done(), laplace, private, copy.deepcopy(laplace)):
        file = io.BytesIO()
        torch.save(result, file)
        file.seek(0)
        again = torch.load(file, weights_only=False)
        for name, leaf in result.snapshot.state.items():
            assert torch.equal(again.snapshot.state[name], leaf)
        if result.algorithm.posterior:
            draws = [one.posterior.draw(KEY) for one in (result, again)]
            assert all(torch.equal(leaf, draws[1][name]) for name, leaf in draws[0].items())
