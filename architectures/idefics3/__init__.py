"""Idefics 3 and SmolVLM with images."""

from collections.abc import Iterable
from dataclasses import replace

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

FAKE, WHOLE = "<fake_token_around_image>", "<global-img>"
TILES = {f"<row_{i + 1}_col_{j + 1}>": 6 + 3 * i + j for i in range(3) for j in range(3)}
TEXT = {"model_type": "llama", "max_position_embeddings": 512}
TOWER = {
    "model_type": "idefics3_vision",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 26,
    "patch_size": 6,
}
WIDE_TOWER = {**TOWER, "hidden_size": 256, "intermediate_size": 512}
SMOL = {"model_type": "smolvlm_vision"}
TINY = {
    "image_token_id": 1,
    "image_marks": {FAKE: 2, WHOLE: 3, "\n": 4, "\n\n": 5, **TILES},
    "scale_factor": 2,
    "text_config": {**LLAMA, **TEXT},
    "vision_config": TOWER,
}
WIDE = {
    **TINY,
    "text_config": {**LLAMA_WIDE, **TEXT},
    "vision_config": WIDE_TOWER,
}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    idefics3 = Architecture(
        name="idefics3",
        api=(0, 2),
        tasks=("text",),
        classes=("Idefics3ForConditionalGeneration",),
        gguf=("llama+idefics3",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names=f"{__name__}.projector:names",
        gguf_config=f"{__name__}.projector:gguf_config",
        gguf_metadata=f"{__name__}.projector:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Idefics3ForConditionalGeneration",
            mutants=f"{__name__}.mutants:mutants",
            examples=f"{__name__}.examples:examples",
        ),
        trunk=True,
    )
    yield idefics3
    yield replace(
        idefics3,
        name="smolvlm",
        classes=("SmolVLMForConditionalGeneration",),
        gguf=(),
        conformance=replace(
            idefics3.conformance,
            tiny={**TINY, "vision_config": {**TOWER, **SMOL}},
            wide={**WIDE, "vision_config": {**WIDE_TOWER, **SMOL}},
            reference="transformers:SmolVLMForConditionalGeneration",
        ),
        trunk=False,
    )
