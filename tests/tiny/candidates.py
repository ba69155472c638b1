"""The results of a kernel with each candidate of its launch parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ostro.core.ops.launch import override_lookup
from ostro.plugins.conformance.kernels import poison

T = TypeVar("T")


def candidates_of(call: Callable[[], object]) -> list[Any]:
    """The candidates for the launch parameters of a call, which looks them up once."""
    found = list[Any]()
    with override_lookup(
        lambda op, key, default, candidates: found.extend(candidates()) or default
    ):
        call()
    return found


def results_of_candidates(call: Callable[[], T]) -> Iterator[T]:
    """The results of a call with its candidates, in poisoned memory.

    Of candidates that differ in warps and stages alone one runs: these do not change the program.
    """
    programs = {}
    for parameters in candidates_of(call):
        fields = {name: 0 for name in ("warps", "stages") if hasattr(parameters, name)}
        programs[type(parameters), parameters._replace(**fields)] = parameters
    for parameters in programs.values():
        with poison(), override_lookup(lambda *_, parameters=parameters: parameters):
            yield call()
