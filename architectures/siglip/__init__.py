"""SigLIP: the vision encoder, also for other models."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl

TINY = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 24,
    "patch_size": 6,
    "vision_use_head": False,
}
WIDE = {**TINY, "hidden_size": 256, "intermediate_size": 512}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="siglip",
        api=(0, 2),
        tasks=(),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.model:names",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:SiglipVisionModel",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
