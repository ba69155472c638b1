"""Qwen2 against transformers."""

from ostro.core.testing.architecture import ArchitectureTests


class TestQwen2(ArchitectureTests):
    name = "qwen2"
