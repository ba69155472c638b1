"""Llama against transformers."""

from ostro.core.testing.architecture import ArchitectureTests


class TestLlama(ArchitectureTests):
    name = "llama"
