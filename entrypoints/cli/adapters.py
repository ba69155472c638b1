"""`ostro adapters check DIR...`: what adapters are, and what they do to a model."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ostro.core.errors import OstroError
from ostro.entrypoints.cli.options import settings

if TYPE_CHECKING:
    from ostro.core.adapters.weights import AdapterWeights
    from ostro.core.plugins import PluginManager
    from ostro.core.records import Settings
    from ostro.entrypoints.python import Text

NAME = "adapter"
SHOWN = 3
"""Norms at either end that are shown, and names of a list."""


@dataclass
class Checked:
    """What is known of one adapter; `error` says why it is refused.

    `norms` are those of scale * B A by weight, of all members' of an X-LoRA. `effect` is how much
    it changes the last hidden states of the base, `matched` how many of its weights the base has;
    None where no base was loaded. `twins` are other references with the same generation.
    """

    reference: str
    kind: str = ""
    base: str = ""
    rank: int = 0
    members: int = 0
    generation: str = ""
    nbytes: int = 0
    modules: int = 0
    matched: int | None = None
    unmatched: list[str] = field(default_factory=list)
    norms: dict[str, float] = field(default_factory=dict)
    effect: float | None = None
    twins: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    error: str | None = None


def add_base_options(parser: argparse.ArgumentParser) -> None:
    """Declare what says which model adapters are for, as `add_model_options` does for all of it."""
    add = parser.add_argument
    add("-m", "--model", metavar="REF", help="folder or org/name[@revision]; default: the starter")
    add("--arch", metavar="NAME", help="the architecture, where a checkpoint does not say it")
    add("--revision", metavar="REV", help="branch, tag or commit on the hub")
    add("--token-source", metavar="SRC", help="the hub's token: env:NAME, file:PATH, cache, none")
    add("--offline", action="store_true", help="never ask the hub; use what is cached")
    add("--allow-config", action="append", default=[], metavar="KEY", help="let a config key pass")
    add("--plugin", action="append", default=[], metavar="PATH", help="use a plugin from a folder")
    parser.set_defaults(dummy_weights=None)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read adapters and say what they are. With -m, load the model and show that they do "
        "something to it. The exit code is 1 if one is refused."
    )
    parser.add_argument("verb", choices=["check"], help="what to do with them")
    parser.add_argument("references", nargs="+", metavar="DIR", help="folder, file or hub id")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_base_options(parser)


def run(args: argparse.Namespace) -> int:
    from ostro.core.plugins import PluginManager
    from ostro.entrypoints.python import load_text

    asked, plugins = settings(args), PluginManager()
    plugins.load(asked, args.plugin)
    base = nullcontext() if args.model is None else load_text(asked, args.plugin)
    with base as model:
        found = [check(reference, asked, plugins, model) for reference in args.references]
    find_twins(found)
    if args.json:
        print(json.dumps([asdict(each) for each in found], indent=2))
    else:
        for each in found:
            show(each)
    return int(any(each.error is not None for each in found))


def check(reference: str, asked: Settings, plugins: PluginManager, model: Text | None) -> Checked:
    """What an adapter's files say, and what it does to a model where there is one."""
    from ostro.core.adapters.reading import locate, read_weights

    found = Checked(reference)
    try:
        weights = read_weights(locate(reference, asked, plugins), plugins)
        describe(found, weights)
        if model is not None and found.error is None:
            try_on(found, weights, model)
    except OstroError as error:
        found.error = str(error)
    return found


def describe(found: Checked, weights: AdapterWeights) -> None:
    """Note what an adapter is, and warn of what does nothing."""
    from ostro.core.adapters.reading import norm

    found.kind, found.base, found.generation = weights.kind, weights.base, weights.generation
    found.nbytes, found.members = weights.nbytes, len(weights.members)
    for number, each in enumerate(weights.members or [weights]):
        above = f"{number}: " if weights.members else ""
        for name, factors in each.weights.items():
            found.norms[above + name] = norm(factors)
            found.rank = max(found.rank, factors.rank)
    found.modules = len(found.norms) + len(weights.whole)
    special = weights.whole or any(f.magnitude is not None for f in weights.weights.values())
    zeros = [name for name, size in found.norms.items() if size == 0]
    if zeros and len(zeros) == len(found.norms) and not special:
        found.error = "every product of its factors is zero; it was saved before it was trained"
    elif zeros:
        found.warnings.append(
            f"{len(zeros)} of {len(found.norms)} products are zero: {some(zeros)}"
        )


def try_on(found: Checked, weights: AdapterWeights, model: Text) -> None:
    """Note what an adapter does to a model. Raises AdapterError where that refuses it."""
    found.matched = 0
    for each in weights.members or [weights]:
        placed = model.registry.shelf.places.place(each)
        found.matched += len(placed.matched)
        found.unmatched += placed.unmatched
    found.effect = model.load_adapter(NAME, found.reference).effect
    model.unload_adapter(NAME)
    if found.effect is None:
        found.warnings.append("it was not shown to do anything: text does not pass through it")
    mine = Path(found.base).name
    if mine and mine.lower() not in (model.name.lower(), original(model).lower()):
        found.warnings.append(f"it was made for {found.base}, not for {model.name}")


def original(model: Text) -> str:
    """The name that a model's own config has for it."""
    return Path(str(model.loaded.raw_config.get("_name_or_path", ""))).name


def find_twins(found: list[Checked]) -> None:
    """Note which adapters are the same."""
    for each in found:
        if each.generation:
            others = [o for o in found if o is not each and o.generation == each.generation]
            each.twins = [other.reference for other in others]


def show(found: Checked) -> None:
    """What is known of an adapter, a line each."""
    print(f"{found.reference}: {found.error or 'fine'}")
    if found.kind:
        about = f"{found.members} members, " if found.members else ""
        print(f"  {found.kind}, {about}rank {found.rank}, {found.nbytes:,} bytes")
        print(f"  generation {found.generation}")
        print(f"  made for {found.base or 'a base that it does not name'}")
        known = "" if found.matched is None else f", {found.matched} in the base"
        print(f"  {found.modules} weights{known}")
    if found.unmatched:
        print(f"  not in the base: {some(found.unmatched)}")
    sizes = sorted(found.norms, key=lambda name: -found.norms[name])
    ends = {"largest": sizes[:SHOWN], "smallest": sizes[SHOWN:][-SHOWN:]}
    for which, names in ends.items():
        if names:
            print(f"  {which}: {', '.join(f'{n} {found.norms[n]:.4g}' for n in names)}")
    if found.effect is not None:
        print(f"  effect {found.effect:.4g} of the base's hidden states")
    for twin in found.twins:
        print(f"  the same as {twin}")
    for warning in found.warnings:
        print(f"  warning: {warning}")


def some(names: list[str]) -> str:
    """The first of some names."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
