"""`ostro adapters check REF...`: check adapters and their effect on a model."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ostro.core.errors import AdapterNotFound, OstroError
from ostro.entrypoints.cli.options import (
    OneModel,
    add_hub_options,
    add_plugin_option,
    parse_settings,
)
from ostro.entrypoints.cli.parser import Advanced

if TYPE_CHECKING:
    from ostro.core.adapters.weights import AdapterWeights
    from ostro.core.plugins.manager import PluginManager
    from ostro.core.settings import Settings
    from ostro.entrypoints.python.model import LocalModel

NAME = "adapter"
SHOWN = 3
"""Number of largest and smallest norms, and of names in a list, to print."""


@dataclass
class Checked:
    """The result for one adapter; `error` is None if it is accepted.

    norms: of scale * B A by weight, including the members of an X-LoRA. effect: relative change of
    the base's last hidden states. matched: number of its weights that the base has. Both are None
    without a base. duplicates: other references with the same generation, that is, the same files.
    missing: the reference was not found.
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
    duplicates: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    error: str | None = None
    missing: bool = False


def add_base_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that select the base model of adapters."""
    add = parser.add_argument
    add(
        "-m",
        "--model",
        metavar="REF",
        action=OneModel,
        help="base model: folder, org/name[@revision] or alias (default: none)",
    )
    add("--arch", metavar="NAME", help=Advanced("architecture (default: as the checkpoint states)"))
    add_hub_options(parser)
    add(
        "--allow-config",
        action="append",
        default=[],
        metavar="KEY",
        help=Advanced("accept this unknown key of config.json"),
    )
    add_plugin_option(parser)
    parser.set_defaults(dummy_weights=None)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read adapters and print their properties. With -m, load that model and measure the effect "
        "of each adapter on it. The exit code is 1 if an adapter is rejected, else 3 if one is not "
        "found."
    )
    parser.add_argument("verb", choices=["check"], help="the action: check")
    parser.add_argument(
        "references", nargs="+", metavar="REF", help="folder, file or org/name on the hub"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_base_options(parser)


def run(args: argparse.Namespace) -> int:
    from ostro.core.plugins.manager import PluginManager
    from ostro.entrypoints.python.load import load_text

    settings, plugins = parse_settings(args), PluginManager()
    plugins.load(settings, args.plugin)
    base = nullcontext() if args.model is None else load_text(settings, args.plugin)
    with base as model:
        found = [check(reference, settings, plugins, model) for reference in args.references]
    find_identical(found)
    if args.json:
        print(json.dumps([asdict(each) for each in found], indent=2))
    else:
        for each in found:
            show(each)
    errors = [each for each in found if each.error is not None]
    if errors and all(each.missing for each in errors):
        return AdapterNotFound.exit_code
    return int(bool(errors))


def check(
    reference: str, settings: Settings, plugins: PluginManager, model: LocalModel | None
) -> Checked:
    """Check an adapter's files and, with a model, its effect."""
    from ostro.core.adapters.loader import locate, read_weights

    found = Checked(reference)
    try:
        weights = read_weights(locate(reference, settings, plugins), plugins)
        describe(found, weights)
        if model is not None and found.error is None:
            try_on(found, weights, model)
    except OstroError as error:
        found.error, found.missing = str(error), isinstance(error, AdapterNotFound)
    return found


def describe(found: Checked, weights: AdapterWeights) -> None:
    """Record an adapter's properties, with a warning for products that are zero."""
    from ostro.core.adapters.loader import norm

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
        found.error = "every product B A is zero; the adapter was saved before it was trained"
    elif zeros:
        found.warnings.append(
            f"{len(zeros)} of {len(found.norms)} products are zero: {some(zeros)}"
        )


def try_on(found: Checked, weights: AdapterWeights, model: LocalModel) -> None:
    """Record an adapter's effect on a model. Raises AdapterError if the model rejects it."""
    found.matched = 0
    for each in weights.members or [weights]:
        targets = model.registry.loader.resolver.resolve(each)
        found.matched += len(targets.matched)
        found.unmatched += targets.unmatched
    found.effect = model.load_adapter(NAME, found.reference).effect
    model.unload_adapter(NAME)
    if found.effect is None:
        found.warnings.append("effect not measured: text does not pass through the adapted modules")
    trained_on = Path(found.base).name
    if trained_on and trained_on.lower() not in (model.name.lower(), original(model).lower()):
        found.warnings.append(f"trained for {found.base}, not for {model.name}")


def original(model: LocalModel) -> str:
    """The name of a model in its own config, "" if it has none."""
    return Path(str(model.loaded.raw_config.get("_name_or_path", ""))).name


def find_identical(found: list[Checked]) -> None:
    """Record which adapters are the same."""
    for each in found:
        if each.generation:
            others = [o for o in found if o is not each and o.generation == each.generation]
            each.duplicates = [other.reference for other in others]


def show(found: Checked) -> None:
    """Print the result for an adapter."""
    print(f"{found.reference}: {found.error or 'ok'}")
    if found.kind:
        about = f"{found.members} members, " if found.members else ""
        print(f"  {found.kind}, {about}rank {found.rank}, {found.nbytes:,} bytes")
        print(f"  generation {found.generation}")
        print(f"  base {found.base or 'not stated'}")
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
        print(f"  effect {found.effect:.4g}, relative to the base's hidden states")
    for reference in found.duplicates:
        print(f"  identical to {reference}")
    for warning in found.warnings:
        print(f"  warning: {warning}")


def some(names: list[str]) -> str:
    """The first names of a list, and the number of the others."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
