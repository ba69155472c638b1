"""Files of llama.cpp's converter match transformers; needs a checkout of llama.cpp."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from conversions import CASES, Case
from converter import CHECKOUT, find_checkout, find_python, run

from ostro.core.plugins.manager import PluginManager

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def checkout() -> Path:
    found = find_checkout(None)
    if found is None:
        pytest.skip(f"{CHECKOUT} names no checkout of llama.cpp")
    return found


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_its_files_are_read(case: Case, checkout: Path, plugins: PluginManager) -> None:
    outcome = run(case, checkout, find_python(), plugins)
    if "No module named" in outcome.said:
        pytest.skip(outcome.said)
    assert outcome.good(case), outcome
