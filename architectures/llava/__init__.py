"""LLaVA."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

TOWER = {
    "model_type": "clip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "image_size": 24,
    "patch_size": 6,
}
TINY = {
    "image_token_index": 1,
    "text_config": {"model_type": "llama", **LLAMA},
    "vision_config": TOWER,
}
WIDE = {
    **TINY,
    "text_config": {"model_type": "llama", **LLAMA_WIDE},
    "vision_config": {**TOWER, "hidden_size": 256, "intermediate_size": 512},
}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="llava",
        api=(0, 2),
        tasks=("text",),
        classes=("LlavaForConditionalGeneration",),
        gguf=("llama+mlp", "phi3+mlp", "qwen2+mlp", "qwen3+mlp"),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names=f"{__name__}.projector:names",
        gguf_config=f"{__name__}.projector:gguf_config",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:LlavaForConditionalGeneration",
            mutants=f"{__name__}.mutants:mutants",
            examples=f"{__name__}.examples:examples",
        ),
        trunk=True,
    )
