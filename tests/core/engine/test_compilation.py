"""The warm-up compiles all kernels for CUDA: later requests launch none that is new.

Run as a script, this file prints the new kernels of one model. The test runs it in a process of its
own, where triton does not interpret kernels.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import pytest
import torch

from ostro.core.engine import build
from ostro.core.engine.engine import Engine
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.ops import Choice, Op, Target
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.kernels import record_launches
from ostro.plugins.conformance.parity import subject

CASES = build.warm_up_cases

ROWS = 600
"""Rows of a step: fewer than some prompts have."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "quant"), [("llama", "q8_0"), ("qwen3_moe", ""), ("mamba2", ""), ("deepseek_v2", "")]
)
def test_requests_compile_nothing(name: str, quant: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, __file__, name, quant, "30"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    launched, *new = run.stdout.splitlines()
    assert int(launched) > 5
    assert not new


def new_kernels(name: str, quant: str, requests: int) -> tuple[int, list[str]]:
    """The number of kernels that the warm-up of a tiny model compiles, and those that random
    requests compile afterwards.
    """
    plugins = PluginManager()
    plugins.load()
    tiny = plugins.get("architectures", name).conformance.tiny
    config = {**tiny, "max_position_embeddings": 1024}
    with (
        record_launches("sm_90") as launches,
        cuda_kernels(),
        subject(plugins, name, config=config) as made,
    ):
        settings = {"dtype": "bfloat16", "quant": quant or None}
        loaded = made.load(**settings)
        engine = made.engine(loaded, rows=ROWS, blocks=256, **settings)
        build.make_ready(engine, loaded)
        build.warm_up(engine)
        warm = set(launches)
        draw(engine, requests)
    return len(warm), sorted(set(launches) - warm)


def draw(engine: Engine, requests: int) -> None:
    """Run random requests, some of them in one batch."""
    chance = random.Random(requests)
    for i in range(requests):
        rules = Sampling(
            temperature=chance.choice([0, 0, 1]),
            top_p=chance.choice([1, 0.9]),
            repetition_penalty=chance.choice([1, 1, 1.1]),
            logit_bias=chance.choice([{}, {}, {1: 2.0, 2: 1.0}]),
            max_tokens=chance.randrange(1, 4),
            ignore_eos=True,
        )
        length = chance.randrange(1, chance.choice([40, 700]))
        tokens = [chance.randrange(engine.vocab) for _ in range(length)]
        engine.submit(TokenRequest(id=str(i), tokens=tokens, sampling=rules))
        if chance.random() < 0.4:
            engine.drain()
    engine.drain()


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
    ):
        yield


if __name__ == "__main__":
    launched, new = new_kernels(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    print(launched, *new, sep="\n")
