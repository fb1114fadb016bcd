"""The exact posterior survives the death of its process and the loss of sites, in every stage."""

from __future__ import annotations

import os
import signal
import warnings

import pytest
import torch

import bayesfed as bf
from bayesfed.errors import CheckpointWarning, ClientError, UndeterminedWarning
from bayesfed.federated import checkpoint, newest
from tests.posteriors.test_exact_runs import Deaf, exact, rows, run, same, sites

pytestmark = pytest.mark.slow
STAGES = {"form": 0, "mode": 1, "q": 2, "importance": 3}


@pytest.fixture(scope="module")
def found():
    return run(sites(*rows()))


def round_of(found, stage):
    """Return the number of the last round in which sites were asked the questions of a stage."""
    asked = [0] + [int(record.server["stage"]) for record in found.history[:-1]]
    return max(number for number, one in enumerate(asked) if one == STAGES[stage])


class Deadly(bf.InProcess):
    """A pool whose process is killed in a call, when the first site has answered."""

    def __init__(self, clients, call):
        super().__init__(clients)
        self.left = call

    def map(self, sides, tasks):
        self.left -= 1
        for answer in super().map(sides, tasks):
            yield answer
            if self.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_that_is_killed_in_any_stage_goes_on_to_the_same_bits(found, stage, tmp_path):
    clients, call = sites(*rows()), round_of(found, stage)
    child = os.fork()
    if not child:
        torch.set_num_threads(1)
        run(Deadly(clients, call), callbacks=[checkpoint(tmp_path)])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        resume = newest(tmp_path)
    assert (resume.round if resume else 0) == call
    result = run(clients, resume=resume, callbacks=[checkpoint(tmp_path)])
    assert same(result.snapshot.state, found.snapshot.state)
    for name, memory in found.snapshot.memories.items():
        assert same(result.snapshot.memories[name], memory)


@pytest.mark.parametrize("stage", STAGES)
def test_a_site_that_fails_in_any_stage_is_named_and_left_out(found, stage):
    call = round_of(found, stage) + 1
    clients = sites(*rows())
    with pytest.raises(ClientError, match=f"client 's1', round {call - 1}"):
        run(Deaf(clients, "s1", range(call, 100)))
    pool = Deaf(clients, "s1", range(call, 100))
    with pytest.warns(UndeterminedWarning, match=r"not heard in the end were 's1' \(33.3% of the"):
        result = run(pool, on_client_error="drop")
    assert result.unheard == {"s1": pytest.approx(1 / 3)}
    assert result.posterior.status == "exact, without 1 site"
    inputs, targets = rows()
    others = torch.arange(60) % 3 != 1
    mean, sds, evidence = exact(inputs[others], targets[others])
    assert ((result.posterior.constants["beta.mean"] - mean) / sds).abs().max() < 0.02
    assert abs(result.posterior.log_evidence[0] - evidence) < 0.02


@pytest.mark.parametrize("stage", STAGES)
def test_a_site_that_comes_back_too_late_for_its_stage_is_in_the_end(found, stage):
    call = round_of(found, stage) + 1
    # The others have gone on without it for a round.
    pool = Deaf(sites(*rows()), "s1", range(call, call + 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run(pool, on_client_error="drop")
    assert result.unheard == {}
    assert result.posterior.doubt == ""
    mean, sds, evidence = exact(*rows())
    assert ((result.posterior.constants["beta.mean"] - mean) / sds).abs().max() < 0.02
    assert abs(result.posterior.log_evidence[0] - evidence) < 0.02
