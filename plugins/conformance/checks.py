"""Checks: what an architecture is held to, each a function of a `Subject` that fails or returns.

A check says for which records it is meant; further kinds of models bring checks of their own:

    @check(lambda record: "image" in record.tasks)
    def pictures_equal_the_reference(tiny: Subject) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from ostro.core.load.transformers_backend import is_body
from ostro.core.records import Architecture
from ostro.plugins.conformance.parity import Subject
from ostro.plugins.conformance.parity import decodes as decodes

Meant = Callable[[Architecture], bool]

CHECK_MODULES = (
    "outputs",
    "decoder",
    "encoder",
    "media",
    "kernel_parity",
    "names",
    "formats",
    "adapters",
    "package",
)
"""The modules beside this one that hold our own checks."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """`run` raises where the subject does not hold, and skips (`pytest.skip`) saying why."""

    name: str
    run: Callable[[Subject], None]
    meant: Meant


CHECKS: dict[str, Check] = {}
"""All checks by name, in the order in which they are made."""


def check(meant: Meant) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    """Make a function a check, named as it is, for records of which `meant` holds."""

    def declare(run: Callable[[Subject], None]) -> Callable[[Subject], None]:
        name = run.__name__.replace("_", " ")
        CHECKS[name] = Check(name=name, run=run, meant=meant)
        return run

    return declare


def checks_of(record: Architecture) -> list[Check]:
    """The checks that are meant for a record."""
    for home in CHECK_MODULES:
        import_module(f"{__package__}.{home}")
    return [check for check in CHECKS.values() if check.meant(record)]


def every(record: Architecture) -> bool:
    return True


def encodes(record: Architecture) -> bool:
    """Encoders of text: states or scores of whole inputs, without a cache."""
    return not decodes(record) and bool({"embed", "classify", "rerank"} & {*record.tasks})


def shows_media(record: Architecture) -> bool:
    return record.examples is not None


def has_config(record: Architecture) -> bool:
    """Whether a record's config is its plugin's: a body's is transformers' own."""
    return not is_body(record)


def answers(record: Architecture) -> bool:
    """Whether there is one answer to compare with a reference's."""
    return decodes(record) or encodes(record)
