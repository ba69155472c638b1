"""Check a plugin without importing it or torch: metadata, files, hooks, records, imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from ostro.core.plugins.discovery import GROUP, refusal
from ostro.core.records import API
from ostro.errors import PluginError
from ostro.plugins.authoring.contract import Source, check_module
from ostro.plugins.authoring.finding import Finding, error, warning
from ostro.plugins.authoring.imports import heavy, outside, package_of
from ostro.plugins.authoring.package import Package
from ostro.plugins.authoring.renamed import renamed

PICKLES = frozenset(".pkl .pickle .pt .pth .ckpt .bin .joblib .dill".split())
OURS = re.compile(rf"""extra\s*==\s*['"]{GROUP}['"]""")
LARGE = 10 << 20
"""Files of more bytes are weights, which belong on a hub and not into a wheel."""

RANGE = f"ostro>={API[0]}.{API[1]},<{API[0]}.{API[1] + 1}"


def check(package: Package) -> Iterator[Finding]:
    """All findings on a plugin."""
    yield from check_metadata(package)
    yield from check_contents(package)
    trees: dict[str, ast.Module] = {}
    for file in sorted(name for name in package.sizes if name.endswith(".py")):
        try:
            trees[file] = package.tree(file)
        except PluginError as broken:
            yield error(file, str(broken), "correct the file")
            continue
        yield from outside(file, trees[file])
        yield from renamed(file, trees[file], package_of(file))
    for entry in package.entries:
        module = package.file_of(entry.module)
        if module is None:
            yield error(
                f"entry point {entry.name}",
                f"{entry.module} is not among its files",
                "name a module of this project, and include it in the wheel",
            )
        elif module in trees:
            yield from check_module(Source(package, module, trees))
            yield from heavy(package, module, trees)


def check_metadata(package: Package) -> Iterator[Finding]:
    """Check the entry points, the API range, the dependencies and the licence."""
    metadata, where = package.metadata, "metadata"
    if metadata is None:
        return
    if not package.entries:
        yield error(
            where,
            f"no entry point of group {GROUP!r}: ostro will not find the plugin",
            f'add [project.entry-points.{GROUP}] with name = "your_package"',
        )
    lines = metadata.requires or []
    stated = any(names_us(line) and OURS.search(line) for line in lines)
    if why := refusal(metadata):
        yield error(where, why, f'state the range as an extra: {GROUP} = ["{RANGE}"]')
    elif not stated:
        yield warning(
            where,
            f"no extra {GROUP!r} states the plugin API that it was written for",
            f'add [project.optional-dependencies] with {GROUP} = ["{RANGE}"]',
        )
    if any(names_us(line) and "extra" not in line for line in lines):
        yield warning(
            where,
            "it depends on ostro, so that its installation can replace the installed ostro",
            f"state the range as the extra {GROUP!r} instead",
        )
    if not any(metadata.metadata.get_all(key) for key in ("License-Expression", "License")):
        yield warning(where, "it has no licence", 'add license = "..." to [project]')


def names_us(requirement: str) -> bool:
    """Whether a requirement is ostro itself, not a package such as ostro-arch-x."""
    return re.match(rf"{GROUP}\b(?![.-])", requirement.strip(), re.IGNORECASE) is not None


def check_contents(package: Package) -> Iterator[Finding]:
    """Check for files that a wheel must not contain, and for a missing py.typed."""
    for file, size in package.sizes.items():
        if PurePosixPath(file).suffix in PICKLES:
            yield error(
                file,
                "a pickle can run code when it is opened, and ostro opens none",
                "save tensors as .safetensors",
            )
        elif size > LARGE:
            yield error(
                file,
                f"{size >> 20} MB are weights, not a plugin",
                "put them on a hub and let users name them with -m",
            )
    for entry in package.entries:
        top = entry.module.split(".")[0]
        if f"{top}/__init__.py" in package.sizes and f"{top}/py.typed" not in package.sizes:
            yield warning(top, "no py.typed: types are not seen outside", "add the empty file")
