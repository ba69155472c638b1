"""Mistral 3 in two GGUF files: the config and the names of text and projector (mmproj).

Source: llama.cpp's converter and tools/mtmd, 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ostro import Container, Names, Pair, Unpermute
from ostro.architectures.llava import model
from ostro.architectures.llava import projector as llava
from ostro.architectures.mistral import names as mistral
from ostro.architectures.mistral3.model import Config
from ostro.errors import ConfigError

BLOCK = {
    "ln1": "attention_norm",
    "attn_v": "attention.v_proj",
    "attn_out": "attention.o_proj",
    "ln2": "ffn_norm",
    "ffn_gate": "feed_forward.gate_proj",
    "ffn_up": "feed_forward.up_proj",
    "ffn_down": "feed_forward.down_proj",
}
TOWER = {
    "patch_embd": "patch_conv",
    "pre_ln": "ln_pre",
    **{f"blk.{{i}}.{theirs}": f"encoder.layers.{{i}}.{ours}" for theirs, ours in BLOCK.items()},
}
PROJECTOR = {
    "1": "linear_1",
    "2": "linear_2",
    "input_norm": "norm",
    "patch_merger": "patch_merger.merging_layer",
}


def gguf_config(container: Container) -> dict[str, Any]:
    """The config.json. Raises ConfigError for Pixtral 12B, which has no patch merger."""
    if "mmproj.mm.patch_merger.weight" not in container.tensors:
        raise ConfigError(
            f"{container.path.name}: its projector has no mm.patch_merger; Pixtral 12B is "
            "implemented for its original files only"
        )
    tower = llava.tower(container)
    merge = "vision.spatial_merge_size"
    known = f"clip.{merge}" in container.metadata
    edge = {"longest_edge": tower["image_size"]}
    return {
        "text_config": mistral.gguf_config(container),
        "vision_config": tower,
        "spatial_merge_size": llava.stated(container, merge) if known else 2,
        "multimodal_projector_bias": "mmproj.mm.1.bias" in container.tensors,
        "image_token_index": llava.token(container, "[IMG]"),
        "image_break_token_id": llava.token(container, "[IMG_BREAK]"),
        "image_end_token_id": llava.token(container, "[IMG_END]"),
        "preprocessor_config": llava.preprocessor(container, size=edge),
    }


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the projector."""
    return llava.image_keys(config, raw, "pixtral", spatial_merge_size=config.spatial_merge_size)


def names(config: Config) -> Names:
    """The names on the hub, and in the two GGUF files, which interleave the halves of q and k."""
    hub, turned = model.names(config), Unpermute(config.vision.num_attention_heads)
    heads = tuple(
        Pair(
            f"mmproj.v.blk.{{i}}.attn_{side}",
            f"vision_tower.encoder.layers.{{i}}.attention.{side}_proj",
            turned,
        )
        for side in "qk"
    )
    tower = llava.pairs(TOWER, "v", "vision_tower")
    ends = llava.pairs(PROJECTOR, "mm", "multi_modal_projector")
    gguf = (*heads, *tower, *ends, *model.text_names(config).gguf)
    ignore = (*hub.ignore, "mmproj.v.token_embd.img_break")
    return replace(hub, gguf=gguf, ignore=ignore)
