"""The references of Qwen2-VL and Qwen2.5-VL: transformers with the positions of Qwen's own code.

Text behind a video goes on after the largest of the video's positions, time included, as in Qwen's
code and in transformers up to 5.0. Later versions go on after its rows and columns.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import transformers
from torch import Tensor


def timed(config: transformers.Qwen2_5_VLConfig) -> Any:
    """Qwen2_5_VLForConditionalGeneration with text behind the times of videos."""
    return delayed(transformers.Qwen2_5_VLForConditionalGeneration(config))


def timed2(config: transformers.Qwen2VLConfig) -> Any:
    """Qwen2VLForConditionalGeneration with text behind the times of videos."""
    return delayed(transformers.Qwen2VLForConditionalGeneration(config))


timed.config_class = transformers.Qwen2_5_VLConfig  # type: ignore[attr-defined]
timed2.config_class = transformers.Qwen2VLConfig  # type: ignore[attr-defined]


def delayed(model: Any) -> Any:
    plain = model.model.get_rope_index

    def index(*ids: Tensor, mm_token_type_ids: Tensor, **named: Any) -> tuple[Tensor, Tensor]:
        positions, _ = plain(*ids, mm_token_type_ids=mm_token_type_ids, **named)
        for row, kinds in enumerate(mm_token_type_ids.tolist()):
            delay(positions[:, row], kinds)
        length = mm_token_type_ids.shape[1]
        return positions, positions.amax((0, 2))[:, None] + 1 - length

    model.model.get_rope_index = index
    return model


def delay(positions: Tensor, kinds: list[int]) -> None:
    """Move what follows each medium behind its times, in place: positions [3, T]."""
    start = 0
    for _, run in groupby(kinds):
        stop = start + len(list(run))
        last = positions[:, start:stop].amax(1)
        positions[:, stop:] += (last[0] - last[1:].amax()).clamp(min=0)
        start = stop
