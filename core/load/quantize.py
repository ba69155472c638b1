"""In-situ quantization: quantize float weights of a checkpoint while they are read.

A *plan* holds the format of each weight. Weights are read and quantized one at a time: peak memory
is the quantized model plus one weight. Weights that are quantized in the checkpoint, routers, and
tensors that are not weights of linears are unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from ostro.core.errors import UsageError, nearest
from ostro.core.load.importance import read_importance, slot_importance
from ostro.core.load.names import Names
from ostro.core.load.open import open_container
from ostro.core.nn import Embedding, Head, Router
from ostro.core.nn.linear import WeightSlot
from ostro.core.nn.storage import QuantizingStorageClass, Storage
from ostro.core.placement.patterns import PatternRule, ancestors, read_rules, regex
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Format, Planner, Quantizer, resolve
from ostro.core.settings import Settings

SHORT: Mapping[str, str] = {bits: f"q{bits}k" for bits in "23456"} | {"8": "q8_0"}
"""Formats by number of bits, the same as in mistral.rs on CPU and CUDA."""

FLOAT_FORMAT = "float"
"""The format name for weights that are not quantized."""


@dataclass(frozen=True)
class Maker:
    """A format and the quantizer that makes it."""

    format: Format
    quantizer: Quantizer

    def make(self, weight: Tensor, dtype: torch.dtype, importance: Tensor | None) -> Storage:
        storage: QuantizingStorageClass = resolve(self.quantizer.storage)
        weighs = importance if self.format.importance else None
        return storage.quantize(weight, self.format.name, dtype, weighs)


def makers(plugins: PluginManager) -> dict[str, Maker]:
    """The formats of all installed quantizers, by name; the first of a name wins."""
    found: dict[str, Maker] = {}
    for quantizer in plugins.collect("quantizers").values():
        for format in quantizer.makes:
            found.setdefault(format.name, Maker(format, quantizer))
    return found


def find(
    name: str, known: Mapping[str, Maker], option: str = "--quant", others: Iterable[str] = ()
) -> Maker:
    """The maker of a format in any spelling (q4k, Q4_K, 4).

    Raises UsageError, which lists the formats and `others`, descriptions of other valid values.
    """
    bare = plain(SHORT.get(name, name))
    for each, maker in known.items():
        if plain(each) == bare:
            return maker
    expected = ", ".join([*sorted(known), "a number of bits", *others])
    raise UsageError(
        f"{option}: unknown format {name!r}{nearest(name, list(known))}; expected one of {expected}"
    )


def check_conflicts(names: Iterable[str], plugins: PluginManager) -> None:
    """Raise PluginError if several plugins make one of these formats."""
    for name in dict.fromkeys(names):
        bare = plain(SHORT.get(name, name))
        plugins.claimant("quantizers", partial(makes, bare), f"the format {name!r:.60}")


def makes(bare: str, record: Quantizer) -> bool:
    """Whether a quantizer makes the format of a name in its canonical spelling."""
    return any(plain(format.name) == bare for format in record.makes)


def plain(name: str) -> str:
    """A format name in its canonical spelling, for comparison."""
    return name.lower().replace("_", "").replace("-", "")


@dataclass
class QuantizationPlan:
    """The format of each weight.

    known       the installed formats, by name
    default     the format of weights that match no rule
    rules       patterns of slot names with format names; the last match wins
    sensitive   patterns of weights that get the format's sensitive variant, like embeddings, heads
    importance  importance [k] of columns, by slot
    notes       deviations from the request, by slot
    planner     set while a planner still has to choose the formats
    chosen      the formats that the planner chose, by slot
    outcome     the planner's summary
    """

    known: Mapping[str, Maker]
    default: Maker | None
    rules: Sequence[PatternRule] = ()
    sensitive: Sequence[str] = ()
    importance: Mapping[str, Tensor] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    planner: Planner | None = None
    chosen: Mapping[str, Maker | None] = field(default_factory=dict)
    outcome: str = ""

    def __post_init__(self) -> None:
        self.named = [
            (regex(rule.pattern, "--topology"), self.maker(rule.target)) for rule in self.rules
        ]

    def check(self, slots: Iterable[WeightSlot]) -> None:
        """Raise UsageError for a rule that matches no weight."""
        slots = [slot for slot in slots if slot.kind == "storage"]
        for rule, (pattern, _) in zip(self.rules, self.named, strict=True):
            if not any(matches(pattern, slot) for slot in slots):
                near = nearest(rule.pattern, {slot.name.rpartition(".")[2] for slot in slots})
                raise UsageError(
                    f"--topology: {rule.pattern!r} matches no weight of this model{near}"
                )

    def maker(self, name: str) -> Maker | None:
        return None if name == FLOAT_FORMAT else find(name, self.known, "--topology")

    def choose(self, slot: WeightSlot) -> Maker | None:
        """The format of a slot, or None if it is not quantized."""
        if slot.name in self.chosen:
            return self.chosen[slot.name]
        if isinstance(slot.module, Router):
            return None
        matching = [maker for pattern, maker in self.named if matches(pattern, slot)]
        maker = matching[-1] if matching else self.default
        if maker is None:
            return None
        if not matching and self.is_sensitive(slot) and maker.format.sensitive:
            maker = find(maker.format.sensitive, self.known)
        return self.fit(slot, maker)

    def is_sensitive(self, slot: WeightSlot) -> bool:
        """Whether a slot is an embedding, a head, or named by the architecture's record."""
        named = any(fnmatchcase(slot.name, pattern) for pattern in self.sensitive)
        return named or isinstance(slot.module, Embedding | Head)

    def fit(self, slot: WeightSlot, maker: Maker) -> Maker | None:
        """The format, or the first of its fallbacks whose block divides the rows of a slot."""
        k, requested = slot.shape[-1], maker.format
        fits: Maker | None = maker
        while fits is not None and k % fits.format.block:
            instead = fits.format.instead
            fits = find(instead, self.known) if instead else None
        if fits is not maker:
            taken = f"uses {fits.format.name}" if fits else "not quantized"
            self.notes[slot.name] = (
                f"{k} columns are not a multiple of {requested.name}'s block of "
                f"{requested.block}: {taken}"
            )
        return fits

    def nbytes(self, slot: WeightSlot) -> int | None:
        """The approximate bytes of a slot, or None if it is not quantized."""
        maker = self.choose(slot)
        return None if maker is None else int(prod(slot.shape) * maker.format.bits / 8)

    def describe(self) -> list[str]:
        """The planner's summary, and a line for each deviation from the request."""
        notes = [f"quantize: {name}: {note}" for name, note in self.notes.items()]
        return [self.outcome, *notes] if self.outcome else notes

    def make(self, slot: WeightSlot, weight: Tensor, dtype: torch.dtype) -> Storage | None:
        """Quantize a float weight; None if its slot is not quantized."""
        maker = self.choose(slot)
        if maker is None:
            return None
        return maker.make(weight, dtype, self.importance.get(slot.name))


