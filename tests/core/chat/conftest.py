"""A fixture of the chat templates of known models, if they are beside the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

TEMPLATES = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "templates"
FILES = sorted(TEMPLATES.glob("*.jinja")) if TEMPLATES.is_dir() else []


@pytest.fixture(params=FILES or [None], ids=lambda file: file.stem if file else "absent")
def source(request: pytest.FixtureRequest) -> str:
    if request.param is None:
        pytest.skip("no templates beside the checkout")
    return request.param.read_text()
