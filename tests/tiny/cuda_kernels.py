"""An engine on the CPU with the kernels and the buckets of CUDA, whose launches go elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import torch

from ostro.core.engine import build
from ostro.core.engine.buckets import PROMPT_ROWS
from ostro.core.messages.requests import Sampling
from ostro.core.ops import Choice, Op, Target

CASES = build.warm_up_cases


@contextmanager
def cuda_kernels() -> Iterator[None]:
    """Select and warm up the kernels for CUDA, on tensors of the CPU."""
    select = Op.select

    def selected(self: Op, target: Target) -> Choice:
        return select(self, replace(target, device=torch.device("cuda")))

    def cases(most: int, device: str) -> list[tuple[int, Sampling]]:
        return CASES(most, "cuda")

    with (
        mock.patch.object(Op, "select", selected),
        mock.patch.object(build, "warm_up_cases", cases),
        mock.patch.object(build, "MAX_REPLAYED_ROWS", PROMPT_ROWS[-1]),
    ):
        yield
