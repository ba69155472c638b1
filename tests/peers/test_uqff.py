"""UQFF files of mistral.rs and ostro work in both; needs mistral.rs's environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

import uqff
from environments import default_root, python_of

from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings

pytestmark = pytest.mark.peer

SILENT = {"qwen3 q8k", "qwen3 q8_1", "again qwen3 q8k", "again qwen3 q8_1", "qwen3_moe afq4"}
"""Formats that mistral.rs writes, but reports as unsupported for serving on a CPU."""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, uqff.Outcome]:
    python = python_of(default_root(), "mistralrs")
    if not python.exists():
        pytest.skip("no environment of mistral.rs; tests/peers/environments.py makes one")
    plugins = PluginManager()
    plugins.load(Settings())
    return uqff.run(python, plugins, uqff.CASES)


def bar(name: str) -> float:
    """The largest allowed preference for a different token."""
    return uqff.ROUNDED if set(name.split()) & set(uqff.GGML) else uqff.NEAR


@pytest.mark.parametrize("name", uqff.names(uqff.CASES))
def test_uqff_matches_mistralrs(name: str, outcomes: dict[str, uqff.Outcome]) -> None:
    outcome = outcomes[name]
    if name in SILENT:
        assert outcome.said, f"{name}: mistral.rs serves it now: {outcome}"
        pytest.skip(outcome.said)
    assert not outcome.said and outcome.gap <= bar(name), str(outcome)


@pytest.mark.parametrize("format", uqff.FORMATS)
def test_what_we_write_again_says_the_same_there(
    format: str, outcomes: dict[str, uqff.Outcome]
) -> None:
    assert str(outcomes[f"again qwen3 {format}"]) == str(outcomes[f"qwen3 {format}"])
