"""SmolLM3 against transformers."""

from ostro.plugins.conformance.architecture import ArchitectureTests


class TestSmolLM3(ArchitectureTests):
    name = "smollm3"
