"""Pixtral's vision encoder, for other models: images of any size."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl

TINY = {
    "model_type": "pixtral",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 48,
    "patch_size": 6,
}
WIDE = {**TINY, "hidden_size": 256, "intermediate_size": 512}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="pixtral",
        api=(0, 2),
        tasks=(),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.model:names",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:PixtralVisionModel",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
