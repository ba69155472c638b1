"""The names of a class's weights in checkpoints, from transformers' tables of conversions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    apply_renamings,
)
from transformers.pytorch_utils import Conv1D

from ostro import Names, RowPart
from ostro.architectures.transformers import blueprint, mixtures
from ostro.architectures.transformers.config import Config, no_body
from ostro.architectures.transformers.mixtures import GATED, Stack
from ostro.checkpoints import Expert, Named, Transform


@dataclass(frozen=True)
class Transposed:
    """A matrix that a checkpoint stores as [k, n], or a part of its n rows."""

    part: RowPart | None = None
    packed: bool = False
    transposed: bool = True

    def read(self, tensor: Tensor) -> Tensor:
        matrix = tensor.t()
        return matrix if self.part is None else self.part.read(matrix)

    def write(self, tensor: Tensor) -> Tensor:
        return tensor.t() if self.part is None else self.part.write(tensor)


@dataclass(frozen=True)
class Layout:
    """The tensors of a class, and its modules whose tensors differ from ostro's, by path.

    These are experts, and `transposed` modules, of the class Conv1D. `copies` maps tensors of the
    class to the tensor that they share in checkpoints, except for tied heads. `renamings`,
    `singles` and `refused` are transformers' conversions; those in `refused` are not implemented.
    `below` are the children of the class without its head, whose path is `prefix`.
    """

    tensors: frozenset[str]
    children: frozenset[str]
    below: frozenset[str]
    prefix: str
    renamings: Sequence[WeightRenaming]
    singles: Sequence[Singles]
    refused: Sequence[WeightConverter]
    copies: Mapping[str, str]
    experts: Mapping[str, Stack]
    transposed: frozenset[str]

    @classmethod
    def of_config(cls, config: Config) -> Layout:
        """Builds the class on the meta device."""
        top, name = blueprint.draw(config), config.body.__name__
        stacks, transposed = {}, set()
        for path, module in top.named_modules():
            if mixtures.is_mixture(module):
                stacks[path] = mixtures.read_stack(module, name)
            elif isinstance(module, Conv1D):
                transposed.add(path)
        tied = (top.get_input_embeddings().weight, top.get_output_embeddings().weight)
        tensors = dict(top.state_dict(keep_vars=True))
        copies = {
            name: source
            for name, source in top.all_tied_weights_keys.items()
            if not any(tensors.get(name) is weight for weight in tied)
        }
        steps = get_model_conversion_mapping(top)
        converters = [step for step in steps if isinstance(step, WeightConverter)]
        return cls(
            tensors=frozenset(tensors),
            children=children(top),
            below=children(top.base_model),
            prefix=top.base_model_prefix,
            renamings=[step for step in steps if isinstance(step, WeightRenaming)],
            singles=[each for step in converters if stacks_experts(step) for each in singles(step)],
            refused=[step for step in converters if not stacks_experts(step)],
            copies=copies,
            experts=stacks,
            transposed=frozenset(transposed),
        )

    def rename(self, name: str) -> str:
        """The name after transformers' renamings, with the prefix of the class's decoder.

        Some checkpoints (GPT-2's) hold the decoder without its prefix.
        """
        renamed: str = apply_renamings(name, [*self.renamings])
        first = renamed.partition(".")[0]
        if first not in self.children and first in self.below:
            return f"{self.prefix}.{renamed}"
        return renamed


@dataclass(frozen=True)
class Singles:
    """A conversion that stacks experts: `pattern` matches one expert's tensor, which is `part`."""

    pattern: re.Pattern[str]
    part: str

    def find(self, name: str, experts: Mapping[str, Stack]) -> str | None:
        """The name in the model of one expert's tensor, or None."""
        for found in self.pattern.finditer(name):
            path = name[: found.end("path")]
            stack = experts.get(path)
            if stack is not None and int(found["expert"]) < stack.count:
                return f"{path}.{int(found['expert'])}.{self.part}.{name[found.end() :]}"
        return None


@dataclass(frozen=True, kw_only=True)
class BodyNames(Names):
    """The names of a class's modules, with the renamings and conversions of transformers.

    `passed` are regular expressions of tensors that the class ignores.
    """

    config: Config
    passed: Sequence[str] = ()

    @cached_property
    def layout(self) -> Layout:
        return Layout.of_config(self.config)

    def find(self, name: str, space: str) -> list[Named]:
        return [
            placed
            for each in super().find(name, space)
            for placed in self.place(replace(each, name=self.layout.rename(each.name)))
        ]

    def place(self, named: Named) -> Iterator[Named]:
        """The model's tensors for a renamed tensor. Raises Unsupported for other conversions."""
        path, _, last = named.name.rpartition(".")
        if path in self.layout.experts:
            yield from unstack(named, path, last, self.layout.experts[path])
            return
        for single in self.layout.singles:
            if ours := single.find(named.name, self.layout.experts):
                yield replace(named, name=ours)
                return
        for step in self.layout.refused:
            if step.compiled_sources.search(named.name):
                raise no_body(
                    self.config.body.__name__,
                    f"transformers converts {named.theirs} on loading by {step.operations}",
                )
        if last == "weight" and path in self.layout.transposed:
            named = replace(named, transform=Transposed())
        yield named
        for copy, source in self.layout.copies.items():
            if source == named.name:
                yield replace(named, name=copy)

    def write(self, name: str, space: str = "hub") -> Named:
        named, (path, _, last) = super().write(name, space), name.rpartition(".")
        if last == "weight" and path in self.layout.transposed:
            return replace(named, transform=Transposed())
        return named

    def ignored(self, name: str) -> bool:
        if super().ignored(name):
            return True
        renamed = self.layout.rename(name)
        if renamed in self.layout.copies:
            return True
        passed = any(re.search(pattern, name) for pattern in self.passed)
        # transformers applies the patterns to tensors that the class does not have
        return passed and renamed not in self.layout.tensors


def unstack(named: Named, path: str, last: str, stack: Stack) -> Iterator[Named]:
    """The tensors of each expert in a tensor of all experts of a layer."""
    weight = last.removesuffix("_bias")
    parts = stack.parts if weight != "down_proj" else ("down_proj",)
    if weight not in ("gate_up_proj", "down_proj", *stack.parts):
        yield named
        return
    if last.endswith("_bias"):
        yield replace(named, name=f"{path}.{weight}.bias")
        return
    for index, part in enumerate(parts):
        then: Transform | None = RowPart(index, len(parts)) if len(parts) > 1 else None
        if stack.transposed:
            then = Transposed(then)  # type: ignore[arg-type]
        for e in range(stack.count):
            yield replace(
                named, name=f"{path}.{e}.{part}.weight", transform=Expert(e, stack.count, then)
            )


def children(module: Any) -> frozenset[str]:
    """The first components of the names of a module's tensors."""
    return frozenset(name.partition(".")[0] for name in module.state_dict())


def names(config: Config) -> Names:
    """The names of a class's weights in checkpoints, from transformers' tables."""
    return BodyNames(
        config=config, passed=tuple(config.body._keys_to_ignore_on_load_unexpected or ())
    )


def stacks_experts(step: WeightConverter) -> bool:
    """Whether a conversion stacks experts along the first axis, gate rows before up rows."""
    merge, *rest = step.operations
    if not isinstance(merge, MergeModulelist) or merge.dim != 0 or len(step.target_patterns) != 1:
        return False
    gated = len(step.source_patterns) == 2
    joined = [op.dim for op in rest if isinstance(op, Concatenate)]
    return len(joined) == len(rest) and joined == [1] * gated and len(step.source_patterns) <= 2


def singles(step: WeightConverter) -> Iterator[Singles]:
    """The sources of a conversion that stacks experts, as patterns with and without a format."""
    sources, (target,) = step.source_patterns, step.target_patterns
    parts = GATED if len(sources) == 2 else (target.rpartition(".")[2],)
    for source, part in zip(sources, parts, strict=True):
        before, _, after = (
            source.replace("\\", "").strip(".").removesuffix(".weight").partition(".*.")
        )
        path, last = re.escape(before), re.escape(after)
        pattern = rf"(?:^|(?<=\.))(?P<path>{path})\.(?P<expert>\d+)\.{last}\."
        yield Singles(re.compile(pattern), part)
