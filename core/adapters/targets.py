"""Adapter targets: resolve the weight names of an adapter to the modules of one model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor
from torch.nn import Module

from ostro.core.adapters.weights import AdapterWeights, LowRank
from ostro.core.errors import AdapterError, nearest
from ostro.core.load.experts import Expert
from ostro.core.load.names import Named, Names, Transform
from ostro.core.load.weights import weight_slots
from ostro.core.nn import Head, Linear
from ostro.core.nn.linear import WeightSlot

WeightPart = tuple[str, int]
"""A part of a fused module, and the index of the expert, 0 for modules without experts."""

LISTED = 5
"""Most names that an error message lists."""


@dataclass
class AdapterTargets:
    """The modules that an adapter changes: `factors` by weight part, `whole` weights, and biases by
    part. `matched` and `unmatched` are names in the adapter's own name space.
    """

    factors: dict[Module, dict[WeightPart, LowRank]] = field(default_factory=dict)
    whole: dict[Module, Tensor] = field(default_factory=dict)
    biases: dict[Module, dict[str, Tensor]] = field(default_factory=dict)
    matched: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)

    @property
    def modules(self) -> dict[Module, None]:
        """The modules that the adapter changes, each once, in order."""
        return dict.fromkeys([*self.factors, *self.whole, *self.biases])


class TargetResolver:
    """Finds the weights of a model by name, in every name space that adapters may use."""

    def __init__(self, model: Module, names: Names) -> None:
        self.names = names
        self.slots = {slot.name: slot for slot in weight_slots(model)}
        for path, module in model.named_modules():
            # A tied head has no slot of its own, but an adapter may change it alone.
            if isinstance(module, Head) and module.tied:
                self.slots[path] = WeightSlot(path, "storage", (module.n_out, module.n_in), module)

    def resolve(self, weights: AdapterWeights) -> AdapterTargets:
        """The targets of an adapter in this model.

        Raises AdapterError for shapes that do not fit, and for weights that adapters cannot change.
        """
        targets = AdapterTargets()
        for name, factors in weights.weights.items():
            found = self.find(name, weights.space)
            for slot, transform in found:
                fitting = check_shapes(transformed(factors, transform, name), slot, name)
                parts = targets.factors.setdefault(slot.module, {})
                if (part := (slot.part, slot.expert or 0)) in parts:
                    raise AdapterError(f"{name}: another name in the adapter is the same weight")
                parts[part] = fitting
            # Training may have wrapped a linear whose output was not used, such as a router in
            # transformers 4: its B is still zero, and to ignore it changes nothing.
            if not found and not factors.adds:
                continue
            if not found and self.is_plain_tensor(name, weights.space):
                raise AdapterError(
                    f"{name}: the base's weight is not one of a linear, an embedding or experts; "
                    "train the adapter without it"
                )
            if found or not self.is_unused(name, weights.space):
                (targets.matched if found else targets.unmatched).append(name)
        for name, tensor in weights.whole.items():
            if self.is_unused(name.rpartition(".")[0], weights.space):
                continue
            targets.matched.append(name)
            self.resolve_whole(targets, name, tensor, weights.space)
        return targets

    def find(self, name: str, space: str) -> list[tuple[WeightSlot, Transform | None]]:
        """The slots that a checkpoint's weight fills, and its transform for each; empty if none.

        `name` has no ".weight"; `space` is its name space, see `AdapterWeights`.
        """
        if space == "tree" and (slot := self.slots.get(name)) and slot.kind == "storage":
            return [(slot, None)]
        # Tensors of stacked experts have names without the suffix.
        for full in (f"{name}.weight", name):
            if found := list(self.find_full(full, space)):
                return found
        return []

    def find_full(self, name: str, space: str) -> Iterator[tuple[WeightSlot, Transform | None]]:
        """The slots and transforms for the full name of a tensor in a checkpoint."""
        found: list[Named] = self.names.read([name], space)[0]
        for item in found:
            slot = self.slots.get(item.name.removesuffix(".weight"))
            if slot is not None and slot.kind == "storage":
                yield slot, item.transform

    def is_unused(self, name: str, space: str) -> bool:
        """Whether the model ignores a checkpoint's weight, such as the last layers of a tower."""
        return self.names.ignored(f"{name}.weight") and not self.find(name, space)

    def is_plain_tensor(self, name: str, space: str) -> bool:
        """Whether a checkpoint's weight is a parameter without a storage, such as a convolution."""
        named = self.names.read([f"{name}.weight", name], space)[0]
        return any(s.kind == "tensor" for n in named if (s := self.slots.get(n.name)))

    def resolve_whole(self, targets: AdapterTargets, name: str, tensor: Tensor, space: str) -> None:
        """Add a tensor that replaces the weight or bias of a linear or an embedding.

        Raises AdapterError if it replaces anything else, or has another shape.
        """
        path, _, suffix = name.rpartition(".")
        found = self.find(path, space)
        slot, transform = found[0] if len(found) == 1 else (None, None)
        if slot is None or transform is not None or suffix not in ("weight", "bias"):
            known = nearest(path, [n for n, s in self.slots.items() if s.kind == "storage"])
            raise AdapterError(
                f"{name} replaces a tensor of the base; supported are the weights and biases of "
                f"heads, embeddings and classifiers{known}; train the adapter without it"
            )
        if suffix == "bias":
            if not isinstance(slot.module, Linear) or slot.part not in slot.module.biased:
                raise AdapterError(
                    f"{name}: the base has no such bias; the adapter was made for another model"
                )
            targets.biases.setdefault(slot.module, {})[slot.part] = tensor
            return
        if isinstance(slot.module, Linear) and len(slot.module.parts) > 1:
            raise AdapterError(
                f"{name} replaces one part of a fused weight; only the whole weights of heads, "
                "embeddings and classifiers can be replaced; train the adapter without it"
            )
        if tuple(tensor.shape) != slot.shape:
            raise AdapterError(
                f"{name} has shape {tuple(tensor.shape)}, the base's {slot.shape}: tokens were "
                "added, or it was trained on another model; resize back, or merge it into its base"
            )
        targets.whole[slot.module] = tensor


