"""Dia 1.6B: speech of dialogues from text."""

from collections.abc import Iterable
from typing import Any

from ostro import Architecture, Conformance, hookimpl

TINY: dict[str, Any] = {
    "encoder_config": {
        "vocab_size": 256,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 64,
    },
    "decoder_config": {
        "vocab_size": 36,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "cross_num_attention_heads": 4,
        "cross_num_key_value_heads": 2,
        "cross_head_dim": 16,
        "cross_hidden_size": 48,
        "num_channels": 4,
        "eos_token_id": 32,
        "pad_token_id": 33,
        "bos_token_id": 34,
        "max_position_embeddings": 96,
    },
    "delay_pattern": [0, 3, 4, 5],
}
ALIGNED = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
WIDE = {
    **TINY,
    "encoder_config": {**TINY["encoder_config"], **ALIGNED},
    "decoder_config": {
        **TINY["decoder_config"],
        **ALIGNED,
        "cross_head_dim": 64,
        "cross_hidden_size": 256,
    },
}
CODEC = {
    "encoder_hidden_size": 8,
    "downsampling_ratios": [2, 4],
    "decoder_hidden_size": 32,
    "n_codebooks": 4,
    "codebook_size": 32,
    "codebook_dim": 6,
    "sampling_rate": 800,
}
"""A tiny codec, whose checkpoint is a separate folder."""


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="dia",
        api=(0, 2),
        tasks=("speak",),
        classes=("DiaForConditionalGeneration",),
        config=f"{__name__}.config:Config",
        model=f"{__name__}.model:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names=f"{__name__}.names:names",
        companions=f"{__name__}.folder:companions",
        sensitive=("logits_dense",),
        conformance=Conformance(
            tiny={**TINY, "codec": CODEC},
            wide={**WIDE, "codec": CODEC},
            mutants=f"{__name__}.mutants:mutants",
        ),
    )
