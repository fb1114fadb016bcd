"""Rewriting a network layer by layer: lines of steps without branches, and chains of linear layers
within them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from itertools import takewhile

import torch
from torch import Tensor, nn

from bayesfed.errors import ArgumentError
from bayesfed.errors.plurals import plural
from bayesfed.models.compaction.forms import Csr, candidates, quickest
from bayesfed.models.compaction.layout import channels_last, overwriting, pooled_first
from bayesfed.models.compaction.pruned import Layer, Step, is_layer, pruned
from bayesfed.models.modules import ELEMENTWISE, SILENT, is_plain

# Entries of a chunk's widest activation, for each thread: 1.6 MB in single precision was the
# fastest with a second-level cache of 1 MB.
CHUNK = 400_000


class Chain(nn.Module):
    """Linear forms and activations, run on ``(features, rows)`` chunk by chunk; takes and returns
    ``(..., features)``.
    """

    def __init__(self, steps: list[nn.Module], width: int, rows: int) -> None:
        super().__init__()
        self.steps, self.width, self.rows = nn.Sequential(*steps), width, rows

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs."""
        if inputs.shape[-1:] != (self.width,):
            raise ArgumentError(
                "compact",
                f"{plural(self.width, 'input')}",
                tuple(inputs.shape),
                "inputs as in training",
            )
        flat = inputs.reshape(math.prod(inputs.shape[:-1]), self.width)
        # Each thread has a cache of its own, and in each chunk all threads wait for each other
        # several times. A graph, as for ONNX, takes any number of rows, so it has no chunks.
        several = self.rows * torch.get_num_threads()
        count = 1 if torch.compiler.is_compiling() else max(1, math.ceil(len(flat) / several))
        chunks = flat.tensor_split(count)
        output = torch.cat([self.steps(chunk.t()).t() for chunk in chunks])
        return output.reshape(*inputs.shape[:-1], output.shape[-1])


class Pipe(nn.Module):
    """Modules run one after the other. Not an `nn.Sequential`, since its indices are not those of
    the original network.
    """

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs."""
        outputs: Tensor = self.parts(inputs)
        return outputs


class Rewriter:
    """The rewriting of one network: the inputs of its modules for a sample (`seen`), the rewritten
    modules, and the form of each layer.
    """

    def __init__(self, seen: Mapping[int, Tensor]) -> None:
        self.seen, self.forms = seen, dict[str, str]()
        self.done: dict[int, nn.Module] = {}

    def rewritten(self, name: str, module: nn.Module) -> nn.Module:
        """Return a module with every layer below it rewritten; a module that is used twice is
        rewritten once.
        """
        if id(module) not in self.done:
            self.done[id(module)] = module
            if is_plain(module, nn.Sequential) or is_layer(module):
                self.done[id(module)] = self.line(name, module)
                _copy_sizes(module, self.done[id(module)])
            elif not type(module).__module__.startswith("torch.nn") or is_plain(
                module, nn.ModuleList, nn.ModuleDict
            ):
                for leaf, child in module._modules.items():
                    if child is not None:
                        module._modules[leaf] = self.rewritten(f"{name}.{leaf}".lstrip("."), child)
        return self.done[id(module)]

    def line(self, name: str, module: nn.Module) -> nn.Module:
        """Return a network without branches, pruned and with a form for each layer."""
        original = _steps(name, module)
        sizes = {step: layer.weight.shape for step, layer in original if isinstance(layer, Layer)}
        given = self.seen.get(id(module))
        waiting, parts, batch = pooled_first(pruned(original)), list[nn.Module](), given
        is_fresh = False
        while waiting:
            step, first = waiting[0]
            if is_plain(first, nn.Linear):
                run = list(
                    takewhile(lambda named: is_plain(named[1], nn.Linear, *ELEMENTWISE), waiting)
                )
                parts.append(self.chain(run, sizes, batch))
            else:
                run = waiting[:1]
                parts.append(
                    self.form(step, first, sizes[step], batch, True)
                    if is_layer(first)
                    else self.rewritten(step, first)
                )
                if is_fresh:
                    parts[-1] = overwriting(parts[-1])
                is_fresh = is_layer(first) or is_plain(first, nn.MaxPool2d)
            waiting = waiting[len(run) :]
            batch = None if batch is None else parts[-1](batch)
        return self.laid_out(
            Pipe(parts), [step for step, layer in original if is_plain(layer, nn.Conv2d)], given
        )

    def laid_out(
        self, line: nn.Module, convolutions: list[str], inputs: Tensor | None
    ) -> nn.Module:
        """Return a line in the memory layout that is faster on a sample; without one, as it is."""
        if inputs is None or not inputs.numel() or not convolutions:
            return line
        turned = channels_last(line)
        if quickest({"as given": line, "channels last": turned}, inputs) == "as given":
            return line
        for name in convolutions:
            if name in self.forms:
                self.forms[name] += ", channels last"
        return turned

    def chain(
        self, steps: list[Step], sizes: Mapping[str, torch.Size], inputs: Tensor | None
    ) -> nn.Module:
        """Return linear layers and activations as one chain; each form is chosen on the sample's
        outputs of the forms before it.
        """
        layers = [module for _, module in steps if isinstance(module, nn.Linear)]
        width = layers[0].in_features
        rows = max(64, CHUNK // max(width, *(layer.out_features for layer in layers)))
        batch = None if inputs is None else inputs.reshape(-1, width)[:rows].t()
        built: list[nn.Module] = []
        for name, module in steps:
            if isinstance(module, nn.Linear):
                built.append(self.form(name, module, sizes[name], batch, not built))
            else:
                # The layer before returns a new tensor, so the activation may overwrite it.
                built.append(overwriting(module))
            batch = None if batch is None else built[-1](batch)
        # Dense products are no faster in chunks.
        return Chain(
            built, width, rows if any(isinstance(form, Csr) for form in built) else sys.maxsize
        )

    def form(
        self, name: str, layer: Layer, size: torch.Size, batch: Tensor | None, is_turned: bool
    ) -> nn.Module:
        """Return the form of one layer, the fastest on a batch or without one the cheapest by the
        rule, and record it.
        """
        options = candidates(layer, is_turned)
        if batch is None or not batch.numel():
            choice = min(options, key=lambda option: options[option][0])
            form = options[choice][1]()
        else:
            built = {option: build() for option, (_, build) in options.items()}
            choice = quickest(built, batch)
            form = built[choice]
        shape = " x ".join(map(str, layer.weight.shape))
        was = "" if layer.weight.shape == size else f" of {' x '.join(map(str, size))}"
        self.forms[name] = f"{choice} {shape}{was}, {float(layer.weight.ne(0).float().mean()):.1%}"
        return form


def _copy_sizes(layer: nn.Module, form: nn.Module) -> None:
    """Give the form of a layer the layer's constants, such as ``in_features``, which the class
    around it may read.
    """
    for name in getattr(layer, "__constants__", ()):
        setattr(form, name, getattr(layer, name))


def _steps(name: str, module: nn.Module) -> list[Step]:
    """Return the steps of nested `nn.Sequential`s in order, without modules that do nothing in
    evaluation mode.
    """
    if not is_plain(module, nn.Sequential):
        return [] if is_plain(module, *SILENT) else [(name, module)]
    # Not `named_children`, which lists a module that is used twice only once.
    children = [
        (f"{name}.{leaf}".lstrip("."), child)
        for leaf, child in module._modules.items()
        if child is not None
    ]
    return [step for path, child in children for step in _steps(path, child)]
