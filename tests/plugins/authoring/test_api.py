"""docs/api.md lists every public name, and is current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ostro
from ostro.plugins.authoring.api import page, signature
from ostro.plugins.authoring.surface import MODULES, public_names

PAGE = Path(__file__).resolve().parents[3] / "docs" / "api.md"


def test_the_page_is_current() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run `ostro plugin api --into docs/api.md`"


@pytest.mark.parametrize("module", MODULES)
def test_every_name_is_listed(module: str) -> None:
    text = PAGE.read_text()
    missing = [
        n for n in public_names(module) if not re.search(rf"`ostro\.{module}\.{n}[`(]", text)
    ]
    assert not missing


def test_a_public_name_keeps_its_first_version() -> None:
    text = page().replace("| stable | 0.2 |", "| stable | 0.1 |")
    assert page(text) == text and page() != text


def test_a_signature_shows_parameters_and_plain_defaults() -> None:
    def example(a: int, *, b: str = "x", c: object = object) -> None: ...

    assert signature(example) == "(a, *, b='x', c=Ellipsis)"
    assert signature(ostro.__version__) == ""
