"""DeepSeek-V3 against transformers."""

from ostro.core.testing.architecture import ArchitectureTests


class TestDeepseekV3(ArchitectureTests):
    name = "deepseek_v3"
