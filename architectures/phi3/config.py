"""Phi-3: Llama with a window on all layers, longrope and partial rotation (Abdin et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ostro.architectures.llama import model as llama
from ostro.config import WindowConfig, check_sizes
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config(WindowConfig, llama.Config):
    original_max_position_embeddings: int = 4096

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        """The first releases named longrope "su" or "yarn"."""
        values = super().derive(raw, values)
        rule = values["rope_parameters"]
        if rule.get("rope_type") in ("su", "yarn"):
            values["rope_parameters"] = {**rule, "rope_type": "longrope"}
        return values

    def check(self) -> None:
        super().check()
        check_sizes(self, "original_max_position_embeddings")
        if self.rope_parameters.get("rope_type") not in ("default", "longrope"):
            raise ConfigError(
                f"rope_type={self.rope_parameters.get('rope_type')!r:.80} is not implemented; "
                "only 'default' and 'longrope' are"
            )
