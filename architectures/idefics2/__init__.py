"""Idefics 2: Mistral with images of any size."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.mistral import TINY as MISTRAL
from ostro.architectures.mistral import WIDE as MISTRAL_WIDE

TEXT = {"model_type": "mistral", "max_position_embeddings": 512, "sliding_window": 64}
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 24,
    "patch_size": 6,
}
PERCEIVER = {
    "hidden_size": MISTRAL["hidden_size"],
    "rms_norm_eps": 1e-5,
    "resampler_n_latents": 7,
    "resampler_depth": 2,
    "resampler_n_heads": 4,
    "resampler_head_dim": 8,
    "num_key_value_heads": 2,
}
TINY = {
    "image_token_id": 1,
    "image_marks": {"<fake_token_around_image>": 2},
    "text_config": {**MISTRAL, **TEXT},
    "vision_config": TOWER,
    "perceiver_config": PERCEIVER,
}
WIDE = {
    **TINY,
    "text_config": {**MISTRAL_WIDE, **TEXT},
    "vision_config": {**TOWER, "hidden_size": 256, "intermediate_size": 512},
    "perceiver_config": {
        **PERCEIVER,
        "hidden_size": MISTRAL_WIDE["hidden_size"],
        "resampler_head_dim": 64,
    },
}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="idefics2",
        api=(0, 2),
        tasks=("text",),
        classes=("Idefics2ForConditionalGeneration",),
        config=f"{__name__}.config:Config",
        model=f"{__name__}.model:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names="ostro.architectures.idefics3.model:names",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Idefics2ForConditionalGeneration",
            mutants=f"{__name__}.mutants:mutants",
            examples=f"{__name__}.examples:examples",
        ),
    )
