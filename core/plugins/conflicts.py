"""Who claims what: the records that plugins declared, and what happens when two want one thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ostro.core.errors import PluginError
from ostro.core.records import Record


@dataclass(frozen=True)
class Claim:
    """A record and the plugin that declared it; `source` says where that plugin comes from."""

    record: Record
    plugin: str
    source: str


def settled(claims: Sequence[Claim]) -> list[Claim]:
    """The claims on one thing that still stand: those that replace others, where there are any.

    One left is the winner; more than one is a conflict.
    """
    return [claim for claim in claims if claim.record.replaces] or list(claims)


class Claims:
    """The declared records, by kind, in the order of their plugins."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[Claim]] = {}

    def __contains__(self, kind: str) -> bool:
        return kind in self._kinds

    def add(self, kind: str, claims: Iterable[Claim]) -> None:
        """Keep what the plugins declared of one kind."""
        self._kinds[kind] = list(claims)

    def drop(self, plugin: str) -> None:
        """Forget everything that one plugin declared."""
        for kind, claims in self._kinds.items():
            self._kinds[kind] = [claim for claim in claims if claim.plugin != plugin]

    def of(self, plugin: str) -> dict[str, tuple[str, ...]]:
        """What one plugin declared: names by kind."""
        offers = {
            kind: tuple(claim.record.name for claim in claims if claim.plugin == plugin)
            for kind, claims in self._kinds.items()
        }
        return {kind: names for kind, names in offers.items() if names}

    def standing(self, kind: str) -> dict[str, list[Claim]]:
        """By name, the claims that are not replaced; more than one is a conflict."""
        names: dict[str, list[Claim]] = {}
        for claim in self._kinds[kind]:
            names.setdefault(claim.record.name, []).append(claim)
        return {name: settled(claims) for name, claims in names.items()}

    def claiming(self, kind: str, test: Callable[[Claim], bool]) -> list[Claim]:
        """The standing claims for which the test holds; more than one is a conflict."""
        standing = [claim for claims in self.standing(kind).values() for claim in claims]
        return settled([claim for claim in standing if test(claim)])

    def conflicts(self) -> dict[str, list[str]]:
        """By plugin, what it claims and another plugin claims too: a sentence for each."""
        found: dict[str, list[str]] = {}
        for what, claims in self._wanted():
            if len(claims) > 1:
                for claim in claims:
                    found.setdefault(claim.plugin, []).append(str(conflict(what, claims)))
        return found

    def _wanted(self) -> Iterator[tuple[str, list[Claim]]]:
        """Everything that is claimed by name, and who claims it."""
        for kind in self._kinds:
            for name, claims in self.standing(kind).items():
                yield f"{kind}: {name!r}", claims
        if "architectures" not in self._kinds:
            return
        for field, word in (("classes", "class"), ("gguf", "GGUF architecture")):
            names: dict[str, list[Claim]] = {}
            for claims in self.standing("architectures").values():
                for claim in claims:
                    for name in getattr(claim.record, field):
                        names.setdefault(name, []).append(claim)
            for name, claims in names.items():
                yield f"architectures: the {word} {name!r}", settled(claims)


def conflict(what: str, claims: Sequence[Claim]) -> PluginError:
    """The error for one thing that several plugins claim: who they are, and the ways out."""
    owners = " and ".join(f"{claim.plugin} ({claim.source})" for claim in claims)
    names = list(dict.fromkeys(claim.record.name for claim in claims))
    choose = f", or choose one with --arch: {', '.join(names)}" if len(names) > 1 else ""
    return PluginError(
        f"{what} is claimed by {owners}; set replaces=True on one of them, "
        f"or disable one with OSTRO_DISABLE_PLUGINS={claims[-1].plugin}{choose}"
    )
