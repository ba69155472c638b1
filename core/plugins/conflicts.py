"""Records declared by plugins, and the conflicts between records that claim the same thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ostro.core.errors import PluginError
from ostro.core.records import Record


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
        """The claims that are not replaced, by record name; more than one is a conflict."""
        names: dict[str, list[RecordClaim]] = {}
        for claim in self._kinds[kind]:
            names.setdefault(claim.record.name, []).append(claim)
        return {name: unreplaced(claims) for name, claims in names.items()}

    def claiming(self, kind: str, test: Callable[[RecordClaim], bool]) -> list[RecordClaim]:
        """The active claims that pass the test; more than one is a conflict."""
        active = [claim for claims in self.active(kind).values() for claim in claims]
        return unreplaced([claim for claim in active if test(claim)])

    def conflicts(self) -> dict[str, list[str]]:
        """The messages of a plugin's conflicts with other plugins, by plugin."""
        found: dict[str, list[str]] = {}
        for what, claims in self._claimed_names():
            if len(claims) > 1:
                for claim in claims:
                    found.setdefault(claim.plugin, []).append(str(conflict(what, claims)))
        return found

    def _claimed_names(self) -> Iterator[tuple[str, list[RecordClaim]]]:
        """Every name that is claimed, with its claims."""
        for kind in self._kinds:
            for name, claims in self.active(kind).items():
                yield f"{kind}: {name!r}", claims
        if "architectures" not in self._kinds:
            return
        for field, word in (("classes", "class"), ("gguf", "GGUF architecture")):
            names: dict[str, list[RecordClaim]] = {}
            for claims in self.active("architectures").values():
                for claim in claims:
                    for name in getattr(claim.record, field):
                        names.setdefault(name, []).append(claim)
            for name, claims in names.items():
                yield f"architectures: the {word} {name!r}", unreplaced(claims)


def conflict(what: str, claims: Sequence[RecordClaim]) -> PluginError:
    """The error for one thing that several plugins claim, with the ways to resolve it."""
    owners = " and ".join(f"{claim.plugin} ({claim.source})" for claim in claims)
    names = list(dict.fromkeys(claim.record.name for claim in claims))
    choose = f", or choose one with --arch: {', '.join(names)}" if len(names) > 1 else ""
    return PluginError(
        f"{what} is claimed by {owners}; set replaces=True on one of them, "
        f"or disable one with OSTRO_DISABLE_PLUGINS={claims[-1].plugin}{choose}"
    )
