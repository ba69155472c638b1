"""gpt-oss against transformers."""

from __future__ import annotations

import pytest

from ostro.core.errors import Unsupported
from ostro.core.plugins import PluginManager
from ostro.core.testing.architecture import ArchitectureTests


class TestGptOss(ArchitectureTests):
    name = "gpt_oss"

    def test_mxfp4_is_refused_by_name(self, plugins: PluginManager) -> None:
        from ostro.architectures.gpt_oss.model import Config

        tiny = plugins.get("architectures", self.name).tiny
        with pytest.raises(Unsupported, match="stored as MXFP4, which is not read yet"):
            Config.from_hf({**tiny, "quantization_config": {"quant_method": "mxfp4"}})
