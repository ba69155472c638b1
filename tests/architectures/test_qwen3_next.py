"""Qwen3-Next against transformers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ostro.architectures.qwen3_next import TINY
from ostro.architectures.qwen3_next.model import Config
from ostro.architectures.qwen3_next.names import gguf_config, names
from ostro.plugins.conformance.architecture import ArchitectureTests


class TestQwen3Next(ArchitectureTests):
    name = "qwen3_next"


def test_defaults_are_those_of_the_family() -> None:
    named = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    config = Config.from_hf({name: 16 for name in named})
    assert (config.intermediate_size, config.head_dim, config.num_local_experts) == (5632, 256, 512)
    assert config.max_position_embeddings == 32768 and config.norm_topk_prob


def test_layers_of_a_gguf_file_that_guess_further_tokens_are_left_out() -> None:
    """They lie behind the others, and are counted with them."""
    keys = {"qwen3next.block_count": 4, "qwen3next.nextn_predict_layers": 1}
    metadata = {"general.architecture": "qwen3next", **keys}
    attends = ("blk.1.attn_q.weight", "blk.3.attn_q.weight")
    guessing = (*attends[1:], "blk.3.nextn.eh_proj.weight", "blk.3.ffn_up_exps.weight")
    tensors = {name: SimpleNamespace(format="F32", nbytes=4) for name in (*attends, *guessing)}
    container: Any = SimpleNamespace(path=Path("x.gguf"), metadata=metadata, tensors=tensors)
    raw = gguf_config(container)
    assert raw["num_hidden_layers"] == 3 == len(raw["layer_types"])
    assert raw["layer_types"][1] == "full_attention"
    named, left = names(Config.from_hf(TINY)).read(tensors, "gguf")
    assert [each.name for each in named] == ["model.layers.1.self_attn.q_proj.weight"] and not left
