"""The environment variables that ostro reads, with their types, defaults and help texts."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ostro.core.errors import UsageError, nearest

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Variable(Generic[T]):
    """One environment variable. Unset and empty both mean `default`."""

    name: str
    parse: Callable[[str], T]
    default: T
    help: str

    def read(self) -> T:
        """The current value. Raises UsageError with the variable's name if it is invalid."""
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise UsageError(f"{self.name}={text!r}: {error}", param=self.name) from None


def names(text: str) -> frozenset[str]:
    """Parse a comma-separated list of names."""
    return frozenset(filter(None, (part.strip() for part in text.split(","))))


def switch(text: str) -> bool:
    """Parse an on/off switch."""
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("expected 1 or 0")


API_KEY = Variable(
    name="OSTRO_API_KEY",
    parse=str,
    default="",
    help="the API key of the server for which `ostro launch` starts programs",
)

DISABLE_PLUGINS = Variable(
    name="OSTRO_DISABLE_PLUGINS",
    parse=names,
    default=frozenset[str](),
    help="plugins, or wheels of plugins, to disable: a,b; * disables all that are not built in",
)
PLUGINS = Variable[frozenset[str] | None](
    name="OSTRO_PLUGINS",
    parse=names,
    default=None,
    help="the only installed plugins to use: a,b; does not affect built-in ones",
)
TRACE_PLUGINS = Variable(
    name="OSTRO_TRACE_PLUGINS",
    parse=switch,
    default=False,
    help="1 prints every hook call to stderr, with its result and its time",
)

CACHE = Variable(
    name="OSTRO_CACHE",
    parse=Path,
    default=Path.home() / ".cache/ostro",
    help="the folder of compiled native kernels, and of launch parameters of GPU kernels",
)

CPU = Variable(
    name="OSTRO_CPU",
    parse=str,
    default="",
    help="the instructions of the native CPU kernels: x86-64-v3, x86-64-v4, x86-64-v4-vnni, "
    "x86-64-v4-bf16, native (compiled for this CPU), or none (kernels in plain torch); default: "
    "the best that the CPU supports",
)

HISTORY = Variable(
    name="OSTRO_HISTORY",
    parse=str,
    default="",
    help="the file of the chat's input history; off keeps none",
)

VARIABLES: dict[str, Variable[Any]] = {
    variable.name: variable
    for variable in (API_KEY, CACHE, CPU, DISABLE_PLUGINS, HISTORY, PLUGINS, TRACE_PLUGINS)
}


def misspelled() -> list[str]:
    """Warnings for variables that are set, begin with OSTRO_ and are similar to one of ours."""
    unknown = [name for name in os.environ if name.startswith("OSTRO_") and name not in VARIABLES]
    hints = ((name, nearest(name, VARIABLES, n=1)) for name in sorted(unknown))
    return [f"the environment variable {name} is not read{hint}" for name, hint in hints if hint]
