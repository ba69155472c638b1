"""Qwen2-Audio."""

from collections.abc import Iterable
from typing import Any

from ostro import Architecture, Conformance, hookimpl

TINY: dict[str, Any] = {
    "audio_token_index": 120,
    "audio_config": {
        "model_type": "qwen2_audio_encoder",
        "num_mel_bins": 20,
        "d_model": 32,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "max_source_positions": 50,
    },
    "text_config": {
        "model_type": "qwen2",
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    },
}

WIDE = {
    **TINY,
    "audio_config": {**TINY["audio_config"], "d_model": 256, "encoder_ffn_dim": 512},
    "text_config": {**TINY["text_config"], "hidden_size": 256, "intermediate_size": 512},
}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="qwen2_audio",
        api=(0, 2),
        tasks=("text",),
        classes=("Qwen2AudioForConditionalGeneration",),
        gguf=("qwen2+qwen2a",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names=f"{__name__}.projector:names",
        gguf_config=f"{__name__}.projector:gguf_config",
        gguf_metadata=f"{__name__}.projector:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Qwen2AudioForConditionalGeneration",
            mutants=f"{__name__}.mutants:mutants",
            examples=f"{__name__}.examples:examples",
        ),
    )
