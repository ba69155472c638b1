"""An engine on the CPU with the kernels and the buckets of CUDA, whose launches go elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import torch

from ostro.core.engine.buckets import PROMPT_ROWS
from ostro.core.engine.startup import build, warm_up
from ostro.core.messages.requests import Sampling
from ostro.core.ops import Choice, Op, Target

CASES = warm_up.warm_up_cases


def run_compiled(file: str, *arguments: str) -> list[str]:
    """The lines that a file prints as a script, in a process whose triton compiles kernels."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, file, *arguments]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


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
        mock.patch.object(warm_up, "warm_up_cases", cases),
        mock.patch.object(build, "MAX_REPLAYED_ROWS", PROMPT_ROWS[-1]),
    ):
        yield
