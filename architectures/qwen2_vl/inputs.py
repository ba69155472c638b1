"""Qwen2-VL's inputs: as Qwen2.5-VL's, but the groups of frames of a video have consecutive times.

Reference class Qwen2VLProcessor of transformers.
"""

from __future__ import annotations

import numpy as np

from ostro.architectures.qwen2_5_vl import inputs as qwen2_5_vl
from ostro.architectures.qwen2_5_vl.grid import Ints


class Inputs(qwen2_5_vl.Inputs):
    def times(self, count: int, fps: float) -> Ints:
        return np.arange(count, dtype=np.int64)
