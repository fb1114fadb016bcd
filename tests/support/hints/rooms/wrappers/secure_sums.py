"""Messages of secure sums."""

import dataclasses
from dataclasses import replace

import numpy as np
import torch

import bayesfed as bf
from bayesfed.algorithms.wrappers.secure_sums import FixedPoint, Vault
from bayesfed.algorithms.wrappers.secure_sums.locals import shares
from bayesfed.algorithms.wrappers.secure_sums.primitives import Agreement, fresh
from bayesfed.algorithms.wrappers.secure_sums.sessions import Session
from bayesfed.algorithms.wrappers.secure_sums.sums import Letter, check_count
from bayesfed.algorithms.wrappers.secure_sums.unmasking import GatheredKeys
from bayesfed.federated import Assignment, Digital, Median, OverTheAir, Profile, Skip, fixed
from bayesfed.federated.core import Update
from tests.security.test_secure import circle
from tests.support.recipes import adapted, lines, net, rows, turbo

COMPLETE = ("bayesfed/algorithms/wrappers/secure_sums",)
CLIENTS = rows()
WORK = bf.Training(steps=1, batch_size=8)
RANGE = {"participants": 4, "largest": 8.0, "heaviest": 20.0}
POINT = FixedPoint(32, 3, 2.0, 5.0, (("a", (2,)),), "value")


def avg(**changes):
    """Return FedAvg."""
    return bf.fed_avg(net(), training=WORK, **changes)


def secure(algorithm=None, **changes):
    """Take secure sums of a method."""
    return bf.secure(avg() if algorithm is None else algorithm, **{**RANGE, **changes})


def go(algorithm=None, **changes):
    """Run a round without masks."""
    algorithm = secure(algorithm, **{"masks": False, **changes})
    return bf.run(algorithm, CLIENTS, rounds=1, progress=False)


def private(**changes):
    """Return a private method."""
    given = {"clip": 1.0, "noise": 1.0, "participants": 4, "key": bf.Key(0), **changes}
    return bf.private(avg(), **given)