def transformed(factors: LowRank, transform: Transform | None, name: str) -> LowRank:
    """The factors of a checkpoint's weight as factors of the model's weight.

    A transform that moves the rows of W moves those of B. Raises AdapterError for other transforms,
    and for a number of experts that is not the base's.
    """
    if transform is None:
        return factors
    if isinstance(transform, Expert):
        if factors.a.dim() != 3 or len(factors.a) != transform.count:
            count = len(factors.a) if factors.a.dim() == 3 else 1
            raise AdapterError(f"{name} changes {count} experts, the base has {transform.count}")
        one = replace(factors, a=factors.a[transform.index], b=factors.b[transform.index])
        return transformed(one, transform.then, name)
    if getattr(transform, "transposed", False):
        # PEFT stores B as [n, r] even if the checkpoint stores W transposed, as [k, n].
        return replace(factors, b=transform.read(factors.b.t()))
    if not transform.packed:
        raise AdapterError(
            f"{name}: the model stores this weight transformed by {transform}, which adapters do "
            "not support; train the adapter without it"
        )
    bias, magnitude = (
        None if v is None else transform.read(v) for v in (factors.bias, factors.magnitude)
    )
    return replace(factors, b=transform.read(factors.b), bias=bias, magnitude=magnitude)


def check_shapes(factors: LowRank, slot: WeightSlot, name: str) -> LowRank:
    """The factors. Raises AdapterError unless they fit the weight of a slot."""
    n, k = slot.shape
    shapes = tuple(factors.a.shape), tuple(factors.b.shape)
    if shapes != ((factors.rank, k), (n, factors.rank)):
        raise AdapterError(
            f"{name}: A {shapes[0]} and B {shapes[1]} do not fit the base's weight of "
            f"{n} x {k}; the adapter was made for another model"
        )
    for vector in (factors.bias, factors.magnitude):
        if vector is not None and tuple(vector.shape) != (n,):
            raise AdapterError(
                f"{name}: a bias or magnitude has shape {tuple(vector.shape)}, expected ({n},)"
            )
    if factors.magnitude is not None and not isinstance(slot.module, Linear):
        raise AdapterError(f"{name}: DoRA on embeddings and experts is not implemented; train LoRA")
    return factors


def describe_unmatched(names: Mapping[str, object] | list[str]) -> str:
    """The first `LISTED` names and the number of the others, for messages."""
    listed = list(names)
    more = f" and {len(listed) - LISTED} more" if len(listed) > LISTED else ""
    return ", ".join(listed[:LISTED]) + more
