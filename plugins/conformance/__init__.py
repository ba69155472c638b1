"""The conformance kit: checks of an architecture against a reference implementation.

The wheel contains the kit, so that third-party plugins pass the same checks as the built-in ones.
The engine does not import it. Names are imported on first use, because pytest loads
`conformance.plugin` in every run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostro.plugins.conformance import kernels, mutants
    from ostro.plugins.conformance.architecture import ArchitectureTests, Case
    from ostro.plugins.conformance.checks import Check, check
    from ostro.plugins.conformance.diagnosis import diagnose
    from ostro.plugins.conformance.examples import Example, pixels, sound, words
    from ostro.plugins.conformance.kernels import DEVICE, compile_for, interpret, poison, targets
    from ostro.plugins.conformance.mutants import (
        SMALL,
        all_windows,
        each,
        embedding_scale,
        filters_backwards,
        no_bias,
        norm_eps,
        norm_weight,
        retable,
    )
    from ostro.plugins.conformance.parity import BAR, RED, Subject, deviation, greedy, subject
    from ostro.plugins.conformance.weights import reinitialise

_MODULES = ("kernels", "mutants")
_NAMES = {
    "architecture": "ArchitectureTests Case",
    "checks": "Check check",
    "diagnosis": "diagnose",
    "examples": "Example pixels sound words",
    "kernels": "DEVICE compile_for interpret poison targets",
    "mutants": "SMALL all_windows each embedding_scale filters_backwards no_bias norm_eps "
    "norm_weight retable",
    "parity": "BAR RED Subject deviation greedy subject",
    "weights": "reinitialise",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "BAR",
    "DEVICE",
    "RED",
    "SMALL",
    "ArchitectureTests",
    "Case",
    "Check",
    "Example",
    "Subject",
    "all_windows",
    "check",
    "compile_for",
    "deviation",
    "diagnose",
    "each",
    "embedding_scale",
    "filters_backwards",
    "greedy",
    "interpret",
    "kernels",
    "mutants",
    "no_bias",
    "norm_eps",
    "norm_weight",
    "pixels",
    "poison",
    "reinitialise",
    "retable",
    "sound",
    "subject",
    "targets",
    "words",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
