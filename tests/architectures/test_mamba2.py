"""Mamba 2 against transformers."""

from __future__ import annotations

from ostro.plugins.conformance.architecture import ArchitectureTests


class TestMamba2(ArchitectureTests):
    name = "mamba2"
