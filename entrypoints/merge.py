"""A model with adapters merged into its weights: what `ostro merge` writes.

A weight W becomes W + sum of s * scale * B A over the adapters, s how much of each. DoRA's rows
have the length of their magnitude afterwards, whatever s is (Liu et al. 2024); of several at once
each is brought to its own length with W alone, which is how they are mixed while serving.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ostro.core.adapters.loader import check_placed, check_wholes
from ostro.core.adapters.targets import AdapterTargets, TargetResolver
from ostro.core.adapters.weights import AdapterWeights, LowRank
from ostro.core.errors import AdapterError, Unsupported, UsageError
from ostro.core.load.components import JoinedContainer
from ostro.core.load.describe import ModelOutline
from ostro.core.load.experts import Expert
from ostro.core.load.names import Named, Transform
from ostro.core.load.weights import FLOATS, slots
from ostro.core.nn import Head
from ostro.core.nn.linear import Slot
from ostro.core.records import TensorInfo

ASSETS = (".json", ".jinja", ".model", ".txt", ".tiktoken")
"""Suffixes of files that belong to a model beside its weights."""

TEMPLATE = "chat_template.jinja"


@dataclass(frozen=True)
class MergePart:
    """One adapter of several: its name for messages, what it does to each module, how much."""

    name: str
    placed: AdapterTargets
    strength: float

    def factors(self, slot: Slot) -> LowRank | None:
        """What it does to the weight of a slot."""
        return self.placed.factors.get(slot.module, {}).get((slot.part, slot.expert or 0))


@dataclass(frozen=True)
class Merged:
    """The model of an outline with parts merged into it, tensor by tensor, for a writer."""

    outline: ModelOutline
    parts: Sequence[MergePart]
    folder: Path
    templates: Sequence[str] = ()

    @cached_property
    def edits(self) -> Mapping[str, Sequence[tuple[Slot, Transform | None]]]:
        """The tensors of the checkpoint that change, and the slots that they fill."""
        names, space = self.outline.names, self.outline.space
        named = {item.name: item for item in names.read(self.outline.container.tensors, space)[0]}
        found: dict[str, list[tuple[Slot, Transform | None]]] = defaultdict(list)
        for slot in slots(self.outline.model):
            if changes(self.parts, slot):
                item = self.source(slot, named)
                found[item.theirs].append((slot, item.transform))
        return found

    def source(self, slot: Slot, named: Mapping[str, Named]) -> Named:
        """The checkpoint's tensor that fills a slot. Raises Unsupported where it is no float."""
        wanted = slot.name if slot.kind == "tensor" else f"{slot.name}.weight"
        item = named.get(wanted)
        held = None if item is None else self.outline.container.tensors[item.theirs]
        if item is None or held is None or held.format not in FLOATS:
            what = "is quantized" if held is None else f"is {held.format}"
            raise Unsupported(
                f"{self.outline.container.path.name}: {slot.name} {what}; adapters are merged into "
                "floats: name the float model that it was made of"
            )
        return item

    @cached_property
    def untied(self) -> Mapping[str, tuple[str, Head]]:
        """Heads that cannot share the embedding's table any more: by the names of their tensors,
        the names of the tables that they shared.
        """
        found, names, space = dict[str, tuple[str, Head]](), self.outline.names, self.outline.space
        paths = {module: path for path, module in self.outline.model.named_modules()}
        tied = [(head, table) for head in paths if isinstance(head, Head) for table in head.tied]
        for head, table in tied:
            if any({head, table} & part.placed.modules.keys() for part in self.parts):
                theirs = [names.write(f"{paths[m]}.weight", space) for m in (head, table)]
                if any(named.transform is not None for named in theirs):
                    raise Unsupported(f"{paths[head]}: shares a table that is stored otherwise")
                found[theirs[0].theirs] = theirs[1].theirs, head
        return found

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """All tensors of the merged model, each in the type that it has in the base."""
        held = dict(self.outline.container.tensors)
        for name, (table, _) in self.untied.items():
            held[name] = replace(held[table], name=name)
        return held

    def make(self, name: str) -> Tensor:
        """A tensor of the merged model, in the base's type."""
        container = self.outline.container
        if name in self.untied:
            table, head = self.untied[name]
            slot = Slot(name, "storage", (head.n_out, head.n_in), head)
            edits: Sequence[tuple[Slot, Transform | None]] = [(slot, None)]
            raw = container.read(table)
        else:
            edits, raw = self.edits.get(name, ()), container.read(name)
        if not edits:
            return raw
        made = raw.float().clone()
        for slot, transform in edits:
            mine = made if transform is None else transform.read(made)
            put(made, transform, self.changed(slot, mine), name)
        if not bool(made.isfinite().all()):
            raise AdapterError(f"{name}: what comes of merging is no number; use smaller scales")
        return made.to(raw.dtype)

    def changed(self, slot: Slot, tensor: Tensor) -> Tensor:
        """A weight or bias of ours with all parts merged into it, float32."""
        if slot.kind == "tensor":
            return self.changed_bias(slot, tensor)
        wholes = [p.placed.whole[slot.module] for p in self.parts if slot.module in p.placed.whole]
        base = wholes[0].float() if wholes else tensor
        total = base.clone()
        for part in self.parts:
            if factors := part.factors(slot):
                gain, delta = gained(tensor, factors, part.strength)
                total += (gain - 1) * tensor + gain * delta
        return total

    def changed_bias(self, slot: Slot, bias: Tensor) -> Tensor:
        total = bias.clone()
        for part in self.parts:
            whole = part.placed.biases.get(slot.module, {}).get(slot.part)
            if whole is not None:
                total += part.strength * (whole.float() - bias)
            factors = part.factors(slot)
            if factors is None or factors.bias is None:
                continue
            gain = torch.ones(len(bias), 1)
            if factors.magnitude is not None:
                gain = gained(self.weight(slot), factors, part.strength)[0]
            total += part.strength * factors.scale * gain[:, 0] * factors.bias.float()
        return total

    def weight(self, slot: Slot) -> Tensor:
        """The base's weight beside a bias, float32."""
        names, space = self.outline.names, self.outline.space
        container, wanted = self.outline.container, f"{slot.name.removesuffix('.bias')}.weight"
        (item,) = [i for i in names.read(container.tensors, space)[0] if i.name == wanted]
        raw = container.read(item.theirs).float()
        return raw if item.transform is None else item.transform.read(raw)

    @property
    def config(self) -> Mapping[str, Any]:
        """The base's config.json, which says that heads are untied where they are now."""
        found = dict(self.outline.raw_config)
        if not self.untied:
            return found
        if isinstance(text := found.get("text_config"), Mapping):
            found["text_config"] = {**text, "tie_word_embeddings": False}
        return found | {"tie_word_embeddings": False}

    @property
    def assets(self) -> Sequence[Path]:
        """The base's tokenizer, templates and other small files."""
        folder = self.outline.container.path
        return [
            path
            for path in sorted(folder.iterdir())
            if path.is_file() and path.suffix in ASSETS and path.name not in self.written(path.name)
        ]

    def written(self, name: str) -> Sequence[str]:
        """Names of files that are written anew, one of which `name` may be."""
        index = [name] if name.endswith(".safetensors.index.json") else []
        return ["config.json", *self.texts, *index]

    @property
    def texts(self) -> Mapping[str, str]:
        """The chat template, where the adapters bring one."""
        return {TEMPLATE: self.templates[0]} if self.templates else {}


