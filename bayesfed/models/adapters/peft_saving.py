"""Saving adapters in the layout of Hugging Face's `peft`: `adapter_config.json` beside
`adapter_model.safetensors`.

    save_peft(net, run.model.parameters, folder)
    peft.PeftModel.from_pretrained(pretrained, folder)      # the same function
    load_peft(pretrained, folder)                           # the same function again

==========================  ======================================================
here                        in the files
==========================  ======================================================
``NAME.lora_a`` (A)         ``base_model.model.NAME.lora_A.weight``
``NAME.lora_b`` (B)         ``base_model.model.NAME.lora_B.weight``
other trained parameters    ``base_model.model.NAME``; their modules in ``modules_to_save``
the adapters' scale         ``lora_alpha / r``, or over its root with ``use_rslora``
==========================  ======================================================

Nothing is unpickled: a folder that has only `adapter_model.bin` is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from bayesfed.data.files import write_whole, writing
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.errors.checks import checked
from bayesfed.models.adapters.lora import adapters, filled, lora_rank
from bayesfed.models.adapters.lora_layers import Scaling, lora_scale
from bayesfed.trees import leaf_of, parameters, trainable

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ROOT = "base_model.model."
LEAVES = {"lora_a": "lora_A.weight", "lora_b": "lora_B.weight"}


@checked()
def save_peft(
    net: nn.Module,
    tree: Mapping[str, Tensor] | None,
    folder: str | Path,
    *,
    scaling: Scaling = "lora",
) -> None:
    """Write a network's adapters and its other trained parameters so that `peft` can load them onto
    the network without adapters.

    Parameters
    ----------
    net
        Network with adapters of one rank. To write the adapters of one module only, pass that
        module; names are then relative to it.
    tree
        Trained parameters by name, such as ``run.model.parameters``, which replace the network's
        own. None: the network's own.
    folder
        Created if necessary; each file is written whole or not at all.
    scaling
        Divisor of ``lora_alpha`` in `peft`: r, or with "rs" the square root of r. The resulting
        scale is the network's own in both cases.

    Raises
    ------
    ArgumentError
        If the network has no adapters, their ranks or scales differ, the network is a single layer,
        an adapted layer is not linear, the scaling is unknown, or `peft`, which finds
        whole modules by the ends of their names, would train more parameters than this
        network does.
    UpdateError
        If a leaf is unknown or of another shape, or a frozen one differs from the network's, which
        a file of adapters cannot express.
    """
    rank, layers, own = lora_rank(net), adapters(net), parameters(net)
    values = filled(net, tree, where="save_peft")
    frozen = (
        own.keys()
        - trainable(net).keys()
        - {leaf_of(name, leaf) for name in layers for leaf in LEAVES}
    )
    if changed := sorted(
        name for name in frozen if not torch.equal(values[name], own[name].to(values[name].device))
    ):
        # FlexLoRA and stacking move what they learn into the frozen weights.
        raise UpdateError("save_peft", "frozen weights as they were", changed, "merged(net, tree)")
    scales = {float(layer.scale) for layer in layers.values()}
    if len(scales) != 1 or "" in layers:
        alone = "" in layers
        raise ArgumentError(
            "save_peft",
            "adapters of one scale within a network",
            "one layer by itself" if alone else f"scales {sorted(scales)}",
            f"lora({'nn.Sequential(merged(net))' if alone else 'merged(net)'}, 8, key)",
        )
    others = [name for name, layer in layers.items() if not layer.is_linear]
    if others:
        hint = "merged(net, tree), or a predicate that leaves them out of lora"
        raise ArgumentError("save_peft", "adapters of linear layers", others, hint)
    alpha, heads = scales.pop() / lora_scale(rank, 1.0, scaling), _heads(net)
    tensors = {
        f"{ROOT}{name}.{end}": values[leaf_of(name, leaf)]
        for name in layers
        for leaf, end in LEAVES.items()
    } | {
        ROOT + name: value
        for name, value in values.items()
        if name.startswith(tuple(f"{head}." for head in heads))
    }
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": next(iter(layers.values())).rate,
        "use_rslora": scaling == "rs",
        "bias": "none",
        "fan_in_fan_out": any(layer.transposed for layer in layers.values()),
        "init_lora_weights": True,
        "target_modules": sorted(layers),
        "modules_to_save": heads or None,
    }
    from safetensors.torch import save

    home = Path(folder)
    whole = {name: value.detach().contiguous() for name, value in tensors.items()}
    with writing("save_adapters", home):
        home.mkdir(parents=True, exist_ok=True)
        write_whole(home / WEIGHTS, save(whole, {"format": "pt"}))
        write_whole(home / CONFIG, (json.dumps(config, indent=2) + "\n").encode())


def _heads(net: nn.Module) -> list[str]:
    """Return the names of the outermost modules that are trained whole; raise `ArgumentError` if
    `peft` would find others.
    """
    trained = {name for name in trainable(net) if name.rpartition(".")[2] not in LEAVES}
    owners = {name.rpartition(".")[0] for name in trained}
    heads = sorted(
        name for name in owners if not name.startswith(tuple(f"{other}." for other in owners))
    )
    inside = tuple(f"{head}." for head in heads)
    more = {name for name, _ in net.named_parameters() if name.startswith(inside)} - trained
    more |= {
        name
        for name, _ in net.named_modules()
        if name.endswith(tuple(heads)) and name not in heads and not name.startswith(inside)
    }
    if more or "" in heads or any(head.endswith(".base") for head in heads):
        raise ArgumentError(
            "save_peft",
            "trained parameters in modules of their own, of names that end no other's",
            sorted(more or trained),
            "lora's head=[...] of such modules alone, trained whole",
        )
    return heads
