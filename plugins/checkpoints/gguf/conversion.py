"""Convert a model of the hub to the tensors of a GGUF file.

The names of an architecture map GGUF tensors to weights of the model. A conversion inverts them:
each weight is read as the model would read it, and `write` of its transform makes the tensor, or a
part of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ostro import Storage, nn
from ostro.checkpoints import (
    DTYPES,
    GGML_BY_NAME,
    Expert,
    Named,
    Saving,
    Transform,
    WeightSlot,
    weight_slots,
)
from ostro.errors import Unsupported

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""The float formats of GGUF files."""

PROJECTOR = "mmproj."
"""The prefix of a projector's tensors, which belong to another file."""

FULL = (
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    "position_embd.weight",
    "token_types.weight",
    "ssm_conv1d.weight",
    "shortconv.conv.weight",
    "_norm.weight",
)
"""Ends of tensors that llama.cpp reads in float32 only."""


@dataclass(frozen=True)
class Part:
    """A weight of the model that fills a GGUF tensor, or a part of it.

    `transform` goes from the GGUF tensor to the weight; `index` is that of an expert.
    """

    slot: WeightSlot
    transform: Transform | None
    index: int = 0
    stacked: bool = False

    def write(self, tensor: Tensor) -> Tensor:
        return tensor if self.transform is None else self.transform.write(tensor)


class Conversion:
    """The GGUF tensors of a model folder, by name, with the weights that fill them."""

    def __init__(self, saving: Saving) -> None:
        self.saving, found = saving, saving.outline
        self.slots, self.named, _ = saving.arranged
        self.singles = found.arrange()[1]
        self.reader = found.reader(saving.plugins, device=torch.device("cpu"), dtype=torch.float32)
        self.parts: Mapping[str, Sequence[Part]] = self.arrange()

    def arrange(self) -> dict[str, list[Part]]:
        """The parts of each tensor. Raises Unsupported for a weight without a GGUF name."""
        found: dict[str, list[Part]] = defaultdict(list)
        outline = self.saving.outline
        for slot in weight_slots(outline.model):
            name = slot.name if slot.kind == "tensor" else f"{slot.name}.weight"
            there = outline.names.write(name, "gguf")
            if there.theirs == name:
                raise Unsupported(
                    f"{outline.architecture.name}: {name} has no name in GGUF files; use --to uqff"
                )
            transform = there.transform
            if isinstance(transform, Expert):
                part = Part(slot, transform.then, transform.index, stacked=True)
            else:
                part = Part(slot, transform)
            found[there.theirs].append(part)
        return {name: sorted(parts, key=lambda part: part.index) for name, parts in found.items()}

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it."""

        def empty(part: Part) -> Tensor:
            return torch.empty(part.slot.shape, device="meta")

        return tuple(assemble(self.parts[name], empty).shape)

    def partial(self) -> set[nn.Module]:
        """The modules of whose weights the file holds a part."""
        alone = {name: parts[0] for name, parts in self.parts.items() if len(parts) == 1}
        return {
            part.slot.module
            for name, part in alone.items()
            if not part.stacked and prod(self.shape(name)) < prod(part.slot.shape)
        }

    def source_format(self, name: str) -> str:
        """The format of a tensor's weights in the checkpoint."""
        return self.source_of(self.parts[name][0])

    def source_of(self, part: Part) -> str:
        tensors = self.tensors(part.slot)
        infos = [self.saving.outline.container.tensors[named.theirs] for named in tensors.values()]
        return max(infos, key=lambda info: info.nbytes).format

    def tensors(self, slot: WeightSlot) -> Mapping[str, Named]:
        """The tensors of the checkpoint that fill a slot."""
        return self.named[slot.name] if slot.kind == "storage" else {"": self.singles[slot.name]}

    def is_float(self, name: str) -> bool:
        """Whether all weights of a tensor are floats in the checkpoint."""
        return all(
            len(self.tensors(part.slot)) == 1 and self.source_of(part) in DTYPES
            for part in self.parts[name]
        )

    def blocks(self, name: str) -> str | None:
        """The ggml format in which the checkpoint holds a tensor's weights, None for floats."""
        part = self.parts[name][0]
        if self.is_float(name) or part.slot.kind == "tensor" or part.transform is not None:
            return None
        format = self.storage(part).format
        return format if format in GGML_BY_NAME and format not in FLOATS else None

    def storage(self, part: Part) -> Storage:
        return self.reader.storage(part.slot, self.tensors(part.slot))

    def value(self, part: Part) -> Tensor:
        """A weight of the model, float32."""
        if part.slot.kind == "storage":
            return self.storage(part).dequantize().float()
        (named,) = self.tensors(part.slot).values()
        return self.reader.tensor(
            named, self.saving.outline.container.tensors[named.theirs]
        ).float()

    def read(self, name: str) -> Tensor:
        """A tensor of the GGUF file, float32."""
        return assemble(self.parts[name], self.value)

    def read_blocks(self, name: str, ggml: Callable[[Mapping[str, Tensor]], Tensor]) -> Tensor:
        """The blocks of a tensor whose weights the checkpoint holds in a ggml format."""
        return assemble(self.parts[name], lambda part: ggml(self.storage(part).save()))

    def read_as(self, name: str, dtype: torch.dtype) -> Tensor:
        """As `read`, in a dtype."""
        return self.read(name).to(dtype)


def assemble(parts: Sequence[Part], value: Callable[[Part], Tensor]) -> Tensor:
    """A GGUF tensor from its parts: a stack of experts, or the sum of parts with other rows 0."""
    matrices: dict[int, Tensor] = {}
    for part in parts:
        tensor = part.write(value(part))
        known = matrices.get(part.index)
        matrices[part.index] = tensor if known is None else known + tensor
    return torch.stack([*matrices.values()]) if parts[0].stacked else matrices[0]
