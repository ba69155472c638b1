"""Gemma against transformers."""

from ostro.plugins.conformance.architecture import ArchitectureTests


class TestGemma(ArchitectureTests):
    name = "gemma"
