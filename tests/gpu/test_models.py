"""Tiny models of all architectures: float32 against their references, bfloat16 against float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from gpu.comparison import ON_GPU

from ostro.core.errors import PluginError
from ostro.plugins.conformance.architecture import all_plugins
from ostro.plugins.conformance.checks import checks_of, has_outputs
from ostro.plugins.conformance.parity import BAR, Subject, subject

CHECKS = ("captured loop matches eager", "encoder batches match single inputs")
"""The checks of the conformance kit, in float32, beside the comparison of outputs."""

NMSE = 5e-2
"""The largest mean squared error of outputs in bfloat16, in units of their mean square: the random
weights of tiny models amplify rounding errors, and routers change their choices. A wrong kernel has
an error of about one.
"""


PLUGINS = all_plugins()
NAMES = sorted(
    name
    for name, record in PLUGINS.collect("architectures").items()
    if record.conformance.tiny and has_outputs(record)
)


@contextmanager
def tiny(name: str) -> Iterator[Subject]:
    """The model; skips the test where this version of transformers lacks the reference."""
    try:
        context = subject(PLUGINS, name)
        made = context.__enter__()
    except (ImportError, AttributeError, PluginError) as error:
        pytest.skip(f"no reference in this environment: {error}")
    try:
        yield made
    finally:
        context.__exit__(None, None, None)


@torch.inference_mode()
def bfloat16_error(made: Subject) -> float:
    """The largest mean squared error over the examples."""
    wide, narrow = made.engine(), made.engine(dtype="bfloat16")
    errors = []
    for example in made.examples:
        truth, found = made.answer(wide, example).double(), made.answer(narrow, example).double()
        errors.append(float((found - truth).square().mean() / truth.square().mean()))
    return max(errors)


def compare_outputs(made: Subject) -> None:
    off = made.off(made.engine())
    assert off <= BAR, f"deviation {off:.1e}, expected at most {BAR:.0e}"


def compare_bfloat16(made: Subject) -> None:
    off = bfloat16_error(made)
    assert off <= NMSE, f"mean squared error {off:.1e}, expected at most {NMSE:.0e}"


@pytest.mark.parametrize("name", NAMES)
def test_conforms(name: str) -> None:
    with tiny(name) as made:
        runs = {"outputs": compare_outputs}
        runs |= {each.name: each.run for each in checks_of(made.record) if each.name in CHECKS}
        runs |= {"bfloat16": compare_bfloat16} if ON_GPU else {}
        wrong = list[str]()
        for check, run in runs.items():
            try:
                run(made)
            except Exception as error:
                wrong.append(f"{check}: {type(error).__name__}: {str(error)[:300]}")
        assert not wrong, "\n".join(wrong)
