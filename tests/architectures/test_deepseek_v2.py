"""DeepSeek-V2 against transformers."""

from ostro.plugins.conformance.architecture import ArchitectureTests


class TestDeepseekV2(ArchitectureTests):
    name = "deepseek_v2"
