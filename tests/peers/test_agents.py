"""Coding agents and chat programs do two turns with a call on a server of a scripted model.

`environments.py agents agents-aider agents-hermes agents-litellm agents-llm agents-webui` installs
them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from agents import JSON, attempt
from agents_programs import PROGRAMS, Program
from agents_server import Rig, scripted

pytestmark = [pytest.mark.peer, pytest.mark.timeout(400)]

UNKNOWN = {"GET /api/v1/models: 404"}
"""Requests by which programs look for another server."""


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with scripted(JSON.read_text()) as rig:
        yield rig


@pytest.mark.parametrize(
    "program", PROGRAMS, ids=[f"{program.name} {program.wire}" for program in PROGRAMS]
)
def test_a_call_in_two_turns(program: Program, rig: Rig, tmp_path: Path) -> None:
    try:
        outcome = attempt(program, rig, tmp_path / "kept")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert outcome.done and outcome.executed, outcome.row
    assert not {*outcome.refused} - UNKNOWN
