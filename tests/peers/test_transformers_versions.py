"""ostro reads the checkpoints of several versions of transformers as these versions compute them.

`environments.py transformers-VERSION` makes the environment of a version.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from environments import VERSIONS, default_root, python_of
from transformers_versions import OWN_FAULTS, compare, families, save, write_cases

from ostro.core.plugins.manager import installed_plugins

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

NAMES = list(families(installed_plugins()))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder with the checkpoints of a version, which its environment writes once."""
    root = tmp_path_factory.mktemp("versions")
    write_cases(root, NAMES, installed_plugins())

    @cache
    def folder(version: str) -> Path:
        if not python_of(default_root(), f"transformers-{version}").exists():
            pytest.skip(f"environments.py transformers-{version} makes the environment")
        save(version, root, root / version)
        return root / version

    return folder


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("version", VERSIONS)
def test_its_checkpoints_give_its_outputs(
    version: str, name: str, saved: Callable[[str], Path]
) -> None:
    outcome = compare(name, saved(version), installed_plugins())
    if outcome.lacks:
        pytest.skip(f"transformers {version}: {outcome.lacks}")
    if fault := OWN_FAULTS.get((name, version)):
        assert not outcome.equal, f"transformers {version} has no such fault: {fault}"
    else:
        assert outcome.equal, outcome


def test_faults_are_of_known_families_and_versions() -> None:
    assert {name for name, _ in OWN_FAULTS} <= {*NAMES}
    assert {version for _, version in OWN_FAULTS} <= {*VERSIONS}
