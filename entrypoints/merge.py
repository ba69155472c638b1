"""Merging of adapters into a model's weights, for `ostro merge`.

A weight W becomes W + sum of s * scale * B A over the adapters, with strength s each. DoRA rescales
the rows to its magnitude for every s (Liu et al. 2024). Several DoRA adapters are each normalized
with W alone, as they are mixed while serving.
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

from ostro.core.adapters.loader import check_targets, check_whole_weights
from ostro.core.adapters.targets import AdapterTargets, TargetResolver
from ostro.core.adapters.weights import AdapterWeights, LowRank
from ostro.core.errors import AdapterError, Unsupported, UsageError
from ostro.core.load.components import JoinedContainer
from ostro.core.load.describe import ModelOutline
from ostro.core.load.experts import Expert
from ostro.core.load.names import FLOATS, Named, Transform
from ostro.core.load.weights import weight_slots
from ostro.core.nn import Head
from ostro.core.nn.linear import WeightSlot
from ostro.core.records import TensorInfo

ASSETS = (".json", ".jinja", ".model", ".txt", ".tiktoken")
"""Suffixes of a model's files besides its weights."""

TEMPLATE = "chat_template.jinja"
NAMED_TEMPLATES = "additional_chat_templates/*.jinja"


@dataclass(frozen=True)
class MergePart:
    """One adapter of a merge. `name` is for messages, `strength` multiplies its scale."""

    name: str
    targets: AdapterTargets
    strength: float

    def factors(self, slot: WeightSlot) -> LowRank | None:
        """Return the factors for a slot's weight, None if the adapter does not change it."""
        return self.targets.factors.get(slot.module, {}).get((slot.part, slot.expert or 0))


