"""The tensors of a GGUF file to be written: their formats, their bytes, and a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import BinaryIO

import torch
from torch import Tensor

from ostro.checkpoints import GGML_BY_NAME, Maker, Saving, WeightSlot
from ostro.errors import CheckpointError, Unsupported, UsageError

ALIGNMENT = 32

QUANTIZATION_VERSION = 2
"""The version of ggml's block layouts."""


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of the new file; `make` returns its bytes.

    `source` is its format in the checkpoint, `reason` why its format is not the requested one.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    make: Callable[[], Tensor]
    source: str
    reason: str = ""

    @property
    def nbytes(self) -> int:
        return GGML_BY_NAME[self.format].row_bytes(prod(self.shape))

    @property
    def is_matrix(self) -> bool:
        return len(self.shape) > 1

    def emit(self, stream: BinaryIO) -> None:
        """Write the tensor's bytes at the next multiple of the alignment."""
        stream.write(bytes(-stream.tell() % ALIGNMENT))
        flat = self.make().contiguous().view(torch.uint8).flatten()
        if flat.numel() != self.nbytes:
            raise CheckpointError(
                f"{self.name} has {flat.numel()} bytes of {self.format}, expected {self.nbytes}"
            )
        stream.write(flat.numpy().data)


def one_format(
    saving: Saving, name: str, plans: Sequence[tuple[WeightSlot, Maker]]
) -> tuple[Maker, str]:
    """The format of a tensor that fills several weights, and the reason for it.

    A planner may choose several formats; the one with most bits is taken. Raises UsageError if
    rules of --topology name several.
    """
    plan, makers = saving.plan, {maker.format.name: maker for _, maker in plans}
    if len(makers) > 1 and not plan.chosen:
        raise UsageError(
            f"--topology: {name} holds {len(plans)} weights in one tensor, which cannot be "
            f"{' and '.join(makers)}; name one format for all of them"
        )
    maker = max(makers.values(), key=lambda maker: maker.format.bits)
    if blocks(maker) not in GGML_BY_NAME:
        raise Unsupported(
            f"{maker.format.name} is not a ggml format, which GGUF needs (q4k, q8_0...); use "
            "--to uqff"
        )
    slot, _ = plans[0]
    if slot.name in plan.notes:
        return maker, plan.notes[slot.name]
    if len(makers) > 1:
        return maker, f"one tensor of weights in {' and '.join(sorted(makers))}"
    if plan.default is not None and maker.format.name != plan.default.format.name:
        return maker, "embeddings, heads and sensitive weights get more bits"
    return maker, ""


def blocks(maker: Maker) -> str:
    """The name of the ggml format that a maker produces."""
    return maker.make(torch.zeros(1, 256), torch.float32, None).format


def ggml(saved: Mapping[str, Tensor]) -> Tensor:
    """The ggml blocks of a storage; MXFP4 is saved in the hub's layout and converted."""
    if "blocks" not in saved:
        return saved["weight"]
    codes = torch.stack((saved["blocks"] & 15, saved["blocks"] >> 4), -1).flatten(-2)
    halves = codes[..., :16] | codes[..., 16:] << 4
    return torch.cat((saved["scales"][..., None], halves), -1).flatten(-2)


def report(entries: Sequence[TensorEntry]) -> Iterator[str]:
    """A table of the formats before and after, with the number of tensors, sizes and reasons."""
    groups: dict[tuple[str, str, str], list[TensorEntry]] = defaultdict(list)
    for each in entries:
        groups[each.source, each.format, each.reason].append(each)
    yield f"{'tensors':>7}  {'from':7} {'to':7} {'MB':>9}  why"
    for (source, format, reason), group in sorted(groups.items(), key=lambda item: -len(item[1])):
        size = sum(each.nbytes for each in group) / 1e6
        yield f"{len(group):7}  {source:7} {format:7} {size:9.2f}  {reason}".rstrip()