def merged(
    outline: ModelOutline, adapters: Mapping[str, tuple[AdapterWeights, float]], folder: Path
) -> Merged:
    """The model with adapters, by reference each with how much of it.

    Raises AdapterError for what does not fit or depends on what is asked, Unsupported for a base
    that is no folder of float safetensors.
    """
    container = outline.container
    if (
        outline.space != "hub"
        or not container.path.is_dir()
        or isinstance(container, JoinedContainer)
    ):
        raise Unsupported(
            f"{container.path.name}: adapters are merged into a folder with config.json and float "
            "safetensors, in one piece; a GGUF file can be made of what comes of it"
        )
    places = TargetResolver(outline.model, outline.names)
    parts = []
    for name, (weights, strength) in adapters.items():
        refuse(name, weights)
        placed = places.place(weights)
        try:
            check_placed(weights, placed)
        except AdapterError as error:
            raise AdapterError(f"{name}: {error}") from None
        parts.append(MergePart(name, placed, strength))
    check_wholes([part.placed.whole for part in parts], [part.strength for part in parts])
    known = [weights.template for weights, _ in adapters.values()]
    templates = list(dict.fromkeys(each for each in known if each is not None))
    if len(templates) > 1:
        raise UsageError("these adapters have chat templates that differ; merge them one by one")
    found = Merged(outline, parts, folder, templates)
    check_biases(found)
    assert found.edits or found.untied, f"{[*adapters]} change something"
    return found


