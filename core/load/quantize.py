"""In-situ quantization: float weights of a checkpoint are quantized while they are read.

A *plan* says which format each weight is brought to. Weights are read and quantized one at a time,
so that peak memory is the quantized model plus one weight. What a checkpoint holds quantized
already stays as it is, and so do routers, and tensors that are no weight of a linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from ostro.core.errors import UsageError, nearest
from ostro.core.load.importance import read_importance, slot_importance
from ostro.core.load.names import Names
from ostro.core.load.open import open_container
from ostro.core.nn import Embedding, Head, Router
from ostro.core.nn.linear import Slot
from ostro.core.nn.storage import Storage
from ostro.core.placement.patterns import PatternRule, ancestors, read_rules, regex
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Format, Planner, Quantizer, Settings, resolve

SHORT: Mapping[str, str] = {
    "2": "q2k",
    "3": "q3k",
    "4": "q4k",
    "5": "q5k",
    "6": "q6k",
    "8": "q8_0",
}
"""What a number of bits alone means, as mistral.rs has it for CPU and CUDA."""

FLOAT = "float"
"""The name that leaves a weight as it is."""


@dataclass(frozen=True)
class Maker:
    """A format and who makes it."""

    format: Format
    quantizer: Quantizer

    def make(self, weight: Tensor, dtype: torch.dtype, importance: Tensor | None) -> Storage:
        made: Storage = resolve(self.quantizer.storage).quantize(
            weight, self.format.name, dtype, importance if self.format.importance else None
        )
        return made


def makers(plugins: PluginManager) -> dict[str, Maker]:
    """Every format that an installed quantizer makes, by name. The first of a name has it."""
    found: dict[str, Maker] = {}
    for quantizer in plugins.collect("quantizers").values():
        for format in quantizer.makes:
            found.setdefault(format.name, Maker(format, quantizer))
    return found


def find(
    name: str,
    known: Mapping[str, Maker],
    option: str = "--quant",
    others: Iterable[str] = (),
) -> Maker:
    """The maker of a format however its name is written (q4k, Q4_K, 4).

    Raises UsageError, which names the formats and what `others` say the option may be besides.
    """
    bare = plain(SHORT.get(name, name))
    for each, maker in known.items():
        if plain(each) == bare:
            return maker
    expected = ", ".join([*sorted(known), "a number of bits", *others])
    raise UsageError(
        f"{option}: unknown format {name!r}{nearest(name, list(known))}; expected one of {expected}"
    )


def plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


@dataclass
class QuantizationPlan:
    """Which format each weight is brought to, and what came of it.

    `usual` is the format of all that no rule names; `rules` are patterns of slots' names with
    names of formats, the last that matches wins. `sensitive` are patterns of what is promoted
    beside embeddings and heads. `importance` is of columns, by slot. `notes` says what was not
    done as asked, slot by slot.
    """

    known: Mapping[str, Maker]
    usual: Maker | None
    rules: Sequence[PatternRule] = ()
    sensitive: Sequence[str] = ()
    importance: Mapping[str, Tensor] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    planner: Planner | None = None
    chosen: Mapping[str, Maker | None] = field(default_factory=dict)
    outcome: str = ""

    def __post_init__(self) -> None:
        self.named = [
            (regex(rule.pattern, "--topology"), self.maker(rule.where)) for rule in self.rules
        ]

    def check(self, slots: Iterable[Slot]) -> None:
        """Raise UsageError for a rule that means no weight."""
        slots = [slot for slot in slots if slot.kind == "storage"]
        for rule, (pattern, _) in zip(self.rules, self.named, strict=True):
            if not any(means(pattern, slot) for slot in slots):
                near = nearest(rule.pattern, {slot.name.rpartition(".")[2] for slot in slots})
                raise UsageError(
                    f"--topology: {rule.pattern!r} matches no weight of this model{near}"
                )

    def maker(self, name: str) -> Maker | None:
        return None if name == FLOAT else find(name, self.known, "--topology")

    def choose(self, slot: Slot) -> Maker | None:
        """The format of a slot, or None where it stays as it is."""
        if slot.name in self.chosen:
            return self.chosen[slot.name]
        if isinstance(slot.module, Router):
            return None
        asked = [maker for pattern, maker in self.named if means(pattern, slot)]
        maker = asked[-1] if asked else self.usual
        if maker is None:
            return None
        if not asked and self.is_sensitive(slot) and maker.format.sensitive:
            maker = find(maker.format.sensitive, self.known)
        return self.fit(slot, maker)

    def is_sensitive(self, slot: Slot) -> bool:
        """Whether many weights depend on it: an embedding, a head, what the record names."""
        named = any(fnmatchcase(slot.name, pattern) for pattern in self.sensitive)
        return named or isinstance(slot.module, Embedding | Head)

    def fit(self, slot: Slot, maker: Maker) -> Maker | None:
        """The format or the first of its stand-ins whose blocks the rows of a slot are made of."""
        k, asked = slot.shape[-1], maker.format
        fits: Maker | None = maker
        while fits is not None and k % fits.format.block:
            instead = fits.format.instead
            fits = find(instead, self.known) if instead else None
        if fits is not maker:
            taken = fits.format.name if fits else "left as it is"
            self.notes[slot.name] = (
                f"rows of {k} are no whole blocks of {asked.block} as {asked.name} wants: {taken}"
            )
        return fits

    def nbytes(self, slot: Slot) -> int | None:
        """About what a slot will take, or None where it stays as it is."""
        maker = self.choose(slot)
        return None if maker is None else int(prod(slot.shape) * maker.format.bits / 8)

    def told(self) -> list[str]:
        """What was not done as asked, a line a slot."""
        notes = [f"quantize: {name}: {note}" for name, note in self.notes.items()]
        return [self.outcome, *notes] if self.outcome else notes

    def make(self, slot: Slot, weight: Tensor, dtype: torch.dtype) -> Storage | None:
        """The storage of a float weight, or None where it stays as it is."""
        maker = self.choose(slot)
        if maker is None:
            return None
        importance = self.importance.get(slot.name)
        if importance is not None and importance.dim() == 2 and slot.expert is not None:
            importance = importance[slot.expert]
        return maker.make(weight, dtype, importance)


def means(pattern: re.Pattern[str], slot: Slot) -> bool:
    """Whether a pattern means a slot, by its name or what lies above."""
    return any(map(pattern.fullmatch, (slot.name, *ancestors(slot.name))))


def planner_of(quant: str | None, plugins: PluginManager) -> Planner | None:
    """The planner that `--quant` asks for, or None where it names a format."""
    if quant is None:
        return None
    planner: Planner | None = plugins.claimant(
        "planners", lambda record: record.claims(quant), f"--quant {quant}"
    )
    return planner


def read_plan(
    settings: Settings,
    sensitive: Sequence[str],
    names: Names,
    slots: Sequence[Slot],
    plugins: PluginManager,
) -> QuantizationPlan | None:
    """The plan that the user's words say, or None where nothing is to be quantized. Where they name
    a budget it has no usual format yet.

    Raises UsageError for words that say nothing, CheckpointError for a damaged importance file.
    """
    quant, topology = settings.quant, settings.topology
    if quant is None and topology is None:
        if settings.importance is not None:
            raise UsageError("--importance: nothing is quantized; say --quant FORMAT as well")
        return None
    known = makers(plugins)
    rules = [] if topology is None else read_rules(topology, "--topology")
    planner = planner_of(quant, plugins)
    usages = (each.usage for each in plugins.collect("planners").values())
    usual = None if quant is None or planner else find(quant, known, others=usages)
    importance: dict[str, Tensor] = {}
    if settings.importance is not None:
        file = Path(settings.importance)
        found = read_importance(file, lambda path: open_container(path, plugins))
        importance = slot_importance(found, names, slots, file.name)
    plan = QuantizationPlan(known, usual, rules, sensitive, importance, planner=planner)
    plan.check(slots)
    return plan
