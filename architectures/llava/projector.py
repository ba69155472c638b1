"""LLaVA in two GGUF files: the config and the names of text and projector (mmproj).

Other multimodal families use its helpers for keys, tokens, and the names of encoder layers. Source:
llama.cpp's converter and tools/mtmd, 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ostro import Container, Names, Pair, resolve
from ostro.architectures.llava import model as llava
from ostro.architectures.llava.parts import text_record
from ostro.errors import ConfigError

BLOCK = {
    "ln1": "layer_norm1",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln2": "layer_norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
TOWER = {
    "class_embd": "embeddings.class_embedding",
    "patch_embd": "embeddings.patch_embedding",
    "position_embd": "embeddings.position_embedding",
    "pre_ln": "pre_layrnorm",
    "post_ln": "post_layernorm",
    **{f"blk.{{i}}.{theirs}": f"encoder.layers.{{i}}.{ours}" for theirs, ours in BLOCK.items()},
}
"""The names of CLIP and SigLIP encoders."""

EPSILON = 1e-6
"""The epsilon of norms of encoders whose configs do not state it."""


def pairs(names: Mapping[str, str], theirs: str, ours: str) -> tuple[Pair, ...]:
    """The pairs of names below `theirs` in a projector and below `ours`."""
    return tuple(Pair(f"mmproj.{theirs}.{a}", f"{ours}.{b}") for a, b in names.items())


def stated(container: Container, key: str, kind: type = int) -> Any:
    """A key of a projector below "clip.": a positive integer, or a list of numbers.

    Raises ConfigError for another value.
    """
    found: Any = container.metadata.get(f"clip.{key}")
    if hasattr(found, "tolist"):
        found = found.tolist()
    if isinstance(found, kind) and (found > 0 if kind is int else True):
        return found
    raise ConfigError(
        f"{container.path.name}: its projector has clip.{key}={found!r:.80}; convert it again"
    )


def tower(container: Container) -> dict[str, Any]:
    """The config of a vision transformer over square images."""
    act = [name for name in ("gelu", "silu") if container.metadata.get(f"clip.use_{name}")]
    return {
        "hidden_size": stated(container, "vision.embedding_length"),
        "intermediate_size": stated(container, "vision.feed_forward_length"),
        "num_hidden_layers": stated(container, "vision.block_count"),
        "num_attention_heads": stated(container, "vision.attention.head_count"),
        "image_size": stated(container, "vision.image_size"),
        "patch_size": stated(container, "vision.patch_size"),
        "layer_norm_eps": stated(container, "vision.attention.layer_norm_epsilon", float),
        "hidden_act": (*act, "quick_gelu")[0],
    }


def preprocessor(container: Container, **more: Any) -> dict[str, Any]:
    """The preprocessor_config.json of a projector: mean, std, and `more`."""
    kinds = ("image_mean", "image_std")
    return {kind: stated(container, f"vision.{kind}", list) for kind in kinds} | more


ACTS = {"gelu": "use_gelu", "gelu_pytorch_tanh": "use_gelu", "silu": "use_silu"}
"""The keys of activations; without one, it is quick_gelu."""

DEPTH, HEADS = ("num_hidden_layers", "depth"), ("num_attention_heads", "num_heads")
"""Names of fields of vision configs."""


def image_keys(config: Any, raw: Mapping[str, Any], projector: str, **more: Any) -> dict[str, Any]:
    """The keys of a projector of images: the encoder's sizes, its preprocessing, and `more`.

    config: typed, with `text` and `vision`. raw: the config.json, whose "preprocessor_config" are
    the settings of the processor. Without settings, there are no keys. `more` are keys below
    "clip.vision."; None omits one.
    """
    vision, images = config.vision, raw.get("preprocessor_config") or {}
    if not images:
        return {}
    depth, heads = (
        next(getattr(vision, n) for n in f if hasattr(vision, n)) for f in (DEPTH, HEADS)
    )
    found = {
        "projection_dim": config.text.hidden_size,
        "image_size": getattr(vision, "image_size", None),
        "patch_size": vision.patch_size,
        "embedding_length": vision.hidden_size,
        "feed_forward_length": vision.intermediate_size,
        "block_count": depth,
        "attention.head_count": heads,
        "attention.layer_norm_epsilon": getattr(vision, "layer_norm_eps", EPSILON),
        "image_mean": images.get("image_mean"),
        "image_std": images.get("image_std"),
        **more,
    }
    act = ACTS.get(getattr(vision, "hidden_act", ""))
    keys = {f"clip.vision.{key}": value for key, value in found.items()}
    return {
        "clip.has_vision_encoder": True,
        "clip.projector_type": projector,
        **({f"clip.{act}": True} if act else {}),
        **keys,
    }


def token(container: Container, *texts: str) -> int:
    """The id of the first of `texts` in the vocabulary. Raises ConfigError."""
    tokens = container.metadata.get("tokenizer.ggml.tokens") or []
    for text in texts:
        if text in tokens:
            return int(tokens.index(text))
    raise ConfigError(
        f"{container.path.name}: its vocabulary has no {texts[0]!r}, the placeholder of media; "
        "convert the model again"
    )


def gguf_config(container: Container) -> dict[str, Any]:
    """The config.json. Layers after the feature layer are not in the file.

    Images are padded to squares, as in llama.cpp. Raises ConfigError for LLaVA 1.6, which splits
    images into tiles.
    """
    if "clip.vision.image_grid_pinpoints" in container.metadata:
        raise ConfigError(
            f"{container.path.name}: clip.vision.image_grid_pinpoints, the tiles of LLaVA 1.6, are "
            "not implemented"
        )
    architecture = container.metadata["general.architecture"]
    text = resolve(str(text_record(architecture).gguf_config))(container)
    vision = tower(container)
    side, layers = vision["image_size"], [vision["num_hidden_layers"]]
    if "clip.vision.feature_layer" in container.metadata:
        layers = stated(container, "vision.feature_layer", list)
    images = preprocessor(
        container,
        image_processor_type="LlavaImageProcessor",
        do_pad=True,
        size={"shortest_edge": side},
        crop_size={"height": side, "width": side},
    )
    return {
        "text_config": {**text, "model_type": architecture},
        "vision_config": vision,
        "vision_feature_layer": layers,
        "image_token_index": token(container, "<image>"),
        "preprocessor_config": images,
    }


def names(config: llava.Config) -> Names:
    """The names on the hub, and in the two GGUF files."""
    ends = pairs({"0": "linear_1", "2": "linear_2"}, "mm", "multi_modal_projector")
    tower_pairs = pairs(TOWER, "v", "vision_tower")
    text = llava.text_names(config).gguf
    hub = llava.names(config)
    unused = (*hub.ignore, "mmproj.v.post_ln.{rest}")
    return replace(hub, gguf=(*tower_pairs, *ends, *text), ignore=unused)
