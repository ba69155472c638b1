"""FLUX.1, dev and schnell: images from text."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Architecture, Conformance, Files, hookimpl
from ostro.architectures.clip import TINY as CLIP
from ostro.architectures.clip import WIDE as WIDE_CLIP
from ostro.architectures.t5 import TINY as T5
from ostro.architectures.t5 import WIDE as WIDE_T5

TINY: dict[str, Any] = {
    "_class_name": "FluxPipeline",
    "transformer": {
        "in_channels": 16,
        "num_layers": 2,
        "num_single_layers": 2,
        "attention_head_dim": 32,
        "num_attention_heads": 2,
        "joint_attention_dim": 64,
        "pooled_projection_dim": 64,
        "guidance_embeds": True,
        "axes_dims_rope": [8, 12, 12],
    },
    "vae": {
        "block_out_channels": [8, 16, 16],
        "layers_per_block": 1,
        "latent_channels": 4,
        "norm_num_groups": 4,
        "sample_size": 64,
        "scaling_factor": 0.36,
        "shift_factor": 0.12,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
    },
    "text_encoder": CLIP,
    "text_encoder_2": T5,
    "scheduler": {"shift": 3.0, "use_dynamic_shifting": True},
}
WIDE = {
    **TINY,
    "transformer": {
        **TINY["transformer"],
        "in_channels": 256,
        "attention_head_dim": 64,
        "num_attention_heads": 4,
        "joint_attention_dim": 256,
        "pooled_projection_dim": 256,
        "axes_dims_rope": [16, 24, 24],
    },
    "vae": {**TINY["vae"], "block_out_channels": [8, 16, 256], "latent_channels": 64},
    "text_encoder": WIDE_CLIP,
    "text_encoder_2": WIDE_T5,
}


def claims(files: Files, config: Mapping[str, Any]) -> bool:
    return config.get("_class_name") == "FluxPipeline"


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="flux",
        api=(0, 2),
        tasks=("draw",),
        classes=("FluxPipeline",),
        claims=claims,
        config=f"{__name__}.config:Config",
        model=f"{__name__}.model:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names=f"{__name__}.names:names",
        sensitive=("transformer.norm_out.*", "transformer.x_embedder", "transformer.proj_out"),
        conformance=Conformance(tiny=TINY, wide=WIDE, mutants=f"{__name__}.mutants:mutants"),
        trunk=True,
    )
