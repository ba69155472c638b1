"""Granite against transformers."""

from ostro.plugins.conformance.architecture import ArchitectureTests


class TestGranite(ArchitectureTests):
    name = "granite"
