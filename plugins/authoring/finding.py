"""A finding of `ostro plugin check`: its location, the fault and the next step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """A fault of a plugin.

    `level` "error" means that the plugin will not work, or not as its author intends.
    """

    level: Literal["error", "warning"]
    where: str
    what: str
    todo: str

    def __str__(self) -> str:
        return f"{self.level}: {self.where}: {self.what}; {self.todo}"


def error(where: str, what: str, todo: str) -> Finding:
    return Finding("error", where, what, todo)


def warning(where: str, what: str, todo: str) -> Finding:
    return Finding("warning", where, what, todo)