def refuse(name: str, weights: AdapterWeights) -> None:
    """Raise AdapterError for adapters whose effect depends on the text."""
    if weights.mixer is not None:
        raise AdapterError(
            f"{name}: X-LoRA mixes its members anew for each token, which no weight can hold; "
            "merge one of its members, or serve it"
        )
    if weights.invocation:
        raise AdapterError(
            f"{name}: an activated LoRA applies from its invocation on, which no weight can hold; "
            "serve it"
        )


def check_biases(found: Merged) -> None:
    """Raise AdapterError for a bias that the base has no place for."""
    held = {
        (slot.module, slot.part) for slot in slots(found.outline.model) if slot.kind == "tensor"
    }
    for part in found.parts:
        for module, factors in part.placed.factors.items():
            for (name, _), each in factors.items():
                if each.bias is not None and (module, name) not in held:
                    raise AdapterError(
                        f"{part.name}: has a bias (lora_bias) where the base has none, so that the "
                        "merged model could not be loaded; serve it"
                    )


def changes(parts: Sequence[MergePart], slot: Slot) -> bool:
    """Whether any part changes what a slot holds."""
    for part in parts:
        factors = part.factors(slot)
        if slot.kind == "storage":
            if factors is not None or slot.module in part.placed.whole:
                return True
        elif (factors is not None and factors.bias is not None) or (
            slot.part in part.placed.biases.get(slot.module, {})
        ):
            return True
    return False


def gained(weight: Tensor, factors: LowRank, strength: float) -> tuple[Tensor, Tensor]:
    """Of a weight [n, k] float32 the gain [n, 1] that DoRA's rows get, 1 without, and the change
    strength * scale * B A.
    """
    delta = strength * factors.scale * (factors.b.float() @ factors.a.float())
    if factors.magnitude is None:
        return torch.ones(len(weight), 1), delta
    return factors.magnitude.float()[:, None] / (weight + delta).norm(dim=1, keepdim=True), delta


def put(tensor: Tensor, transform: Transform | None, value: Tensor, name: str) -> None:
    """Write what a transform reads back into a tensor of theirs, in place.

    Raises Unsupported for a transform that does more than choose and move elements.
    """
    if transform is None:
        tensor.copy_(value)
        return
    if isinstance(transform, Expert):
        put(tensor[transform.index], transform.then, value, name)
        return
    at = transform.read(torch.arange(tensor.numel()).view(tensor.shape))
    if at.dtype != torch.int64 or at.shape != value.shape:
        raise Unsupported(f"{name}: what {transform} makes of a weight cannot be merged into")
    tensor.view(-1)[at.flatten()] = value.flatten()
