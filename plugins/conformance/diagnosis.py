"""Diagnosis of a model whose outputs differ from the reference: where, and which fix helps.

The place is the first module, in order of execution, whose inputs match the reference's and whose
output does not. The candidate fixes are `fixes.changes` and the mutants of the record; each is
applied to our model, and those that make the outputs match are listed.
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
class ModuleTrace:
    """The tensors of one module call; any of them may correspond to one of the other side."""

    inputs: list[Tensor]
    outputs: list[Tensor]


@dataclass
class ModuleComparison:
    """The deviations of a module's inputs and output from those of the reference's module."""

    path: str
    shape: tuple[int, ...]
    input_off: float
    output_off: float

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        off = f"output off by {self.output_off:.2g}, inputs by {self.input_off:.2g}"
        return f"{self.path} [{shape}]: {off}"


@dataclass
class Diagnosis:
    """`off` is the deviation of the outputs, `media` the kinds of media in the prompt, `first` the
    first module that differs, `matching` the modules inside it that do not, `not_called` modules
    that the forward pass omits, `fixes` the names of the changes that make the outputs match.
    """

    name: str
    std: float
    off: float
    media: tuple[str, ...] = ()
    first: ModuleComparison | None = None
    matching: list[str] = field(default_factory=list)
    not_called: list[str] = field(default_factory=list)
    fixes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        media = f"; media in the prompt: {', '.join(self.media)}" if self.media else ""
        lines = [
            f"{self.name} does not match its reference: max deviation {self.off:.2g}, expected at "
            f"most {BAR:g} of the reference's standard deviation, weights N(0, {self.std:g})"
            f"{media}",
            f"first module that differs: {self.first or 'none that both models have'}",
        ]
        if self.matching:
            lines.append(f"submodules that match: {', '.join(self.matching)}")
        if self.not_called:
            lines.append(f"modules never called: {', '.join(self.not_called)}")
        lines += [f"matches if: {name}" for name in self.fixes]
        if not self.fixes:
            lines.append("no known change makes the outputs match")
        return "\n".join(lines)


def diagnose(tiny: Subject, loaded: LoadedModel | None = None) -> Diagnosis:
    """Compare our model, `loaded` or loaded anew, with the reference."""
    loaded = loaded or tiny.load()
    example, off = first_failing(tiny, loaded)
    media = tuple(item.kind for item in example.prompt.items)
    found = Diagnosis(tiny.name, tiny.std, off, media)
    unfuse(loaded.model)
    if tiny.off(tiny.engine(loaded)) <= BAR:
        found.fixes = [PLAIN]
        return found
    found.fixes = [
        mutant.name
        for mutant in (*changes(loaded.model, tiny.raw_config), *record_mutants(tiny, loaded.model))
        if is_fix(tiny, loaded, mutant)
    ]
    compared, found.not_called = compare(tiny, loaded, example)
    found.first = first_difference(compared)
    if found.first is not None:
        inside = f"{found.first.path}."
        found.matching = [
            c.path for c in compared if c.path.startswith(inside) and c.output_off <= BAR
        ]
    return found


def first_failing(tiny: Subject, loaded: LoadedModel) -> tuple[Example, float]:
    """The first example that fails, text before media, and its deviation; else the last one."""
    engine = tiny.engine(loaded)
    for example, expected in tiny.cases:
        off = deviation(tiny.answer(engine, example), expected)
        if off > BAR:
            break
    return example, off


def record_mutants(tiny: Subject, model: Model) -> list[Mutant]:
    """The mutants of the record that are not generic; one of them may undo the bug."""
    known = {mutant.name for mutant in mutants.generic(model)}
    return [mutant for mutant in mutants.of(tiny.record, model) if mutant.name not in known]


def is_fix(tiny: Subject, loaded: LoadedModel, mutant: Mutant) -> bool:
    """Whether our model matches the reference with a change applied.

    A change may not fit the model's modules: one that raises is not a fix.
    """
    try:
        with applied(mutant, loaded.model):
            return tiny.off(tiny.engine(loaded)) <= BAR
    except Exception:
        return False


def compare(
    tiny: Subject, loaded: LoadedModel, example: Example
) -> tuple[list[ModuleComparison], list[str]]:
    """The modules of both sides, in our order of execution, and our norms that were not called."""
    theirs: dict[str, ModuleTrace] = {}
    ours: dict[str, ModuleTrace] = {}
    model = loaded.model
    found = match_modules(tiny, model)
    reference = tiny.reference if isinstance(tiny.reference, Module) else Module()
    with traced(reference, lambda path, trace: theirs.setdefault(path, trace)):
        tiny.reference_output(example)
    with traced(model, lambda path, trace: ours.setdefault(path, trace)):
        tiny.answer(tiny.engine(loaded), example)
    order = {path: i for i, path in enumerate(ours)}
    pairs = [(p, at, span) for p, (at, span) in found.items() if p in theirs and at in ours]
    compared = []
    for path, at, span in sorted(pairs, key=lambda pair: order[pair[1]]):
        output_off = closest(ours[at].outputs, theirs[path].outputs, span)
        if output_off is not None:
            input_off = closest(ours[at].inputs, theirs[path].inputs) or 0.0
            compared.append(
                ModuleComparison(path, tuple(theirs[path].outputs[0].shape), input_off, output_off)
            )
    norms = [p for p, m in model.named_modules() if "norm" in type(m).__name__.lower()]
    return compared, [path for path in norms if path not in ours]


def first_difference(compared: list[ModuleComparison], scope: str = "") -> ModuleComparison | None:
    """The innermost module whose inputs match and whose output does not.

    The search goes from outer to inner modules. In each scope it takes the last module with a wrong
    output before the first one with wrong inputs: an earlier one may differ without effect, for
    example if one side scales embeddings inside a module and the other after it.
    """
    inside = [each for each in compared if each.path.startswith(scope)]
    paths = {each.path for each in inside}
    found = None
    for each in inside:
        if any(each.path.startswith(f"{path}.") for path in paths):
            continue
        if each.input_off > BAR:
            break
        if each.output_off > BAR:
            found = each
    return found and (first_difference(compared, f"{found.path}.") or found)


def match_modules(tiny: Subject, model: Model) -> dict[str, tuple[str, Span]]:
    """Map paths of the reference's modules to our module, and to the columns of a fused linear."""
    found: dict[str, tuple[str, Span]] = {p: (p, None) for p, _ in model.named_modules() if p}
    names = tiny.names
    for path, module in model.named_modules():
        known: dict[str, tuple[str, Span]] = {f"{path}.weight": (path, None)}
        if isinstance(module, Linear):
            for slot in module.slots(path):
                if slot.kind == "storage":
                    known[f"{slot.name}.weight"] = (path, module.span(slot.part))
        for name, location in known.items():
            theirs = names.write(name).theirs.removesuffix(".weight")
            found.setdefault(theirs, location)
    prefix = getattr(tiny.reference, "base_model_prefix", "")
    if prefix:
        found |= {f"{prefix}.{path}": location for path, location in found.items()}
    return found


