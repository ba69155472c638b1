"""Llama 3.2 Vision."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

CROSS = {
    "model_type": "mllama_text_model",
    "num_hidden_layers": 4,
    "cross_attention_layers": [1, 3],
}
SPECIAL = {"bos_token_id": 3, "eos_token_id": 4, "pad_token_id": 5}
TEXT = {key: value for key, value in {**LLAMA, **CROSS, **SPECIAL}.items() if key != "head_dim"}
WIDE_TEXT = {**TEXT, **{key: LLAMA_WIDE[key] for key in ("hidden_size", "intermediate_size")}}
TOWER = {
    "model_type": "mllama_vision_model",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_global_layers": 2,
    "attention_heads": 4,
    "image_size": 12,
    "patch_size": 4,
    "intermediate_layers_indices": [0, 2],
    "vision_output_dim": 96,
}
WIDE_TOWER = {**TOWER, "hidden_size": 256, "intermediate_size": 512, "vision_output_dim": 768}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="mllama",
        api=(0, 2),
        tasks=("text",),
        classes=("MllamaForConditionalGeneration",),
        config=f"{__name__}.config:Config",
        model=f"{__name__}.model:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names=f"{__name__}.model:names",
        conformance=Conformance(
            tiny={"text_config": TEXT, "vision_config": TOWER, "image_token_index": 128},
            wide={"text_config": WIDE_TEXT, "vision_config": WIDE_TOWER, "image_token_index": 128},
            reference=f"{__name__}.reference:seeing",
            mutants=f"{__name__}.mutants:mutants",
            examples=f"{__name__}.examples:examples",
        ),
    )
