"""Llama against transformers."""

from ostro.plugins.conformance.architecture import ArchitectureTests


class TestLlama(ArchitectureTests):
    name = "llama"
