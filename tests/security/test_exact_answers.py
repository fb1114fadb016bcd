"""What a server reads out of one site's answers to the exact posterior, as SECURITY.md says."""

import torch

from bayesfed.algorithms.federated_svi.exact.local import AnswerLocal
from bayesfed.algorithms.federated_svi.exact.looks import Looks
from bayesfed.data import Dataset
from bayesfed.federated import LocalOptions
from bayesfed.inference.exact import stages, steps
from bayesfed.inference.exact.traced import Form
from bayesfed.keys import Key
from tests.posteriors.test_exact_runs import line, rows


def answered(data):
    """Return gradient and Hessian of a site at the origin."""
    form = torch.tensor(Form.of(data).numbers).double()
    start = steps.begun(torch.zeros(2).double(), torch.eye(2).double())
    stage = stages.numbers(stages.MODE, 0, 0)
    message = stages.stacked([start]) | {"form": form, "stage": stage}
    local = AnswerLocal(Looks(line, "client", None))
    payload = local.fit(message, {}, data, Key(0), LocalOptions()).payload
    (triangle,), slope = payload["curve"].float(), payload["slope"].float()[0, 0]
    low = torch.stack([triangle[:1], triangle[1:2]]).flatten()
    return slope, torch.stack([low, triangle[1:]])


def test_one_row_is_its_gradient_and_hessian():
    inputs, targets = rows(1)
    slope, curve = answered(Dataset(inputs, targets))
    sizes, axes = torch.linalg.eigh(-curve)
    assert abs(float(sizes[0])) < 1e-5 * float(sizes[1])
    found = sizes[1].sqrt() * axes[:, 1]
    sign = torch.sign(found[0] * inputs[0, 0].float())
    assert torch.allclose(sign * found, inputs[0].float(), rtol=1e-5)
    assert torch.allclose(sign * slope @ found / sizes[1], targets[0].float(), rtol=1e-5)


def test_of_many_rows_a_line_says_products_alone():
    inputs, targets = rows(20)
    slope, curve = answered(Dataset(inputs, targets))
    assert torch.allclose(-curve, (inputs.T @ inputs).float(), rtol=1e-5)
    assert torch.allclose(slope, (inputs.T @ targets).float(), rtol=1e-5)
