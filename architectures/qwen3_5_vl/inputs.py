"""Qwen3.5's inputs: those of Qwen3-VL with other default tokens."""

from __future__ import annotations

from ostro.architectures.qwen3_vl import inputs as qwen3_vl

TOKENS = {"image": 248056, "video": 248057, "vision_start": 248053, "vision_end": 248054}


class Inputs(qwen3_vl.Inputs):
    def token(self, name: str, default: int) -> int:
        return super().token(name, TOKENS.get(name, default))
