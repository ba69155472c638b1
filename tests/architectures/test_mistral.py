"""Mistral against transformers."""

from ostro.core.testing.architecture import ArchitectureTests


class TestMistral(ArchitectureTests):
    name = "mistral"
