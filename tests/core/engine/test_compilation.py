"""Kernels for CUDA: the warm-up compiles all that requests launch, and all steps are captured.

Run as a script, this file prints the new kernels of one model, the kernels of a decode step, or why
steps are not captured.
The tests run it in a process of its own, where triton does not interpret kernels.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tiny.cuda_kernels import cuda_kernels, run_compiled

from ostro.core.engine import build
from ostro.core.engine.engine import Engine
from ostro.core.load.model import LoadedModel
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.plugins.manager import PluginManager
from ostro.entrypoints.bench.steps import prepared_step, run_step
from ostro.plugins.conformance.kernels import record_launches
from ostro.plugins.conformance.parity import subject

ROWS = 600
"""Rows of a step: fewer than some prompts have."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "quant"), [("llama", "q8_0"), ("qwen3_moe", ""), ("mamba2", ""), ("deepseek_v2", "")]
)
@pytest.mark.parametrize("loop", ["eager", "buckets"])
def test_requests_compile_nothing(name: str, quant: str, loop: str) -> None:
    launched, *new = run_compiled(__file__, "new_kernels", name, quant, loop, "30")
    assert int(launched) > 5
    assert not new


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "quant"),
    [("llama", "q4k"), ("gpt_oss", ""), ("qwen3_5_moe", ""), ("gemma4_moe", ""), ("bamba", "")],
)
def test_steps_with_prompts_can_be_captured(name: str, quant: str) -> None:
    """No kernel for CUDA and no module reads numbers on the host."""
    assert run_compiled(__file__, "refused", name, quant) == ["", ""]


@pytest.mark.slow
def test_parts_of_two_formats_take_two_launches() -> None:
    """Those of q, k and v of each layer; other products take two launches as well."""
    launched = Counter(run_compiled(__file__, "decode_launches", "llama", "q4k", "v_proj = q8_0"))
    layers = launched["attend"]
    assert launched["parts_kernel"] == layers == 2
    assert launched["integers_kernel"] == 3 * layers + 1
    assert launched["quantize_kernel"] == 4 * layers + 1


def decode_launches(name: str, quant: str, topology: str) -> list[str]:
    """The Triton kernels that a decode step of a tiny model launches, in order."""
    with (
        record_launches("sm_90") as launches,
        opened(name, quant, "eager", topology) as (engine, _),
        prepared_step(engine, 1, 8, 1) as chunks,
        torch.inference_mode(),
    ):
        launches.clear()
        run_step(engine.runner, chunks)
    return [launch.split()[0].rpartition(":")[2] for launch in launches]


def refused(name: str, quant: str) -> list[str]:
    """Why steps with prompts and decode steps of a tiny model are not captured; "" if they are."""
    with record_launches("sm_90"), opened(name, quant, "buckets") as (engine, _):
        engine.runner.capture()
        return [buckets.refused for buckets in engine.runner.buckets]


def new_kernels(name: str, quant: str, loop: str, requests: str) -> list[str]:
    """The number of kernels that the warm-up of a tiny model compiles, and those that random
    requests compile afterwards.
    """
    with record_launches("sm_90") as launches, opened(name, quant, loop) as (engine, loaded):
        build.make_ready(engine, loaded)
        build.warm_up(engine)
        warm = set(launches)
        draw(engine, int(requests))
    return [str(len(warm)), *sorted(set(launches) - warm)]


@contextmanager
def opened(
    name: str, quant: str, loop: str, topology: str | None = None
) -> Iterator[tuple[Engine, LoadedModel]]:
    """An engine of a tiny model with the kernels for CUDA, and the model."""
    plugins = PluginManager()
    plugins.load()
    tiny = plugins.get("architectures", name).conformance.tiny
    config = {**tiny, "max_position_embeddings": 1024}
    with cuda_kernels(), subject(plugins, name, config=config) as made:
        settings: dict[str, Any] = {"dtype": "bfloat16", "quant": quant or None}
        settings |= {"replay": loop == "buckets", "topology": topology}
        loaded = made.load(**settings)
        yield made.engine(loaded, rows=ROWS, blocks=256, **settings), loaded


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


if __name__ == "__main__":
    called: Any = {each.__name__: each for each in (new_kernels, refused, decode_launches)}
    print(*called[sys.argv[1]](*sys.argv[2:]), sep="\n")
