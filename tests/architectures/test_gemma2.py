"""Gemma2 against transformers."""

from ostro.core.testing.architecture import ArchitectureTests


class TestGemma2(ArchitectureTests):
    name = "gemma2"
