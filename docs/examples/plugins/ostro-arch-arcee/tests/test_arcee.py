"""Arcee in the conformance kit."""

from ostro.testing import ArchitectureTests


class TestArcee(ArchitectureTests):
    name = "arcee"
