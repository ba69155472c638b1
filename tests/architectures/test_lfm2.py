"""LFM2 against transformers."""

from ostro.core.testing.architecture import ArchitectureTests


class TestLfm2(ArchitectureTests):
    name = "lfm2"
