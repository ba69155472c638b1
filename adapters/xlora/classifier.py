"""The X-LoRA classifier: from hidden states to scalings of members per layer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import linear

from ostro import Container, errors
from ostro.adapters.xlora.config import Settings

FLOATS = ("F32", "F16", "BF16")
TENSOR = re.compile(
    r"(?:.+\.)?(?:(?:layers|inner)\.(?P<number>\d+)|(?P<last>last))\.(?P<leaf>weight|bias)"
)
"""PEFT numbers all layers, also those without weights; other libraries name the last one `last`."""

Layer = tuple[Tensor, Tensor | None]
"""A weight [n, k] float32 and its bias [n]."""


@dataclass(frozen=True)
class Classifier:
    """Linears in float32, with a ReLU between them if configured; no dropout.

    The outputs pass, each step if configured, through a softmax with a temperature, a top-k that
    sets all but the largest `top` to 0, and a softmax over the values that are not 0. This is the
    order of PEFT, which applies the steps at each weight.
    """

    settings: Settings
    layers: Sequence[Layer]
    placed: dict[torch.device, Sequence[Layer]] = field(default_factory=dict)

    def scalings(self, hidden: Tensor) -> Tensor:
        """Hidden states [t, d] -> scalings [t, layers, members] float32.

        `layers` is 1 if all weights have the same scalings.
        """
        x, (*inner, last) = hidden.float(), self.on(hidden.device)
        for layer in inner:
            x = linear(x, *layer)
            x = x.relu() if self.settings.relu else x
        found = linear(x, *last).unflatten(-1, (-1, len(self.settings.members)))
        if self.settings.softmax:
            found = (found / self.settings.temperature).softmax(-1)
        return self.chosen(found) * self.settings.weight

    def on(self, device: torch.device) -> Sequence[Layer]:
        """The layers on a device, copied once."""
        if device not in self.placed:
            self.placed[device] = [
                (weight.to(device), None if bias is None else bias.to(device))
                for weight, bias in self.layers
            ]
        return self.placed[device]

    def chosen(self, scalings: Tensor) -> Tensor:
        """The scalings of the top members, 0 elsewhere, with a softmax over them if configured."""
        if self.settings.top is not None:
            best = scalings.topk(self.settings.top, -1).indices
            scalings = torch.zeros_like(scalings).scatter(-1, best, scalings.gather(-1, best))
        if not self.settings.softmax_of_top:
            return scalings
        # as PEFT does, also for scalings that are exactly 0 without the top-k
        absent = scalings == 0
        return scalings.masked_fill(absent, float("-inf")).softmax(-1).masked_fill(absent, 0.0)


def read(
    settings: Settings, file: str, container: Container
) -> tuple[Classifier, dict[str, Tensor]]:
    """Read a classifier from a file; returns it and the file's tensors by name, unconverted.

    Raises AdapterError if the tensors do not match the config.
    """
    tensors = {name: numbers(file, container, name) for name in container.tensors}
    found: dict[float, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = TENSOR.fullmatch(name)
        if match is None:
            raise errors.AdapterError(f"{file}: tensor {name!r} does not belong to a classifier")
        # unnumbered `last` is sorted behind the numbered layers
        number = float("inf") if match["last"] else int(match["number"])
        if found.setdefault(number, {}).setdefault(match["leaf"], tensor) is not tensor:
            raise errors.AdapterError(f"{file}: tensor {name!r} comes twice, by another name too")
    layers = [layer(settings, file, parts) for _, parts in sorted(found.items())]
    check(settings, file, layers)
    return Classifier(settings, layers), tensors


def numbers(file: str, container: Container, name: str) -> Tensor:
    """A float tensor without NaN and infinity. Raises AdapterError."""
    format = container.tensors[name].format
    if format not in FLOATS:
        raise errors.AdapterError(
            f"{file}: tensor {name!r} is {format}; a classifier is read in {', '.join(FLOATS)}"
        )
    tensor = container.read(name)
    if not bool(tensor.isfinite().all()):
        raise errors.AdapterError(
            f"{file}: tensor {name!r} contains NaN or Inf; training diverged: use an earlier "
            "checkpoint"
        )
    return tensor


def layer(settings: Settings, file: str, parts: Mapping[str, Tensor]) -> Layer:
    """A layer in float32. Raises AdapterError unless it matches the config."""
    bias = parts.get("bias")
    if "weight" not in parts or parts["weight"].dim() != 2 or (bias is not None) != settings.bias:
        raise errors.AdapterError(
            f"{file}: a layer of the classifier has {' and '.join(sorted(parts))}, expected "
            f"a matrix {'with' if settings.bias else 'without'} a bias"
        )
    return parts["weight"].float(), None if bias is None else bias.float()


def check(settings: Settings, file: str, layers: Sequence[Layer]) -> None:
    """Raise AdapterError unless the number and sizes of layers match the config."""
    if len(layers) != settings.depth:
        raise errors.AdapterError(
            f"{file}: the classifier has {len(layers)} layers, {settings.file} has "
            f"xlora_depth={settings.depth}; PEFT 0.21 omits the layers whose number is the name of "
            "a member: save all tensors of internal_xlora_classifier yourself"
        )
    wide = settings.hidden
    for number, (weight, bias) in enumerate(layers):
        rows, columns = weight.shape
        if columns != wide or (bias is not None and tuple(bias.shape) != (rows,)):
            raise errors.AdapterError(
                f"{file}: layer {number} of the classifier is {rows} x {columns}, expected {wide} "
                f"columns (hidden_size, xlora_size in {settings.file})"
            )
        wide = rows
        if settings.size not in (None, rows) and number < len(layers) - 1:
            raise errors.AdapterError(
                f"{file}: layer {number} of the classifier has {rows} rows, {settings.file} has "
                f"xlora_size={settings.size}"
            )
    many = len(settings.members)
    if wide % many or not (settings.layerwise or wide == many):
        raise errors.AdapterError(
            f"{file}: the classifier gives {wide} scalings, which is not one for each of {many} "
            f"members{' of each layer' if settings.layerwise else ''}; {settings.file} has other "
            "adapters than it was trained with"
        )
