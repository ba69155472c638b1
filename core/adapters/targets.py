"""Where the factors of an adapter belong: its names, brought to the modules of one model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor
from torch.nn import Module

from ostro.core.adapters.weights import AdapterWeights, LowRank
from ostro.core.errors import AdapterError, nearest
from ostro.core.load.experts import Expert
from ostro.core.load.names import Named, Names, Transform
from ostro.core.load.weights import slots
from ostro.core.nn import Head, Linear
from ostro.core.nn.linear import Slot

Place = tuple[str, int]
"""A part of a module, and the number of the expert, 0 where there are none."""

SHOWN = 5


@dataclass
class AdapterTargets:
    """What an adapter does to each module: `factors` by place, `whole` weights and biases by part;
    `matched` and `unmatched` are names of the adapter's own.
    """

    factors: dict[Module, dict[Place, LowRank]] = field(default_factory=dict)
    whole: dict[Module, Tensor] = field(default_factory=dict)
    biases: dict[Module, dict[str, Tensor]] = field(default_factory=dict)
    matched: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)

    @property
    def modules(self) -> dict[Module, None]:
        """All that it changes, in order, once each."""
        return dict.fromkeys([*self.factors, *self.whole, *self.biases])


class TargetResolver:
    """The weights of a model by name, in every name space that adapters may use."""

    def __init__(self, model: Module, names: Names) -> None:
        self.names = names
        self.slots = {slot.name: slot for slot in slots(model)}
        for path, module in model.named_modules():
            if isinstance(module, Head) and module.tied:
                self.slots[path] = Slot(path, "storage", (module.n_out, module.n_in), module)

    def place(self, weights: AdapterWeights) -> AdapterTargets:
        """Bring an adapter to the model's modules.

        Raises AdapterError for shapes that do not fit, and for what cannot be changed there.
        """
        placed = AdapterTargets()
        for name, factors in weights.weights.items():
            found = self.find(name, weights.space)
            for slot, transform in found:
                mine = fitted(moved(factors, transform, name), slot, name)
                here = placed.factors.setdefault(slot.module, {})
                if (place := (slot.part, slot.expert or 0)) in here:
                    raise AdapterError(f"{name}: another name in the adapter is the same weight")
                here[place] = mine
            if not found and not factors.adds:
                continue  # of a linear that its training went around: a router's in transformers 4
            if not found and self.bare(name, weights.space):
                raise AdapterError(f"{name} is no linear here and takes no adapter; train without")
            if found or not self.unused(name, weights.space):
                (placed.matched if found else placed.unmatched).append(name)
        for name, tensor in weights.whole.items():
            if self.unused(name.rpartition(".")[0], weights.space):
                continue
            placed.matched.append(name)
            self.place_whole(placed, name, tensor, weights.space)
        return placed

    def find(self, name: str, space: str) -> list[tuple[Slot, Transform | None]]:
        """The slots of storages that a weight of theirs fills, and how it is changed for each."""
        if space == "tree" and (slot := self.slots.get(name)) and slot.kind == "storage":
            return [(slot, None)]
        return next(
            filter(None, (list(self.named(n, space)) for n in (f"{name}.weight", name))), []
        )

    def named(self, name: str, space: str) -> Iterator[tuple[Slot, Transform | None]]:
        found: list[Named] = self.names.read([name], space)[0]
        for item in found:
            slot = self.slots.get(item.name.removesuffix(".weight"))
            if slot is not None and slot.kind == "storage":
                yield slot, item.transform

    def unused(self, name: str, space: str) -> bool:
        """Whether nobody asks for a weight of theirs: the last layers of a tower, for one."""
        return self.names.ignored(f"{name}.weight") and not self.find(name, space)

    def bare(self, name: str, space: str) -> bool:
        """Whether a weight of theirs is a tensor that no linear holds: a convolution's filters."""
        named = self.names.read([f"{name}.weight", name], space)[0]
        return any(s.kind == "tensor" for n in named if (s := self.slots.get(n.name)))

    def place_whole(self, placed: AdapterTargets, name: str, tensor: Tensor, space: str) -> None:
        """A tensor in the place of the base's: the weight or bias of a linear or an embedding."""
        path, _, suffix = name.rpartition(".")
        found = self.find(path, space)
        slot, transform = found[0] if len(found) == 1 else (None, None)
        if slot is None or transform is not None or suffix not in ("weight", "bias"):
            known = nearest(path, [n for n, s in self.slots.items() if s.kind == "storage"])
            raise AdapterError(
                f"{name} takes the place of a tensor of the base, which is done for the weights "
                f"and biases of heads, embeddings and classifiers alone{known}; train without it"
            )
        if suffix == "bias":
            if not isinstance(slot.module, Linear) or slot.part not in slot.module.biased:
                raise AdapterError(f"{name}: the base has no such bias; it is another model")
            placed.biases.setdefault(slot.module, {})[slot.part] = tensor
            return
        if isinstance(slot.module, Linear) and len(slot.module.parts) > 1:
            raise AdapterError(
                f"{name} takes the place of one part of a fused weight; only heads, embeddings and "
                "classifiers can be exchanged whole"
            )
        if tuple(tensor.shape) != slot.shape:
            raise AdapterError(
                f"{name} has shape {tuple(tensor.shape)}, the base's {slot.shape}: tokens were "
                "added, or it was trained on another model; resize back, or merge it into its base"
            )
        placed.whole[slot.module] = tensor


def moved(factors: LowRank, transform: Transform | None, name: str) -> LowRank:
    """Factors of a weight of theirs as those of ours: what moves rows moves those of B."""
    if transform is None:
        return factors
    if isinstance(transform, Expert):
        if factors.a.dim() != 3 or len(factors.a) != transform.many:
            held = len(factors.a) if factors.a.dim() == 3 else 1
            raise AdapterError(f"{name} changes {held} experts, the base has {transform.many}")
        one = replace(factors, a=factors.a[transform.index], b=factors.b[transform.index])
        return moved(one, transform.then, name)
    if getattr(transform, "transposed", False):
        # factors lie as the product takes them, however the stack itself does
        return replace(factors, b=transform.read(factors.b.t()))
    if not transform.packed:
        raise AdapterError(f"{name}: what {transform} makes of a weight cannot be adapted")
    bias, magnitude = (
        None if v is None else transform.read(v) for v in (factors.bias, factors.magnitude)
    )
    return replace(factors, b=transform.read(factors.b), bias=bias, magnitude=magnitude)


def fitted(factors: LowRank, slot: Slot, name: str) -> LowRank:
    """The factors, if they fit the weight of a slot. Raises AdapterError."""
    n, k = slot.shape
    shapes = tuple(factors.a.shape), tuple(factors.b.shape)
    if shapes != ((factors.rank, k), (n, factors.rank)):
        raise AdapterError(
            f"{name}: A {shapes[0]} and B {shapes[1]} do not fit the base's weight of "
            f"{n} x {k}; the adapter was made for another model"
        )
    for vector in (factors.bias, factors.magnitude):
        if vector is not None and tuple(vector.shape) != (n,):
            raise AdapterError(f"{name}: a vector of shape {tuple(vector.shape)}, {n} rows wanted")
    if factors.magnitude is not None and not isinstance(slot.module, Linear):
        raise AdapterError(f"{name}: DoRA on embeddings and experts is not implemented; train LoRA")
    return factors


def describe_unmatched(names: Mapping[str, object] | list[str]) -> str:
    """The first few names, for messages."""
    listed = list(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more
