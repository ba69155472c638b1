"""Phi-3-vision's config: that of Phi-3, with CLIP ViT-L/14 at 336 pixels as the vision encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ostro.architectures.clip.vision import VisionConfig
from ostro.architectures.phi3 import config as phi3
from ostro.errors import ConfigError

CLIP = VisionConfig(
    hidden_size=1024,
    intermediate_size=4096,
    num_hidden_layers=24,
    num_attention_heads=16,
    image_size=336,
    patch_size=14,
    projection_dim=768,
)
"""The vision encoder of both published models, whose config.json has its name only."""

IMPLEMENTED: Mapping[str, Mapping[str, tuple[Any, Any]]] = {
    "img_processor": {"name": ("clip_vision_model", None), "type_feature": ("patch", "patch")},
    "embd_layer": {
        "embedding_cls": ("image", None),
        "hd_transform_order": ("sub_glb", "glb_sub"),
        "projection_cls": ("mlp", "linear"),
        "use_hd_transform": (True, False),
        "with_learnable_separator": (True, False),
    },
}
"""Keys of nested objects: the implemented value, and the default."""


@dataclass(frozen=True, kw_only=True)
class Config(phi3.Config):
    """image_token_id: the placeholder of images, by default the id of <|image|>."""

    image_token_id: int = 32044
    vision_config: VisionConfig = CLIP
    img_processor: dict[str, Any] = field(default_factory=dict)
    embd_layer: dict[str, Any] = field(default_factory=dict)

    @property
    def cells(self) -> int:
        """Cells of 2 x 2 patches on a side of a tile."""
        return self.vision_config.image_size // self.vision_config.patch_size // 2

    @property
    def layer(self) -> Any:
        """The feature layer, counted from the embeddings (0)."""
        layer = self.img_processor.get("layer_idx", -2)
        if type(layer) is int and layer < 0:
            return layer + self.vision_config.num_hidden_layers + 1
        return layer

    @property
    def seen(self) -> VisionConfig:
        """The vision config without the layers after the feature layer."""
        return replace(self.vision_config, num_hidden_layers=self.layer)

    def check(self) -> None:
        super().check()
        if not 0 <= self.image_token_id < self.vocab_size:
            raise ConfigError(
                f"image_token_id={self.image_token_id} is not within 0..{self.vocab_size - 1}"
            )
        parts: Mapping[str, dict[str, Any]] = {
            "img_processor": self.img_processor,
            "embd_layer": self.embd_layer,
        }
        for part, keys in IMPLEMENTED.items():
            for key, (value, default) in keys.items():
                if (found := parts[part].get(key, default)) != value:
                    raise ConfigError(
                        f"{part}: {key}={found!r:.80} is not implemented; expected {value!r}"
                    )
        vision = self.vision_config
        if vision.num_channels != 3 or vision.image_size % (2 * vision.patch_size):
            raise ConfigError(
                f"vision_config: num_channels={vision.num_channels} is not 3, or image_size="
                f"{vision.image_size} is not a multiple of twice patch_size={vision.patch_size}"
            )
        sizes = {"image_dim_out": vision.hidden_size, "num_img_tokens": self.cells**2}
        for key, value in sizes.items():
            if (found := self.img_processor.get(key, value)) != value:
                raise ConfigError(
                    f"img_processor: {key}={found!r:.80}, but the vision encoder has {value}"
                )
        if type(self.layer) is not int or not 1 <= self.layer <= vision.num_hidden_layers:
            raise ConfigError(
                f"img_processor: layer_idx={self.img_processor.get('layer_idx')!r:.80} is not a "
                f"layer of a vision encoder of {vision.num_hidden_layers} layers"
            )
