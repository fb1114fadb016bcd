"""Networks as graphs for any number of rows: torch.export, and ONNX in another runtime."""

import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call

import bayesfed as bf
from bayesfed.models.compaction.compact import compact
from tests.support import recipes

ROWS = 1, 2, 7, 50


def line():
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 40), nn.ReLU())


def pictures():
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        *(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3)),
        *(nn.ReLU(), nn.Flatten(), nn.Linear(24, 40)),
    )


def thinned(make, kind):
    """A compact network with a layer of this form, and its dense twin."""
    torch.manual_seed(0)
    net = make()
    tree = {name: leaf.detach().clone() for name, leaf in net.named_parameters()}
    last = [name for name, leaf in tree.items() if leaf.ndim == 2][-1]
    weight = tree[last]
    if kind == "dropped":
        weight[10:] = 0
    elif kind == "csr":
        weight *= torch.rand_like(weight) < 0.04
    made = compact(net, tree)
    assert any(form.startswith(kind) for form in made.forms.values())
    return made, lambda inputs: functional_call(net, tree, (inputs,))


CASES = [
    *((line, kind) for kind in ("dense", "dropped", "csr")),
    *((pictures, kind) for kind in ("dense", "csr")),
]


@pytest.mark.parametrize(("make", "kind"), CASES)
def test_a_compact_network_is_exported_for_any_number_of_rows(make, kind):
    made, twin = thinned(make, kind)
    inputs = torch.randn(50, *((8, 8) if make is pictures else (64,)))
    batch = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(made, (inputs[:5],), dynamic_shapes=batch).module()
    for rows in ROWS:
        torch.testing.assert_close(program(inputs[:rows]), made(inputs[:rows]))
        torch.testing.assert_close(program(inputs[:rows]), twin(inputs[:rows]))


@pytest.mark.onnx
@pytest.mark.parametrize(("make", "kind"), [*CASES, (None, "network")])
def test_onnxruntime_gives_the_same_for_any_number_of_rows(make, kind, tmp_path):
    import onnxruntime

    if make is None:
        data = recipes.rows()
        avg = bf.fed_avg(recipes.net(), training=bf.Training(steps=2))
        made = twin = bf.run(avg, data, rounds=1, progress=False).network()
        inputs = data["client-0"].inputs.repeat(20, 1)
    else:
        made, twin = thinned(make, kind)
        inputs = torch.randn(50, *((8, 8) if make is pictures else (64,)))
    path, batch = str(tmp_path / "net.onnx"), ({0: torch.export.Dim("batch")},)
    with warnings.catch_warnings():
        # Of torch's own exporter.
        warnings.simplefilter("ignore")
        given = {"input_names": ["inputs"], "dynamo": True, "verbose": False}
        torch.onnx.export(made, (inputs[:5],), path, dynamic_shapes=batch, **given)
    session = onnxruntime.InferenceSession(path)
    for rows in ROWS:
        (found,) = session.run(None, {"inputs": inputs[:rows].numpy()})
        torch.testing.assert_close(torch.from_numpy(found), twin(inputs[:rows]))
