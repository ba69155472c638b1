"""Qwen2 against transformers."""

from ostro.plugins.conformance.architecture import ArchitectureTests


class TestQwen2(ArchitectureTests):
    name = "qwen2"
