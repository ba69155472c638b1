"""Qwen3 against transformers."""

from ostro.core.testing.architecture import ArchitectureTests


class TestQwen3(ArchitectureTests):
    name = "qwen3"
