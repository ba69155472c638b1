"""Create the project of a new plugin from templates, for `ostro plugin new`.

Templates are files below `templates/` with the placeholders of `string.Template`. In their paths
`package` and `NAME` stand for the package's name. `templates/common` is used for all kinds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from ostro.core.records import API
from ostro.errors import UsageError

TEMPLATES = Path(__file__).parent / "templates"
ENDING = ".tmpl"
PREFIXES = {"architecture": "ostro-arch-", "quantizer": "ostro-quant-"}
NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class Project:
    """A project to write: `name` is the record's name, `folder` need not exist."""

    name: str
    kind: str
    folder: Path

    @classmethod
    def named(cls, name: str, kind: str, out: str | None = None) -> Project:
        """A project in the folder `out`. Raises UsageError for an invalid name."""
        if not NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot be a plugin's name: lower-case letters and digits, with single "
                "- or _ between, a letter first"
            )
        title = f"{PREFIXES[kind]}{name.replace('_', '-')}"
        return cls(name=name, kind=kind, folder=Path(out or title))

    @property
    def title(self) -> str:
        """The name of the wheel."""
        return f"{PREFIXES[self.kind]}{self.name.replace('_', '-')}"

    @property
    def package(self) -> str:
        return self.title.replace("-", "_")

    @property
    def family(self) -> str:
        """The prefix of class names: my-model -> MyModel."""
        return "".join(word.capitalize() for word in re.split("[-_]", self.name))

    def files(self, template: str | None = None, **values: str) -> dict[str, str]:
        """Texts by path from the templates of the kind or of `template`; `values` fill them too."""
        known = {
            "name": self.name,
            "title": self.title,
            "package": self.package,
            "family": self.family,
            "api": repr(API),
            "range": f"ostro>={API[0]}.{API[1]},<{API[0]}.{API[1] + 1}",
            **values,
        }
        found: dict[str, str] = {}
        for folder in ("common", template or self.kind):
            for path, text in templates(TEMPLATES / folder):
                path = path.replace("package", self.package).replace("NAME", self.package)
                found[path] = Template(text).substitute(known)
        return found

    def write(self, files: Mapping[str, str]) -> Iterator[tuple[str, int]]:
        """Write the files, and yield (path, number of lines) of each.

        Raises UsageError if the folder is not empty.
        """
        if self.folder.exists() and any(self.folder.iterdir()):
            raise UsageError(f"{self.folder} is not empty; choose another folder with -o")
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            yield str(path), text.count("\n")


def templates(folder: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(folder.rglob(f"*{ENDING}")):
        name = file.relative_to(folder).as_posix().removesuffix(ENDING)
        yield name, file.read_text("utf-8")
