"""Records declared by plugins, and the conflicts between records that claim the same thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ostro.core.commands import COMMANDS
from ostro.core.errors import PluginError
from ostro.core.records import Record, Store

RESERVED = {"commands": frozenset(COMMANDS)}
"""Names that no plugin can use, by kind: ostro itself has them, and wins."""
CHOICES = {"architectures": "--arch", "parsers": "--tool-parser"}
"""The options that choose one of several records by name, by kind."""


@dataclass(frozen=True)
class RecordClaim:
    """A record, the plugin that declared it, and the source of the plugin."""

    record: Record
    plugin: str
    source: str


def unreplaced(claims: Sequence[RecordClaim]) -> list[RecordClaim]:
    """The claims with `replaces=True` if there are any, else all claims.

    One remaining claim wins; more than one is a conflict.
    """
    return [claim for claim in claims if claim.record.replaces] or list(claims)


class Claims:
    """The declared records, by kind, in the order of their plugins."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[RecordClaim]] = {}

    def __contains__(self, kind: str) -> bool:
        return kind in self._kinds

    def add(self, kind: str, claims: Iterable[RecordClaim]) -> None:
        """Set the claims of one kind."""
        self._kinds[kind] = list(claims)

    def drop(self, plugin: str) -> None:
        """Remove all claims of one plugin."""
        for kind, claims in self._kinds.items():
            self._kinds[kind] = [claim for claim in claims if claim.plugin != plugin]

    def declared_by(self, plugin: str) -> dict[str, tuple[str, ...]]:
        """The names of one plugin's records, by kind."""
        offers = {
            kind: tuple(claim.record.name for claim in claims if claim.plugin == plugin)
            for kind, claims in self._kinds.items()
        }
        return {kind: names for kind, names in offers.items() if names}

    def active(self, kind: str) -> dict[str, list[RecordClaim]]:
        """The claims that are not replaced, by record name; more than one is a conflict.

        Names that ostro itself has are missing.
        """
        names: dict[str, list[RecordClaim]] = {}
        for claim in self._kinds[kind]:
            if claim.record.name not in RESERVED.get(kind, ()):
                names.setdefault(claim.record.name, []).append(claim)
        return {name: unreplaced(claims) for name, claims in names.items()}

    def claiming(self, kind: str, test: Callable[[RecordClaim], bool]) -> list[RecordClaim]:
        """The active claims that pass the test; more than one is a conflict."""
        active = [claim for claims in self.active(kind).values() for claim in claims]
        return unreplaced([claim for claim in active if test(claim)])

    def conflicts(self) -> dict[str, list[str]]:
        """The messages of a plugin's conflicts with other plugins and with ostro, by plugin."""
        messages: dict[str, list[str]] = {}
        for kind, what, claims in self._claimed_names():
            if len(claims) > 1:
                for claim in claims:
                    text = str(conflict(kind, what, claims))
                    messages.setdefault(claim.plugin, []).append(text)
        for kind, reserved in RESERVED.items():
            for claim in self._kinds.get(kind, ()):
                if (name := claim.record.name) in reserved:
                    text = f"{kind}: {name!r} is one of ostro itself, which is used; rename it"
                    messages.setdefault(claim.plugin, []).append(text)
        return messages

    def _claimed_names(self) -> Iterator[tuple[str, str, list[RecordClaim]]]:
        """Every name that is claimed: its kind, its description, and its claims."""
        for kind in self._kinds:
            for name, claims in self.active(kind).items():
                yield kind, repr(name), claims
        for kind, word, names_of in FURTHER_NAMES:
            names: dict[str, list[RecordClaim]] = {}
            for claims in self.active(kind).values() if kind in self._kinds else ():
                for claim in claims:
                    for name in names_of(claim.record):
                        names.setdefault(name, []).append(claim)
            for name, claims in names.items():
                # Records of one name are in conflict already.
                if len({claim.record.name for claim in claims}) > 1:
                    yield kind, f"the {word} {name!r}", unreplaced(claims)


FURTHER_NAMES: Sequence[tuple[str, str, Callable[[Any], Iterable[str]]]] = (
    ("architectures", "class", lambda record: record.classes),
    ("architectures", "GGUF architecture", lambda record: record.gguf),
    ("pipelines", "task", lambda record: (record.task,)),
    ("quantizers", "format", lambda record: (format.name for format in record.makes)),
)
"""What records claim besides their own name: the kind, a word for messages, and the names."""


def conflict(kind: str, what: str, claims: Sequence[RecordClaim]) -> PluginError:
    """The error for one thing that several plugins claim, with the ways to resolve it."""
    owners = " and ".join(f"{claim.plugin} ({claim.source})" for claim in claims)
    return PluginError(
        f"{kind}: {what} is claimed by {owners}; set replaces=True on one of them, or disable one "
        f"with OSTRO_DISABLE_PLUGINS={claims[-1].plugin}{choice(kind, claims)}"
    )


def choice(kind: str, claims: Sequence[RecordClaim]) -> str:
    """The option that chooses one of several claims, as the end of a message; empty without one."""
    names = list(dict.fromkeys(claim.record.name for claim in claims))
    if len(names) < 2:
        return ""
    if kind == "stores":
        usages = " or ".join(cast(Store, claim.record).usage for claim in claims)
        return f", or give --store a location that only one of them claims: {usages}"
    return f", or choose one with {CHOICES[kind]}: {', '.join(names)}" if kind in CHOICES else ""
