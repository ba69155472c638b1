"""Qwen2-VL."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.qwen2_5_vl import TEXT, WIDE_TEXT
from ostro.architectures.qwen2_5_vl import shape as sighted

TOWER = {"depth": 3, "embed_dim": 32, "mlp_ratio": 2, "num_heads": 2, "patch_size": 4}
WIDE_TOWER = {"depth": 3, "embed_dim": 256, "mlp_ratio": 2, "num_heads": 4, "patch_size": 16}


def shape(text: Mapping[str, Any], tower: Mapping[str, Any], sections: list[int]) -> dict[str, Any]:
    """The config of a small model; the tower's hidden_size is the width of the text."""
    made = sighted(text, tower, sections)
    return {**made, "vision_config": {**tower, "hidden_size": text["hidden_size"]}}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="qwen2_vl",
        api=(0, 2),
        classes=("Qwen2VLForConditionalGeneration",),
        gguf=("qwen2vl+qwen2vl_merger",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names=f"{__name__}.projector:names",
        gguf_config=f"{__name__}.projector:gguf_config",
        gguf_metadata=f"{__name__}.projector:gguf_metadata",
        conformance=Conformance(
            tiny=shape(TEXT, TOWER, [2, 3, 3]),
            wide=shape(WIDE_TEXT, WIDE_TOWER, [8, 12, 12]),
            reference="ostro.architectures.qwen2_5_vl.reference:timed2",
            mutants=f"{__name__}.mutants:mutants",
            examples=f"{__name__}.examples:examples",
        ),
    )
