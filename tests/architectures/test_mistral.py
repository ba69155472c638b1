"""Mistral against transformers."""

from ostro.plugins.conformance.architecture import ArchitectureTests


class TestMistral(ArchitectureTests):
    name = "mistral"
