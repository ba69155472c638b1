"""Gemma 3: the text models, and the multimodal models."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.gemma2 import TINY as GEMMA
from ostro.architectures.gemma2 import WIDE as GEMMA_WIDE

LAYERS = {
    "num_hidden_layers": 6,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
    },
}
TINY = {**GEMMA, **LAYERS}
WIDE = {
    **GEMMA_WIDE,
    **LAYERS,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "query_pre_attn_scalar": 256,
}
TOWER = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 24,
    "patch_size": 3,
    "vision_use_head": False,
}
SIGHT = {
    "vision_config": TOWER,
    "mm_tokens_per_image": 16,
    "image_token_index": 1,
    "boi_token_index": 2,
    "eoi_token_index": 3,
}
WIDE_TOWER = {**TOWER, "hidden_size": 256, "intermediate_size": 512}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="gemma3",
        api=(0, 2),
        classes=("Gemma3ForCausalLM",),
        gguf=("gemma3",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names="ostro.architectures.gemma2.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Gemma3ForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
    yield Architecture(
        name="gemma3_images",
        api=(0, 2),
        tasks=("text",),
        classes=("Gemma3ForConditionalGeneration",),
        gguf=("gemma3+gemma3",),
        config=f"{__name__}.vision:Config",
        model=f"{__name__}.vision:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names=f"{__name__}.projector:names",
        gguf_config=f"{__name__}.projector:gguf_config",
        gguf_metadata=f"{__name__}.projector:gguf_metadata",
        conformance=Conformance(
            tiny={**SIGHT, "text_config": {"model_type": "gemma3_text", **TINY}},
            wide={
                **SIGHT,
                "text_config": {"model_type": "gemma3_text", **WIDE},
                "vision_config": WIDE_TOWER,
            },
            reference="transformers:Gemma3ForConditionalGeneration",
            mutants=f"{__name__}.vision_mutants:mutants",
            examples=f"{__name__}.examples:examples",
        ),
    )
