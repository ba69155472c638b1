"""CLIP: the text encoder, with or without projection, and the vision encoder for other models."""

from collections.abc import Iterable
from dataclasses import replace

from ostro import Architecture, Conformance, hookimpl

TINY = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 77,
    "projection_dim": 48,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WIDE = {**TINY, "hidden_size": 256, "intermediate_size": 512}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    encoder = Architecture(
        name="clip",
        api=(0, 2),
        tasks=("embed",),
        classes=("CLIPTextModel",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.model:names",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:CLIPTextModel",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
    yield encoder
    yield replace(
        encoder,
        name="clip_projected",
        trunk=False,
        classes=("CLIPTextModelWithProjection",),
        model=f"{__name__}.model:Projected",
        conformance=replace(
            encoder.conformance, reference="transformers:CLIPTextModelWithProjection"
        ),
    )
