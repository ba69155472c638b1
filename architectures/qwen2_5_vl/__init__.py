"""Qwen2.5-VL."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

TEXT = {key: value for key, value in LLAMA.items() if key != "head_dim"}
WIDE_TEXT = {key: value for key, value in LLAMA_WIDE.items() if key != "head_dim"}
TOWER = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 4,
    "window_size": 16,
    "fullatt_block_indexes": [1],
    "tokens_per_second": 3,
}
TOKENS = {
    "image_token_id": 1,
    "video_token_id": 2,
    "vision_start_token_id": 3,
    "vision_end_token_id": 4,
}
"""Special token ids; the first two are below the ids of random prompts."""


ALIGNED = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_heads": 4,
    "patch_size": 16,
}


def shape(text: Mapping[str, Any], tower: Mapping[str, Any], sections: list[int]) -> dict[str, Any]:
    """The config of a small model: decoder, vision encoder, and mrope sections."""
    rope = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": sections}
    return {
        "text_config": {**text, "rms_norm_eps": 1e-6, "rope_parameters": rope},
        "vision_config": {**tower, "out_hidden_size": text["hidden_size"]},
        **TOKENS,
    }


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="qwen2_5_vl",
        api=(0, 2),
        classes=("Qwen2_5_VLForConditionalGeneration",),
        gguf=("qwen2vl+qwen2.5vl_merger",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names=f"{__name__}.projector:names",
        gguf_config=f"{__name__}.projector:gguf_config",
        gguf_metadata=f"{__name__}.projector:gguf_metadata",
        conformance=Conformance(
            tiny=shape(TEXT, TOWER, [2, 3, 3]),
            wide=shape(WIDE_TEXT, {**TOWER, **ALIGNED, "window_size": 64}, [8, 12, 12]),
            reference=f"{__name__}.reference:timed",
            mutants=f"{__name__}.mutants:mutants",
            examples=f"{__name__}.examples:examples",
        ),
        trunk=True,
    )
    # a GGUF file without a projector is a text model, equal to Qwen2
    yield Architecture(
        name="qwen2_vl_text",
        api=(0, 2),
        gguf=("qwen2vl",),
        config="ostro.architectures.qwen2.model:Config",
        model="ostro.architectures.qwen2.model:Model",
        names="ostro.architectures.qwen2.names:names",
        gguf_config="ostro.architectures.llama.names:gguf_config",
        conformance=Conformance(
            tiny=TEXT,
            wide=WIDE_TEXT,
            reference="transformers:Qwen2ForCausalLM",
        ),
    )
