"""Fixtures: a valid model folder, and a copy of it for each test to damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tiny.cli_runner import CliRunner
from tiny.model import make_model


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "good")


@pytest.fixture
def runner(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CliRunner:
    return CliRunner(Path(shutil.copytree(good, tmp_path / "m")), capsys)