@dataclass(frozen=True)
class Merged:
    """The model of an outline with adapters merged, computed tensor by tensor for a writer."""

    outline: ModelOutline
    parts: Sequence[MergePart]
    folder: Path
    templates: Sequence[str] = ()

    @cached_property
    def edits(self) -> Mapping[str, Sequence[tuple[WeightSlot, Transform | None]]]:
        """The checkpoint's tensors that change, with the slots that each of them fills."""
        names, space = self.outline.names, self.outline.space
        named = {item.name: item for item in names.read(self.outline.container.tensors, space)[0]}
        found: dict[str, list[tuple[WeightSlot, Transform | None]]] = defaultdict(list)
        for slot in weight_slots(self.outline.model):
            if changes(self.parts, slot):
                item = self.source(slot, named)
                found[item.theirs].append((slot, item.transform))
        return found

    def source(self, slot: WeightSlot, named: Mapping[str, Named]) -> Named:
        """Return the checkpoint's tensor that fills a slot. Raises Unsupported if quantized."""
        name = slot.name if slot.kind == "tensor" else f"{slot.name}.weight"
        item = named.get(name)
        info = None if item is None else self.outline.container.tensors[item.theirs]
        if item is None or info is None or info.format not in FLOATS:
            what = "is quantized" if info is None else f"is {info.format}"
            raise Unsupported(
                f"{self.outline.container.path.name}: {slot.name} {what}; adapters can only be "
                "merged into floats: use the float model that this one was quantized from"
            )
        return item

    @cached_property
    def untied(self) -> Mapping[str, tuple[str, Head]]:
        """Heads that a merge unties from the embedding, with the name of the shared table, by the
        name of the head's new tensor.
        """
        found, names, space = dict[str, tuple[str, Head]](), self.outline.names, self.outline.space
        paths = {module: path for path, module in self.outline.model.named_modules()}
        tied = [(head, table) for head in paths if isinstance(head, Head) for table in head.tied]
        for head, table in tied:
            if any({head, table} & part.targets.modules.keys() for part in self.parts):
                theirs = [names.write(f"{paths[m]}.weight", space) for m in (head, table)]
                if any(named.transform is not None for named in theirs):
                    raise Unsupported(
                        f"{paths[head]}: cannot untie a table that is stored transformed"
                    )
                found[theirs[0].theirs] = theirs[1].theirs, head
        return found

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """All tensors of the merged model, in the dtypes of the base."""
        tensors = dict(self.outline.container.tensors)
        for name, (table, _) in self.untied.items():
            tensors[name] = replace(tensors[table], name=name)
        return tensors

    def make(self, name: str) -> Tensor:
        """Compute a tensor of the merged model, in the base's dtype.

        Raises AdapterError if it contains NaN or Inf.
        """
        container = self.outline.container
        if name in self.untied:
            table, head = self.untied[name]
            slot = WeightSlot(name, "storage", (head.n_out, head.n_in), head)
            edits: Sequence[tuple[WeightSlot, Transform | None]] = [(slot, None)]
            raw = container.read(table)
        else:
            edits, raw = self.edits.get(name, ()), container.read(name)
        if not edits:
            return raw
        merged = raw.float().clone()
        for slot, transform in edits:
            value = merged if transform is None else transform.read(merged)
            write_slot(merged, transform, self.merge_weight(slot, value), name)
        if not bool(merged.isfinite().all()):
            raise AdapterError(f"{name}: contains NaN or Inf after merging; use smaller scales")
        return merged.to(raw.dtype)

    def merge_weight(self, slot: WeightSlot, tensor: Tensor) -> Tensor:
        """Return a slot's weight or bias with all adapters merged, float32."""
        if slot.kind == "tensor":
            return self.merge_bias(slot, tensor)
        full = [p.targets.whole[slot.module] for p in self.parts if slot.module in p.targets.whole]
        base = full[0].float() if full else tensor  # `check_whole_weights` rejects a second one
        total = base.clone()
        for part in self.parts:
            if factors := part.factors(slot):
                gain, delta = dora_gain(tensor, factors, part.strength)
                total += (gain - 1) * tensor + gain * delta
        return total

    def merge_bias(self, slot: WeightSlot, bias: Tensor) -> Tensor:
        total = bias.clone()
        for part in self.parts:
            full = part.targets.biases.get(slot.module, {}).get(slot.part)
            if full is not None:
                total += part.strength * (full.float() - bias)
            factors = part.factors(slot)
            if factors is None or factors.bias is None:
                continue
            gain = torch.ones(len(bias), 1)
            if factors.magnitude is not None:
                gain = dora_gain(self.weight(slot), factors, part.strength)[0]
            total += part.strength * factors.scale * gain[:, 0] * factors.bias.float()
        return total

    def weight(self, slot: WeightSlot) -> Tensor:
        """Return the base's weight that belongs to a bias, float32."""
        names, space = self.outline.names, self.outline.space
        container, name = self.outline.container, f"{slot.name.removesuffix('.bias')}.weight"
        (item,) = [i for i in names.read(container.tensors, space)[0] if i.name == name]
        raw = container.read(item.theirs).float()
        return raw if item.transform is None else item.transform.read(raw)

    @property
    def config(self) -> Mapping[str, Any]:
        """The base's config.json, with tie_word_embeddings false if a head was untied."""
        found = dict(self.outline.raw_config)
        if not self.untied:
            return found
        if isinstance(text := found.get("text_config"), Mapping):
            found["text_config"] = {**text, "tie_word_embeddings": False}
        return found | {"tie_word_embeddings": False}

    @property
    def assets(self) -> Mapping[str, Path]:
        """The base's tokenizer, templates and other small files, by name.

        The template of an adapter renders all chats, so the base's named ones are left out with it.
        """
        folder = self.outline.container.path
        named = [] if self.templates else folder.glob(NAMED_TEMPLATES)
        files = {
            path.relative_to(folder).as_posix(): path
            for path in sorted((*folder.iterdir(), *named))
            if path.is_file() and path.suffix in ASSETS
        }
        return {name: path for name, path in files.items() if name not in self.written(name)}

    def written(self, name: str) -> Sequence[str]:
        """Return the names of the files that the writer creates, including `name` if an index."""
        index = [name] if name.endswith(".safetensors.index.json") else []
        return ["config.json", *self.texts, *index]

    @property
    def texts(self) -> Mapping[str, str]:
        """The chat template of the adapters, by file name; {} if they have none."""
        return {TEMPLATE: self.templates[0]} if self.templates else {}


