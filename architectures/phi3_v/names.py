"""Phi-3-vision's names on the hub: Phi-3's, and the vision encoder below the embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ostro import Names, Pair
from ostro.architectures.phi3.names import names as phi3
from ostro.architectures.phi3_v.config import Config

ROOT = "model.vision_embed_tokens"
TOWER = f"{ROOT}.img_processor.vision_model"
TABLE = "model.embed_tokens"
SHARED = f"{ROOT}.wte"


@dataclass(frozen=True, kw_only=True)
class TableNames(Names):
    """Checkpoints contain the embeddings of tokens under one of two names, or both."""

    def read(self, names: Iterable[str], space: str = "hub") -> tuple[list[Any], list[str]]:
        """As the base class; the copy below the images is skipped if there are both."""
        found = list(names)
        if any(name.startswith(f"{TABLE}.") for name in found):
            found = [name for name in found if not name.startswith(f"{SHARED}.")]
        return super().read(found, space)


def names(config: Config) -> Names:
    """Unused layers of the vision encoder, and the norm after them, are ignored."""
    count, used = config.vision_config.num_hidden_layers, config.seen.num_hidden_layers
    unused = [f"encoder.layers.{i}.{{rest}}" for i in range(used, count)]
    unused += ["post_layernorm.{rest}", "embeddings.position_ids"]
    projection = f"{ROOT}.img_projection"
    return TableNames(
        hub=(
            Pair(TABLE, TABLE),
            Pair(SHARED, TABLE),
            Pair(f"{projection}.0", f"{projection}.linear_1"),
            Pair(f"{projection}.2", f"{projection}.linear_2"),
            *phi3(config).hub,
        ),
        ignore=(*Names.ignore, *(f"{TOWER}.{name}" for name in unused)),
    )