@contextmanager
def traced(model: Module, note: Callable[[str, ModuleTrace], object]) -> Iterator[None]:
    """Call `note` with the inputs and outputs of every module, in the order in which calls end."""
    with ExitStack() as hooks:
        for path, module in model.named_modules():

            def hook(module: Module, args: Any, kwargs: Any, out: Any, *, path: str = path) -> None:
                note(path, ModuleTrace(tensors([*args, *kwargs.values()]), tensors(out)))

            handle = module.register_forward_hook(hook, with_kwargs=True)
            hooks.callback(handle.remove)
        yield


def tensors(value: Any) -> list[Tensor]:
    """The first tensor; with a residual beside it, also the residual and the sum of both."""
    values = list(value.values()) if isinstance(value, Mapping) else value
    values = values if isinstance(values, tuple | list) else [values]
    found = [v.detach().to("cpu", copy=True) for v in values if isinstance(v, Tensor)]
    if len(found) > 1 and found[0].shape == found[1].shape and found[0].is_floating_point():
        return [*found[:2], found[0] + found[1]]
    return found[:1]


def closest(ours: list[Tensor], theirs: list[Tensor], span: Span = None) -> float | None:
    """The least deviation of two tensors of one shape, or None if no two have one.

    Our tensor is also compared after a softmax: routers return scores before or after it.
    """
    found = []
    for a in ours:
        for b in theirs:
            a = a[..., span] if span else a
            b = align_rows(b, len(a))
            if a.is_floating_point() and b.is_floating_point() and a.numel() == b.numel():
                b = b.reshape(a.shape)
                found += [0.0 if torch.equal(c, b) else deviation(c, b) for c in (a, a.softmax(-1))]
    return min(found, default=None)


def align_rows(theirs: Tensor, rows: int) -> Tensor:
    """A reference tensor [1, rows, ...] or [1, heads, rows, ...] as [rows, ...]."""
    x = theirs[0] if theirs.dim() > 2 and len(theirs) == 1 else theirs
    return x.transpose(0, 1) if x.dim() > 2 and len(x) != rows == x.shape[1] else x