def merge_adapters(
    outline: ModelOutline, adapters: Mapping[str, tuple[AdapterWeights, float]], folder: Path
) -> Merged:
    """Return a model with adapters merged; `adapters` maps names to weights and strength.

    Raises AdapterError for an adapter that does not fit the model or cannot be merged, Unsupported
    for a base other than a folder of float safetensors.
    """
    container = outline.container
    if (
        outline.space != "hub"
        or not container.path.is_dir()
        or isinstance(container, JoinedContainer)
    ):
        raise Unsupported(
            f"{container.path.name}: adapters can only be merged into a folder with config.json "
            "and float safetensors; convert the merged model to GGUF afterwards"
        )
    resolver = TargetResolver(outline.model, outline.names)
    parts = []
    for name, (weights, strength) in adapters.items():
        check_static(name, weights)
        targets = resolver.resolve(weights)
        try:
            check_targets(weights, targets)
        except AdapterError as error:
            raise AdapterError(f"{name}: {error}") from None
        parts.append(MergePart(name, targets, strength))
    check_whole_weights([part.targets.whole for part in parts], [part.strength for part in parts])
    known = [weights.template for weights, _ in adapters.values()]
    templates = list(dict.fromkeys(each for each in known if each is not None))
    if len(templates) > 1:
        raise UsageError("the adapters have different chat templates; merge them one by one")
    found = Merged(outline, parts, folder, templates)
    check_biases(found)
    assert found.edits or found.untied, f"{[*adapters]} change something"
    return found


def check_static(name: str, weights: AdapterWeights) -> None:
    """Raise AdapterError for adapters whose effect depends on the text."""
    if weights.mixer is not None:
        raise AdapterError(
            f"{name}: X-LoRA computes its scalings per token and cannot be merged; merge one of "
            "its members, or serve it"
        )
    if weights.invocation:
        raise AdapterError(
            f"{name}: an activated LoRA applies from its invocation on and cannot be merged; "
            "serve it"
        )


def check_biases(found: Merged) -> None:
    """Raise AdapterError for a bias of an adapter on a linear without bias."""
    with_bias = {
        (slot.module, slot.part)
        for slot in weight_slots(found.outline.model)
        if slot.kind == "tensor"
    }
    for part in found.parts:
        for module, factors in part.targets.factors.items():
            for (name, _), each in factors.items():
                if each.bias is not None and (module, name) not in with_bias:
                    raise AdapterError(
                        f"{part.name}: has a bias (lora_bias) for a linear without one; the merged "
                        "model could not be loaded; serve the adapter instead"
                    )


def changes(parts: Sequence[MergePart], slot: WeightSlot) -> bool:
    """Whether any adapter changes a slot."""
    for part in parts:
        factors = part.factors(slot)
        if slot.kind == "storage":
            if factors is not None or slot.module in part.targets.whole:
                return True
        elif (factors is not None and factors.bias is not None) or (
            slot.part in part.targets.biases.get(slot.module, {})
        ):
            return True
    return False


def dora_gain(weight: Tensor, factors: LowRank, strength: float) -> tuple[Tensor, Tensor]:
    """Return DoRA's gain [n, 1] of the rows, 1 without DoRA, and the delta strength * scale * B A.

    weight: [n, k] float32 of the base.
    """
    delta = strength * factors.scale * (factors.b.float() @ factors.a.float())
    if factors.magnitude is None:
        return torch.ones(len(weight), 1), delta
    return factors.magnitude.float()[:, None] / (weight + delta).norm(dim=1, keepdim=True), delta


def write_slot(tensor: Tensor, transform: Transform | None, value: Tensor, name: str) -> None:
    """Write a slot's value into the checkpoint's tensor in place: the inverse of `transform.read`.

    Raises Unsupported for a transform that does not only select and move elements.
    """
    if transform is None:
        tensor.copy_(value)
        return
    if isinstance(transform, Expert):
        write_slot(tensor[transform.index], transform.then, value, name)
        return
    # Reading the element numbers shows which element each output comes from.
    source = transform.read(torch.arange(tensor.numel()).view(tensor.shape))
    if source.dtype != torch.int64 or source.shape != value.shape:
        raise Unsupported(f"{name}: cannot merge into a tensor transformed by {transform}")
    tensor.view(-1)[source.flatten()] = value.flatten()
