"""Find plugins: the built-in folders, entry points of installed wheels, and paths (--plugin).

Discovery does not import plugins: a `Candidate` has a function that does, or the reason not to.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import Distribution, EntryPoint, distributions
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING

from ostro.core.errors import PluginError, UsageError
from ostro.core.records import API

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

GROUP = "ostro"
FOLDERS = ("architectures", "quant", "adapters", "plugins")
SUBFOLDERS = "apis caches checkpoints logits parsers pipelines sources speculation stores".split()
"""Folders of `plugins` whose packages are plugins; every other package there is one itself."""

NO_PLUGINS = ("conformance",)
"""Packages of `plugins` that are not plugins: the conformance kit."""

BUILT_IN = "built in"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A plugin that was found and is not imported yet.

    `wheel` is the name of its distribution, or "". `refusal` is the reason not to import it.
    """

    name: str
    load: Callable[[], object]
    source: str
    version: str = ""
    wheel: str = ""
    refusal: str | None = None

    @property
    def built_in(self) -> bool:
        return self.source == BUILT_IN


def built_in() -> Iterator[Candidate]:
    """The packages in the built-in `FOLDERS`; in `plugins`, those of its `SUBFOLDERS` as well."""
    for folder in FOLDERS:
        package = import_module(f"ostro.{folder}")
        for name in _packages(list(package.__path__)):
            if folder == "plugins" and name in SUBFOLDERS:
                for inner in _packages([f"{path}/{name}" for path in package.__path__]):
                    yield _built_in(f"{folder}.{name}.{inner}")
            elif folder != "plugins" or name not in NO_PLUGINS:
                yield _built_in(f"{folder}.{name}")


def installed() -> Iterator[Candidate]:
    """The entry points of group `ostro`, by wheel, in the order of the wheels' names.

    Each wheel is read separately, so that unreadable metadata of one does not affect the others.
    """
    wheels: dict[str, Distribution] = {}
    for wheel in distributions():
        if f"[{GROUP}]" in (wheel.read_text("entry_points.txt") or ""):
            wheels.setdefault(_wheel_name(wheel), wheel)
    for name in sorted(wheels):
        yield from _entries(name, wheels[name])


def from_path(path: str | Path) -> Candidate:
    """A plugin that is not installed: a folder with an `__init__.py`, or a .py file.

    Raises UsageError if `path` is neither.
    """
    root = Path(path).expanduser().resolve()
    file = root / "__init__.py" if root.is_dir() else root
    if not file.is_file() or file.suffix != ".py":
        raise UsageError(
            f"{path} is not a plugin: expected a folder with an __init__.py, or a .py file"
        )
    if not root.stem.isidentifier():
        raise UsageError(
            f"{path} is not a plugin: {root.stem!r} is not a valid module name; rename it"
        )
    return Candidate(name=root.stem, source=str(root), load=lambda: _import_file(root.stem, file))


def _packages(paths: list[str]) -> list[str]:
    return [module.name for module in iter_modules(paths) if module.ispkg]


def _built_in(name: str) -> Candidate:
    return Candidate(name=name, source=BUILT_IN, load=lambda: import_module(f"ostro.{name}"))


def _wheel_name(wheel: Distribution) -> str:
    try:
        return wheel.metadata["Name"] or "unknown"
    except Exception:
        return "unknown"


def _entries(wheel: str, distribution: Distribution) -> Iterator[Candidate]:
    try:
        entries = sorted(distribution.entry_points.select(group=GROUP), key=lambda e: e.name)
        version = distribution.version or ""
        why = refusal(distribution)
    except Exception as error:
        entries = [EntryPoint(name=wheel, value="", group=GROUP)]
        version, why = "", f"its metadata cannot be read: {error}"
    for entry in entries:
        yield Candidate(
            name=entry.name,
            load=entry.load,
            source=f"{wheel} {version}".strip(),
            version=version,
            wheel=wheel,
            refusal=why,
        )


def refusal(wheel: Distribution) -> str | None:
    """Why the API range of a wheel excludes it; None if the range includes this version.

    The range is that of the wheel's extra `ostro`, so that installing the wheel never changes the
    installed ostro: `Requires-Dist: ostro>=0.2,<0.3; extra == 'ostro'`.
    """
    ours = ".".join(map(str, API))
    for line in wheel.requires or ():
        if "extra" not in line or GROUP not in line:
            continue
        try:
            theirs = _api_range(line)
        except ValueError:
            return f"its metadata contains the malformed line {line!r:.100}"
        if theirs is not None and not theirs.contains(ours, prereleases=True):
            return (
                f"it requires the plugin API {theirs}, this ostro has {ours}; "
                f"docs/migration-{ours}.md lists what to change in a plugin of an older API"
            )
    return None


def _api_range(line: str) -> SpecifierSet | None:
    """The API range in a `Requires-Dist` line of the extra `ostro`; None for other lines."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    requirement = Requirement(line)
    marker = requirement.marker
    if canonicalize_name(requirement.name) != GROUP or marker is None:
        return None
    only_then = marker.evaluate({"extra": GROUP}) and not marker.evaluate({"extra": ""})
    return requirement.specifier if only_then else None


def _import_file(name: str, file: Path) -> ModuleType:
    """Import a file as module `name`. Raises PluginError if another module has that name."""
    known = sys.modules.get(name)
    spec = known.__spec__ if known else find_spec(name)
    if spec and spec.origin != str(file):
        where = spec.origin or "Python itself"
        raise PluginError(f"the module {name!r} already exists in {where}; rename the plugin")
    if known:
        return known
    inside = [str(file.parent)] if file.name == "__init__.py" else None
    spec = spec_from_file_location(name, file, submodule_search_locations=inside)
    if spec is None or spec.loader is None:
        raise PluginError(f"{file} cannot be imported")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
