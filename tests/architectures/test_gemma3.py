"""Gemma3 against transformers."""

from ostro.core.testing.architecture import ArchitectureTests


class TestGemma3(ArchitectureTests):
    name = "gemma3"
