"""LFM2 against transformers."""

from ostro.plugins.conformance.architecture import ArchitectureTests


class TestLfm2(ArchitectureTests):
    name = "lfm2"
