"""Gemma3 against transformers."""

from ostro.plugins.conformance.architecture import ArchitectureTests


class TestGemma3(ArchitectureTests):
    name = "gemma3"
