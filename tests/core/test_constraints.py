"""constraints.txt pins versions that an ordinary Linux machine can install together.

`make resolve` asks the package registry; these tests need no network.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]

TRITON = {"2.11.0": "3.6.0", "2.13.0": "3.7.1"}
"""The triton version that the public Linux wheels of each torch version require exactly.

Source: `Requires-Dist` in the wheels' metadata. CPU wheels (local version +cpu) have no such line.
"""


def pins() -> dict[str, str]:
    """The version of each pinned package by canonical name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    parts = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in parts}


def requirements() -> list[Requirement]:
    """The direct requirements in pyproject.toml, with those of the extras `test` and `dev`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["test"], *extras["dev"]]
    return [made for line in lines if (made := Requirement(line)).name != project["name"]]


def test_triton_is_the_version_that_torch_requires() -> None:
    pinned = pins()
    assert pinned["torch"] in TRITON, "add the triton version that torch's metadata names to TRITON"
    assert pinned["triton"] == TRITON[pinned["torch"]]


@pytest.mark.parametrize("requirement", requirements(), ids=lambda made: made.name)
def test_every_direct_requirement_is_pinned_within_its_range(requirement: Requirement) -> None:
    version = pins().get(canonicalize_name(requirement.name))
    assert version is not None, f"constraints.txt has no pin for {requirement.name}"
    assert requirement.specifier.contains(version), f"{requirement} excludes the pinned {version}"
