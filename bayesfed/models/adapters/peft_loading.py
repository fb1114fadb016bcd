"""Loading adapters from disk, in the layout of `bayesfed.models.adapters.peft_saving`, whether
`peft` or this package wrote them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, FiniteFloat, PositiveInt, ValidationError, model_validator
from torch import nn

from bayesfed.errors import DataError, LocalText, UpdateError
from bayesfed.errors.checks import checked
from bayesfed.keys import Key
from bayesfed.models.adapters.lora import lora
from bayesfed.models.adapters.peft_saving import CONFIG, LEAVES, ROOT, WEIGHTS
from bayesfed.trees import Tree, check_shapes, leaf_of, shapes, trainable

# Settings with which the same tensors mean another function, or which need other tensors.
_OTHERS = (
    "alora_invocation_tokens",
    "alpha_pattern",
    "arrow_config",
    "fan_in_fan_out",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "monteclora_config",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "velora_config",
)


class Settings(BaseModel, strict=True):
    """Settings of plain LoRA of one rank."""

    peft_type: Literal["LORA"]
    bias: Literal["none"] = "none"
    init_lora_weights: bool | Literal["gaussian", "eva", "orthogonal"] | None = None
    r: PositiveInt
    lora_alpha: FiniteFloat
    lora_dropout: FiniteFloat | None = None
    use_rslora: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, found: Any) -> Any:
        others = {name: found[name] for name in _OTHERS if found.get(name)}
        if others:
            raise ValueError(f"{others}")
        return found


@checked()
def load_peft(net: nn.Module, folder: str | Path) -> nn.Module:
    """Return a network with the adapters in a folder that `peft` or `save_peft` wrote. As with
    `lora`, everything else is frozen and shared.

    ``bayesfed.trees.trainable`` of the result is the tree of adapters and of modules that are
    trained whole.

    Parameters
    ----------
    net
        Pretrained network without adapters, never changed.
    folder
        Folder with `adapter_config.json` and `adapter_model.safetensors`.

    Raises
    ------
    DataError
        If a file is missing or damaged, the settings are not those of plain LoRA of one rank, a
        tensor belongs to a layer that the network does not have, or a tensor has no partner or
        another rank or size.
    ArgumentError
        As `lora`.
    """
    home = Path(folder)
    config, tensors = _config(home / CONFIG), _tensors(home / WEIGHTS)
    path = home / WEIGHTS
    values = {_here(name.removeprefix(ROOT)): value for name, value in tensors.items()}
    owners: dict[bool, set[str]] = {True: set(), False: set()}
    for name in values:
        owner, _, leaf = name.rpartition(".")
        owners[leaf in LEAVES].add(owner)
    names, heads = owners[True], sorted(owners[False])
    modules = dict(net.named_modules())
    if strangers := sorted({*names, *heads} - modules.keys()):
        raise DataError(
            LocalText(path),
            "layers of this network",
            f"others: {strangers[:3]}",
            "the network that was adapted",
        )
    where = {f"{name}.weight" for name in names}
    made = lora(
        net,
        config.r,
        Key(0, "load_peft"),
        where=lambda name, _: name in where,
        alpha=config.lora_alpha,
        scaling="rs" if config.use_rslora else "lora",
        dropout=config.lora_dropout or 0.0,
        head=heads,
    )
    expected = shapes(trainable(made))
    try:
        check_shapes(values, expected, where=LocalText(f"{path}, rank {config.r}"))
    except UpdateError as problem:
        raise DataError(str(problem)) from None
    with torch.no_grad():
        for name, value in made.named_parameters():
            if name in values:
                value.copy_(values[name])
    return made


def _here(name: str) -> str:
    for leaf, end in LEAVES.items():
        if name.endswith(f".{end}"):
            return leaf_of(name.removesuffix(f".{end}"), leaf)
    return name


def _config(path: Path) -> Settings:
    """Read the settings; raise `DataError` unless they are those of plain LoRA."""
    try:
        return Settings.model_validate(json.loads(path.read_bytes()))
    except ValidationError as problem:
        raise DataError(
            LocalText(path),
            "plain LoRA of one rank",
            "; ".join(f"{'.'.join(map(str, one['loc']))} {one['msg']}" for one in problem.errors()),
            "merging it into the weights with peft",
        ) from None
    except (OSError, ValueError, AttributeError, RecursionError) as problem:
        raise DataError(
            LocalText(path), "the settings of an adapter as JSON", problem, "save_peft"
        ) from problem


def _tensors(path: Path) -> Tree:
    """Read the tensors by their names in the file."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    if not path.is_file() and path.with_suffix(".bin").is_file():
        raise DataError(
            LocalText(path),
            "safetensors",
            "a pickle, which may run code",
            "peft's save_pretrained of today",
        )
    try:
        tensors = load(path.read_bytes())
    except (OSError, SafetensorError) as problem:
        raise DataError(LocalText(path), "a safetensors file", problem, "save_peft") from problem
    if strangers := sorted(name for name in tensors if not name.startswith(ROOT)):
        raise DataError(
            LocalText(path), f"names that begin with {ROOT!r}", strangers[:3], "save_peft"
        )
    return tensors