def matches(pattern: re.Pattern[str], slot: WeightSlot) -> bool:
    """Whether a pattern matches a slot's name or the path of a module above it."""
    return any(map(pattern.fullmatch, (slot.name, *ancestors(slot.name))))


def read_plan(
    settings: Settings,
    sensitive: Sequence[str],
    names: Names,
    slots: Sequence[WeightSlot],
    plugins: PluginManager,
) -> QuantizationPlan | None:
    """The plan of the user's settings, or None without --quant and --topology.

    If a planner claims `--quant`, the plan has no formats yet. Raises UsageError for unknown
    formats, PluginError for those of several plugins, CheckpointError for a damaged importance
    file.
    """
    quant, topology = settings.quant, settings.topology
    if quant is None and topology is None:
        if settings.importance is not None:
            raise UsageError("--importance: requires --quant; add --quant FORMAT")
        return None
    known = makers(plugins)
    rules = [] if topology is None else read_rules(topology, "--topology")
    planner: Planner | None = None
    if quant is not None:  # None also if the value names a format
        planner = plugins.claimant("planners", lambda p: p.claims(quant), f"--quant {quant}")
    usages = (each.usage for each in plugins.collect("planners").values())
    check_conflicts([*filter(None, [quant]), *(rule.target for rule in rules)], plugins)
    default = None if quant is None or planner else find(quant, known, others=usages)
    importance: dict[str, Tensor] = {}
    if settings.importance is not None:
        file = Path(settings.importance)
        found = read_importance(file, lambda path: open_container(path, plugins))
        importance = slot_importance(found, names, slots, file.name)
    plan = QuantizationPlan(known, default, rules, sensitive, importance, planner=planner)
    plan.check(slots)
    return plan
