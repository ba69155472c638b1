"""Gemma 4: the text models, dense and with experts, and the models with images."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

SHAPE = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "sliding_window": 8,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 128,
    "global_head_dim": 32,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}
TINY = {**LLAMA, **SHAPE}
WIDE = {
    **LLAMA_WIDE,
    **SHAPE,
    # one layer and small heads: scores are not scaled, and those of wide heads amplify rounding
    "num_hidden_layers": 1,
    "layer_types": ["full_attention"],
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 256,
    "num_attention_heads": 32,
    "head_dim": 8,
    "global_head_dim": 16,
}
EXPERTS = {
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
    "hidden_size_per_layer_input": 0,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 3,
    "moe_intermediate_size": 32,
}
LAYERS = {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
}
TOWER = {
    "model_type": "gemma4_vision",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "patch_size": 4,
    "pooling_kernel_size": 2,
    "position_embedding_size": 64,
    "use_clipped_linears": True,
    "standardize": True,
}
HEARING = {
    "model_type": "gemma4_audio",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "subsampling_conv_channels": [8, 4],
    "conv_kernel_size": 3,
    "attention_chunk_size": 4,
    "attention_context_left": 5,
    "output_proj_dims": 24,
}
SIGHT = {
    "vision_config": TOWER,
    "audio_config": HEARING,
    "image_token_id": 1,
    "video_token_id": 2,
    "audio_token_id": 3,
    "boi_token_id": 4,
    "eoi_token_id": 5,
    "boa_token_id": 6,
    "eoa_token_index": 7,
}
TEXT = {"model_type": "gemma4_text", "use_bidirectional_attention": "vision"}
TINY_TEXT = {
    **TINY,
    **TEXT,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "head_dim": 8,
    "global_head_dim": 16,
}
SMALL = {"num_attention_heads": 64, "head_dim": 4, "rms_norm_eps": 0.1}
"""Small heads and a large epsilon, with which rounding is amplified less."""

WIDE_TOWER = {
    **TOWER,
    **SMALL,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 1,
    "patch_size": 16,
}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="gemma4",
        api=(0, 2),
        classes=("Gemma4ForCausalLM",),
        gguf=("gemma4",),
        config=f"{__name__}.config:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Gemma4ForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
    # the class with experts, under a name of its own for the tests
    yield Architecture(
        name="gemma4_moe",
        api=(0, 2),
        config=f"{__name__}.config:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        conformance=Conformance(
            tiny={**TINY, **LAYERS, **EXPERTS},
            wide={**WIDE, **EXPERTS, "moe_intermediate_size": 256},
            reference="transformers:Gemma4ForCausalLM",
            mutants=f"{__name__}.mutants:mutants_of_experts",
        ),
    )
    yield Architecture(
        name="gemma4_images",
        api=(0, 2),
        classes=("Gemma4ForConditionalGeneration",),
        gguf=("gemma4+gemma4v",),
        config=f"{__name__}.vision:Config",
        model=f"{__name__}.vision:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names=f"{__name__}.projector:names",
        gguf_config=f"{__name__}.projector:gguf_config",
        gguf_metadata=f"{__name__}.projector:gguf_metadata",
        conformance=Conformance(
            tiny={**SIGHT, "text_config": TINY_TEXT},
            wide={
                **SIGHT,
                "text_config": {**WIDE, **TEXT, **SMALL, "global_head_dim": 8},
                "vision_config": WIDE_TOWER,
                "audio_config": None,
            },
            reference="transformers:Gemma4ForConditionalGeneration",
            mutants=f"{__name__}.vision_mutants:mutants",
            examples=f"{__name__}.examples:examples",
        ),
    )
