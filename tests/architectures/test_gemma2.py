"""Gemma2 against transformers."""

from ostro.plugins.conformance.architecture import ArchitectureTests


class TestGemma2(ArchitectureTests):
    name = "gemma2"
