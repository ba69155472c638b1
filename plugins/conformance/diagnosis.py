"""What is wrong with a model whose answer is not its reference's.

Two questions are asked. Where does it begin: which is the first module, in the order of execution,
whose inputs agree with the reference's and whose output does not? And what is it: which change of
ours (`changes`, and the mutants that its record names) makes the two equal?
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ostro.core.load.model import LoadedModel
from ostro.core.nn import Linear, Model, Module
from ostro.core.records import Mutant
from ostro.plugins.conformance import mutants
from ostro.plugins.conformance.examples import Example
from ostro.plugins.conformance.fixes import applied, changes
from ostro.plugins.conformance.mutants import unfuse
from ostro.plugins.conformance.parity import BAR, Subject, deviation

Span = slice | None
PLAIN = "plain compositions instead of fused kernels"


@dataclass
class Seen:
    """What went through a module: each a list of tensors that may be what the other side has."""

    inputs: list[Tensor]
    outputs: list[Tensor]


@dataclass
class Compared:
    """A module that both sides have: how far its inputs and its output are from the reference's."""

    path: str
    shape: tuple[int, ...]
    before: float
    after: float

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"{self.path} [{shape}]: output off by {self.after:.2g}, inputs by {self.before:.2g}"


@dataclass
class Diagnosis:
    """`off`: the answer's deviation; `seen`: the media of its prompt; `first`: where it begins;
    `equal_if`: names of changes.
    """

    name: str
    std: float
    off: float
    seen: tuple[str, ...] = ()
    first: Compared | None = None
    agreeing: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    equal_if: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        media = f"; in the prompt: {', '.join(self.seen)}" if self.seen else ""
        lines = [
            f"{self.name} is not its reference: off by {self.off:.2g} of the reference's standard "
            f"deviation, {BAR:g} is allowed (weights of spread {self.std:g}{media})",
            f"first module that differs: {self.first or 'none of those that both sides have'}",
        ]
        if self.agreeing:
            lines.append(f"agreeing inside it: {', '.join(self.agreeing)}")
        if self.silent:
            lines.append(f"never called: {', '.join(self.silent)}")
        lines += [f"equal if: {name}" for name in self.equal_if]
        if not self.equal_if:
            lines.append("no change that is known makes them equal")
        return "\n".join(lines)


def diagnose(tiny: Subject, loaded: LoadedModel | None = None) -> Diagnosis:
    """Compare ours, loaded as it is or given, with the reference."""
    loaded = loaded or tiny.load()
    example, off = worst(tiny, loaded)
    seen = tuple(item.kind for item in example.prompt.items)
    found = Diagnosis(tiny.name, tiny.std, off, seen)
    unfuse(loaded.model)
    if tiny.off(tiny.engine(loaded)) <= BAR:
        found.equal_if = [PLAIN]
        return found
    found.equal_if = [
        mutant.name
        for mutant in (*changes(loaded.model, tiny.raw_config), *own(tiny, loaded.model))
        if equal(tiny, loaded, mutant)
    ]
    compared, found.silent = compare(tiny, loaded, example)
    found.first = culprit(compared)
    if found.first is not None:
        inside = f"{found.first.path}."
        found.agreeing = [c.path for c in compared if c.path.startswith(inside) and c.after <= BAR]
    return found


def worst(tiny: Subject, loaded: LoadedModel) -> tuple[Example, float]:
    """The first example that is red, text before media, and how far ours is off; or the last."""
    engine = tiny.engine(loaded)
    for example, expected in tiny.cases:
        off = deviation(tiny.answer(engine, example), expected)
        if off > BAR:
            break
    return example, off


def own(tiny: Subject, model: Model) -> list[Mutant]:
    """The mutants that the record names: one may be what undoes the bug."""
    known = {mutant.name for mutant in mutants.generic(model)}
    return [mutant for mutant in mutants.of(tiny.record, model) if mutant.name not in known]


def equal(tiny: Subject, loaded: LoadedModel, mutant: Mutant) -> bool:
    """Whether ours is its reference once a change is made.

    Changes are guesses about modules that may be anything: one that raises is a wrong guess.
    """
    try:
        with applied(mutant, loaded.model):
            return tiny.off(tiny.engine(loaded)) <= BAR
    except Exception:
        return False


