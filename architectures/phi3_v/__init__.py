"""Phi-3-vision and Phi-3.5-vision."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llava import TOWER as CLIP
from ostro.architectures.phi3 import TINY as PHI3
from ostro.architectures.phi3 import WIDE as PHI3_WIDE

TOWER = {key: value for key, value in CLIP.items() if key != "model_type"}


def shape(text: Mapping[str, Any], width: int) -> dict[str, Any]:
    """A config with a tower of this width; a tile of 24 pixels has two cells on a side."""
    return {
        **text,
        "max_position_embeddings": 512,
        "sliding_window": 64,
        "image_token_id": 1,
        "vision_config": {**TOWER, "hidden_size": width, "intermediate_size": 2 * width},
        "img_processor": {
            "name": "clip_vision_model",
            "image_dim_out": width,
            "num_img_tokens": 4,
        },
        "embd_layer": {
            "embedding_cls": "image",
            "hd_transform_order": "sub_glb",
            "projection_cls": "mlp",
            "use_hd_transform": True,
            "with_learnable_separator": True,
        },
    }


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="phi3_v",
        api=(0, 2),
        tasks=("text",),
        classes=("Phi3VForCausalLM",),
        config=f"{__name__}.config:Config",
        model=f"{__name__}.model:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names=f"{__name__}.names:names",
        conformance=Conformance(
            tiny=shape(PHI3, 32),
            wide=shape(PHI3_WIDE, 256),
            reference=f"{__name__}.reference:Reference",
            mutants=f"{__name__}.mutants:mutants",
            examples=f"{__name__}.examples:examples",
        ),
    )
