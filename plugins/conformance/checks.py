"""The registry of checks: functions of a `Subject` that raise if an architecture is wrong.

`check` declares one, with a predicate that selects the records to which it applies:

    @check(lambda record: "image" in record.tasks)
    def images_match_the_reference(tiny: Subject) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from ostro.core.load.transformers_backend import is_body
from ostro.core.records import Architecture
from ostro.plugins.conformance.parity import Subject
from ostro.plugins.conformance.parity import decodes as decodes

AppliesTo = Callable[[Architecture], bool]

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
"""The modules of this folder that declare checks."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """`run` raises if the subject is wrong, and calls `pytest.skip` with a reason if it
    cannot run.
    """

    name: str
    run: Callable[[Subject], None]
    applies_to: AppliesTo


CHECKS: dict[str, Check] = {}
"""All checks by name, in the order of declaration."""


def check(
    applies_to: AppliesTo,
) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    """Declare a function as a check of the records for which `applies_to` is true.

    Its name is that of the function, with spaces.
    """

    def declare(run: Callable[[Subject], None]) -> Callable[[Subject], None]:
        name = run.__name__.replace("_", " ")
        CHECKS[name] = Check(name=name, run=run, applies_to=applies_to)
        return run

    return declare


def checks_of(record: Architecture) -> list[Check]:
    """The checks that apply to a record."""
    for module in CHECK_MODULES:
        import_module(f"{__package__}.{module}")
    return [check for check in CHECKS.values() if check.applies_to(record)]


def every(record: Architecture) -> bool:
    """True: the check applies to all architectures."""
    return True


def encodes(record: Architecture) -> bool:
    """Whether a record is a text encoder: hidden states or scores of whole inputs, no cache."""
    return not decodes(record) and bool({"embed", "classify", "rerank"} & {*record.tasks})


def has_examples(record: Architecture) -> bool:
    """Whether the record declares prompts with media."""
    return record.conformance.examples is not None


def has_config(record: Architecture) -> bool:
    """Whether the plugin defines the config; the transformers backend uses that of transformers."""
    return not is_body(record)


def has_outputs(record: Architecture) -> bool:
    """Whether the model has logits, hidden states or scores to compare with a reference."""
    return decodes(record) or encodes(record)
