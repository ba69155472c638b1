"""GLM-4-9b-chat-hf against transformers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny.published import publish, published_deviation, refuse_or_run

from ostro.architectures.glm.names import gguf_config
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject

FLOATS = {"format": "F32", "nbytes": 4}


class TestGlm(ArchitectureTests):
    name = "glm"

    def test_published_rope(self, tiny: Subject, tmp_path: Path) -> None:
        config = {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}
        loaded = publish(tiny, tmp_path, config, dropped=("rope_parameters",))
        assert published_deviation(tiny, loaded) <= BAR

    @pytest.mark.parametrize("field", ["attention_bias", "head_dim", "partial_rotary_factor"])
    def test_hostile_configs(self, tiny: Subject, tmp_path: Path, field: str) -> None:
        refuse_or_run(tiny, tmp_path, field)


@pytest.mark.parametrize("biases", [(), ("attn_qkv",), ("attn_q", "attn_k", "attn_v")])
def test_biases_of_a_gguf_file(biases: tuple[str, ...]) -> None:
    tensors = {f"blk.0.{name}.bias": SimpleNamespace(**FLOATS) for name in biases}
    metadata = {"general.architecture": "chatglm"}
    container: Any = SimpleNamespace(path=Path("x.gguf"), metadata=metadata, tensors=tensors)
    assert gguf_config(container)["attention_bias"] is bool(biases)
