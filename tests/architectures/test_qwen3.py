"""Qwen3 against transformers."""

from ostro.plugins.conformance.architecture import ArchitectureTests


class TestQwen3(ArchitectureTests):
    name = "qwen3"
