"""Read the files and metadata of a plugin from a wheel, project or folder, without importing it."""

from __future__ import annotations

import ast
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import Distribution, EntryPoint, PathDistribution
from pathlib import Path, PurePosixPath
from typing import Any

from ostro.core.plugins.discovery import GROUP
from ostro.errors import PluginError, UsageError
from ostro.plugins.authoring.source import LARGEST


class Declared(Distribution):
    """The metadata of a wheel that is not built yet, from the project's pyproject.toml."""

    def __init__(self, project: Mapping[str, Any]) -> None:
        self.project = project

    def read_text(self, filename: str) -> str | None:
        if filename == "METADATA":
            return "\n".join([*self.headers(), "", ""])
        if filename == "entry_points.txt":
            points = self.project.get("entry-points", {}).get(GROUP, {})
            return f"[{GROUP}]\n" + "".join(f"{name} = {at}\n" for name, at in points.items())
        return None

    def headers(self) -> Iterator[str]:
        yield "Metadata-Version: 2.4"
        yield f"Name: {self.project.get('name', '')}"
        yield f"Version: {self.project.get('version', '0')}"
        if licence := self.project.get("license"):
            yield f"License-Expression: {licence}"
        for line in self.project.get("dependencies", ()):
            yield f"Requires-Dist: {line}"
        for extra, lines in self.project.get("optional-dependencies", {}).items():
            for line in lines:
                joint = "and" if ";" in line else ";"
                yield f"Requires-Dist: {line} {joint} extra == '{extra}'"

    def locate_file(self, path: Any) -> Path:
        raise FileNotFoundError(path)


@dataclass(frozen=True)
class Package:
    """A plugin's files: sizes in bytes by path, and its metadata, None for a folder.

    `bare` is the name of a folder without metadata.
    """

    title: str
    sizes: Mapping[str, int]
    read_bytes: Callable[[str], bytes] = field(repr=False)
    metadata: Distribution | None = None
    bare: str = ""

    @classmethod
    def read(cls, path: Path) -> Package:
        """Read a wheel, project or plugin folder. Raises UsageError for anything else."""
        if path.is_file() and zipfile.is_zipfile(path):
            return of_wheel(path)
        if (path / "pyproject.toml").is_file():
            return of_project(path)
        if (path / "__init__.py").is_file():
            return cls(path.name, *of_folder(path.resolve().parent, path.name), bare=path.name)
        raise UsageError(
            f"{path} is not a plugin: expected a wheel, or a folder with a pyproject.toml or an "
            "__init__.py"
        )

    @cached_property
    def entries(self) -> tuple[EntryPoint, ...]:
        """The entry points of group `ostro`; for a folder without metadata, the folder itself."""
        if self.metadata is None:
            return (EntryPoint(name=self.bare, value=self.bare, group=GROUP),)
        return tuple(self.metadata.entry_points.select(group=GROUP))

    def file_of(self, module: str) -> str | None:
        """The file of a module of the plugin, or None if the plugin does not contain it."""
        stem = module.replace(".", "/")
        names = (f"{stem}/__init__.py", f"{stem}.py")
        return next((name for name in names if name in self.sizes), None)

    def tree(self, file: str) -> ast.Module:
        """Parse a source file. Raises PluginError if it is invalid or too large."""
        if self.sizes[file] > LARGEST:
            raise PluginError(f"has {self.sizes[file]} bytes; at most {LARGEST} are supported")
        try:
            return ast.parse(self.read_bytes(file).decode(), file)
        except (SyntaxError, ValueError, MemoryError, zipfile.BadZipFile) as error:
            raise PluginError(f"cannot be parsed: {error}") from None


def of_wheel(path: Path) -> Package:
    wheel = zipfile.ZipFile(path)
    sizes = {item.filename: item.file_size for item in wheel.infolist() if not item.is_dir()}
    infos = {PurePosixPath(name).parts[0] for name in sizes if ".dist-info/" in name}
    if len(infos) != 1:
        raise UsageError(
            f"{path} is not a wheel: it has {len(infos)} .dist-info folders, expected one"
        )
    metadata = PathDistribution(zipfile.Path(wheel, f"{infos.pop()}/"))
    return Package(path.name, sizes, wheel.read, metadata)


def of_project(path: Path) -> Package:
    """The packages of a project's entry points; its wheel may contain more."""
    try:
        project = tomllib.loads((path / "pyproject.toml").read_text("utf-8"))["project"]
        metadata = Declared(project)
        modules = {e.module.split(".")[0] for e in metadata.entry_points.select(group=GROUP)}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{path}/pyproject.toml describes no project: {error!r}") from None
    root = path / "src" if (path / "src").is_dir() else path
    sizes: dict[str, int] = {}
    for module in sorted(modules):
        sizes |= of_folder(root, module)[0]
    return Package(
        metadata.name or path.name, sizes, lambda name: (root / name).read_bytes(), metadata
    )


def of_folder(root: Path, name: str) -> tuple[dict[str, int], Callable[[str], bytes]]:
    """The files of a package, or of a single module, below `root`."""
    inside = (root / name).rglob("*") if (root / name).is_dir() else [root / f"{name}.py"]
    files = [file for file in inside if file.is_file() and "__pycache__" not in file.parts]
    sizes = {file.relative_to(root).as_posix(): file.stat().st_size for file in sorted(files)}
    return sizes, lambda name: (root / name).read_bytes()