def compare(
    tiny: Subject, loaded: LoadedModel, example: Example
) -> tuple[list[Compared], list[str]]:
    """All modules that both sides have, in our order, and norms that nobody called."""
    theirs: dict[str, Seen] = {}
    ours: dict[str, Seen] = {}
    model = loaded.model
    found = places(tiny, model)
    reference = tiny.reference if isinstance(tiny.reference, Module) else Module()
    with watched(reference, lambda path, seen: theirs.setdefault(path, seen)):
        tiny.said(example)
    with watched(model, lambda path, seen: ours.setdefault(path, seen)):
        tiny.answer(tiny.engine(loaded), example)
    order = {path: place for place, path in enumerate(ours)}
    pairs = [(p, at, span) for p, (at, span) in found.items() if p in theirs and at in ours]
    compared = []
    for path, at, span in sorted(pairs, key=lambda pair: order[pair[1]]):
        after = closest(ours[at].outputs, theirs[path].outputs, span)
        if after is not None:
            before = closest(ours[at].inputs, theirs[path].inputs) or 0.0
            compared.append(Compared(path, tuple(theirs[path].outputs[0].shape), before, after))
    norms = [p for p, m in model.named_modules() if "norm" in type(m).__name__.lower()]
    return compared, [path for path in norms if path not in ours]


def culprit(compared: list[Compared], scope: str = "") -> Compared | None:
    """The innermost module whose inputs agree and whose output does not.

    From the outside in: of the modules directly in a scope, in order, the last that goes wrong
    before one is handed what is wrong. An earlier one may be wrong without harm, as where one side
    scales embeddings inside of a module and the other behind it.
    """
    inside = [each for each in compared if each.path.startswith(scope)]
    paths = {each.path for each in inside}
    found = None
    for each in inside:
        if any(each.path.startswith(f"{path}.") for path in paths):
            continue
        if each.before > BAR:
            break
        if each.after > BAR:
            found = each
    return found and (culprit(compared, f"{found.path}.") or found)


def places(tiny: Subject, model: Model) -> dict[str, tuple[str, Span]]:
    """Paths of the reference's modules, and where in ours each is: a module, or a part of one."""
    found: dict[str, tuple[str, Span]] = {p: (p, None) for p, _ in model.named_modules() if p}
    names = tiny.names
    for path, module in model.named_modules():
        known: dict[str, tuple[str, Span]] = {f"{path}.weight": (path, None)}
        if isinstance(module, Linear):
            for slot in module.slots(path):
                if slot.kind == "storage":
                    known[f"{slot.name}.weight"] = (path, module.span(slot.part))
        for name, place in known.items():
            theirs = names.write(name).theirs.removesuffix(".weight")
            found.setdefault(theirs, place)
    prefix = getattr(tiny.reference, "base_model_prefix", "")
    return found | {f"{prefix}.{path}": place for path, place in found.items() if prefix}


@contextmanager
def watched(model: Module, note: Callable[[str, Seen], object]) -> Iterator[None]:
    """Note what goes through every module, in the order in which they end."""
    with ExitStack() as hooks:
        for path, module in model.named_modules():

            def hook(module: Module, args: Any, kwargs: Any, out: Any, *, path: str = path) -> None:
                note(path, Seen(tensors([*args, *kwargs.values()]), tensors(out)))

            handle = module.register_forward_hook(hook, with_kwargs=True)
            hooks.callback(handle.remove)
        yield


def tensors(value: Any) -> list[Tensor]:
    """The first tensor; where a residual travels beside it, that and the sum of both as well."""
    values = list(value.values()) if isinstance(value, Mapping) else value
    values = values if isinstance(values, tuple | list) else [values]
    found = [v.detach().clone() for v in values if isinstance(v, Tensor)]
    if len(found) > 1 and found[0].shape == found[1].shape and found[0].is_floating_point():
        return [*found[:2], found[0] + found[1]]
    return found[:1]


def closest(ours: list[Tensor], theirs: list[Tensor], span: Span = None) -> float | None:
    """The least deviation of any two of one shape; None where none can be compared.

    Routers may give their scores before the softmax or after it.
    """
    found = []
    for a in ours:
        for b in theirs:
            a = a[..., span] if span else a
            b = flat(b, len(a))
            if a.is_floating_point() and b.is_floating_point() and a.numel() == b.numel():
                b = b.reshape(a.shape)
                found += [0.0 if torch.equal(c, b) else deviation(c, b) for c in (a, a.softmax(-1))]
    return min(found, default=None)


def flat(theirs: Tensor, rows: int) -> Tensor:
    """Theirs as ours is, [rows, ...]: it may be [1, rows, ...] or [1, heads, rows, ...]."""
    x = theirs[0] if theirs.dim() > 2 and len(theirs) == 1 else theirs
    return x.transpose(0, 1) if x.dim() > 2 and len(x) != rows == x.shape[1] else x
