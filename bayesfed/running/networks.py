"""The transmitted model as a module of its own and as a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from bayesfed.data.files import write_whole, writing
from bayesfed.errors import ArgumentError
from bayesfed.federated import Model, Predictor
from bayesfed.models.modules import swapped


def network_of(model: Predictor) -> nn.Module:
    """Return the network of a model, a copy in evaluation mode at the model's parameters and
    buffers.

    Raises
    ------
    ArgumentError
        If the model is not one network.
    """
    if not isinstance(model, Model):
        hint = "result.model, which predicts"
        raise ArgumentError("Result.network", "a model of one network", type(model).__name__, hint)
    net, trained = model.net, model.parameters
    made: dict[Tensor, Tensor] = {
        value: nn.Parameter(trained[name].clone(), value.requires_grad)
        for name, value in net.named_parameters()
        if name in trained
    }
    made |= {value: trained[name].clone() for name, value in net.named_buffers() if name in trained}
    return swapped(net, {}, made).eval()


def write_tensors(path: Path, tree: Mapping[str, Tensor]) -> None:
    """Write tensors by name as a safetensors file, in a folder that is made if it is not there.

    Raises
    ------
    ArgumentError
        If the file cannot be written.
    """
    from safetensors.torch import save

    # Copies, since the format takes each piece of memory once, and tied weights have several names.
    content = save({name: leaf.detach().contiguous().clone() for name, leaf in tree.items()})
    with writing("Result.save_model", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)


def saved_leaves(model: Predictor) -> Mapping[str, Tensor]:
    """Return what `Result.save_model` writes: of one network, all that its `load_state_dict` takes;
    of another model, its tensors.
    """
    if not isinstance(model, Model):
        return model.parameters
    state = network_of(model).state_dict()
    return {name: leaf for name, leaf in state.items() if isinstance(leaf, torch.Tensor)}
