"""Qwen3 with experts against transformers."""

from __future__ import annotations

from typing import Any

import pytest

from ostro.core.errors import ConfigError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, deviation, subject

CHANGES: dict[str, dict[str, Any]] = {
    "weights of the chosen sum to one": {"norm_topk_prob": True},
    "every other layer": {"decoder_sparse_step": 2, "mlp_only_layers": []},
    "all layers": {"mlp_only_layers": []},
    "a window": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
}


class TestQwen3Moe(ArchitectureTests):
    name = "qwen3_moe"

    @pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
    def test_configs_that_differ(self, changes: dict[str, Any], plugins: PluginManager) -> None:
        config = {**plugins.get("architectures", self.name).conformance.tiny, **changes}
        with subject(plugins, self.name, config=config) as made:
            logits = made.engine().runner.logits(made.prompt)
            assert deviation(logits, made.run_reference(made.prompt)) <= BAR

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"num_experts": 0}, "the number of experts, 0, is not within"),
            ({"num_experts": 2**30}, "the number of experts, 1073741824, is not within"),
            ({"num_experts_per_tok": 7}, r"num_experts_per_tok=7 is not within 1\.\.6"),
            ({"decoder_sparse_step": 0}, "decoder_sparse_step=0 is not within"),
            ({"moe_intermediate_size": 0}, "moe_intermediate_size=0 is not within"),
        ],
    )
    def test_sizes_that_cannot_be(
        self, changes: dict[str, Any], said: str, plugins: PluginManager
    ) -> None:
        from ostro.architectures.qwen3_moe.model import Config

        tiny = plugins.get("architectures", self.name).conformance.tiny
        with pytest.raises(ConfigError, match=said):
            Config.from_hf({**tiny, **changes})
