"""Classes that are Llama under another name, in folders as published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny.published import Tensors, publish, published_deviation, refuse_or_run

from ostro.core.errors import ConfigError
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject

CONFIGS: dict[str, dict[str, Any]] = {
    "LLaMAForCausalLM": {"model_type": "llama", "max_sequence_length": 2048},
    "AquilaForCausalLM": {"model_type": "aquila"},
    "IQuestCoderForCausalLM": {
        "model_type": "iquestcoder",
        "clip_qkv": None,
        "use_sliding_window": False,
        "max_window_layers": 0,
        "sliding_window": None,
    },
    "NanbeigeForCausalLM": {"model_type": "nanbeige", "num_loops": 1},
    "XverseForCausalLM": {"model_type": "xverse", "max_tokenizer_truncation": 6144},
}


def first_yi(tensors: Tensors) -> Tensors:
    """The names of the first checkpoints of Yi."""
    new = {"input_layernorm": "ln1", "post_attention_layernorm": "ln2"}
    for old, short in new.items():
        tensors = {name.replace(old, short): tensor for name, tensor in tensors.items()}
    return tensors


class TestLlamaVariants(ArchitectureTests):
    name = "llama_variants"

    @pytest.mark.parametrize("published", CONFIGS)
    def test_published_configs(self, tiny: Subject, tmp_path: Path, published: str) -> None:
        loaded = publish(tiny, tmp_path, {"architectures": [published], **CONFIGS[published]})
        assert published_deviation(tiny, loaded) <= BAR

    def test_names_of_the_first_yi(self, tiny: Subject, tmp_path: Path) -> None:
        loaded = publish(tiny, tmp_path, {"model_type": "Yi"}, first_yi)
        assert published_deviation(tiny, loaded) <= BAR

    @pytest.mark.parametrize(
        ("field", "value"),
        [("clip_qkv", 8.0), ("use_sliding_window", True), ("num_loops", 2)],
    )
    def test_refused_fields(self, plugins: PluginManager, field: str, value: Any) -> None:
        record = plugins.get("architectures", self.name)
        with pytest.raises(ConfigError, match=f"{field}={value} is not implemented"):
            resolve(record.config).from_hf({**record.conformance.tiny, field: value})

    @pytest.mark.parametrize("field", ["clip_qkv", "use_sliding_window", "num_loops"])
    def test_hostile_configs(self, tiny: Subject, tmp_path: Path, field: str) -> None:
        assert refuse_or_run(tiny, tmp_path, field) == [None]
