"""Prepares engines for requests: checks the outputs, captures steps, compiles all kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from ostro.core.engine.engine import Engine
from ostro.core.engine.pooling import PoolingEngine
from ostro.core.errors import CheckpointError
from ostro.core.load.model import LoadedModel
from ostro.core.load.open import begin_id
from ostro.core.messages.requests import Sampling, TokenRequest

PROBE = 128
"""Tokens of the prompt that shows whether float16 overflows."""

DRAFT_PROBE = (0,)
"""The prompt that shows whether the weights of a draft model are damaged."""


def make_ready(engine: Engine, loaded: LoadedModel, *, lazily: bool = False) -> None:
    """Check that the logits of a model are finite, and capture its decode steps.

    With `lazily`, the CPU captures each size of step when it first occurs. Raises CheckpointError
    for NaN or Inf: the weights are damaged, or float16 is too narrow.
    """
    check_finite(engine.runner.logits(probe_prompt(engine, loaded)), loaded)
    with torch.inference_mode():
        engine.runner.capture(lazily=lazily and engine.lag == 0)
    runner = engine.runner
    if runner.segments is not None:
        loaded.explain += runner.segments.describe()
    for name, buckets in (
        ("prompts", runner.prompt_buckets),
        ("decode steps", runner.decode_buckets),
    ):
        if buckets.refused and not buckets.plain and not buckets.uncaptured:
            loaded.explain.append(f"{name}: not captured: {buckets.refused}")
    if (draft := engine.draft_runner) is not None and loaded.draft is not None:
        check_finite(draft.logits(DRAFT_PROBE), loaded.draft)
        with torch.inference_mode():
            draft.capture(lazily=lazily and engine.lag == 0)


def probe_prompt(engine: Engine, loaded: LoadedModel) -> list[int]:
    """A prompt whose logits show damaged weights and overflows.

    It begins with BOS, whose hidden states are larger than those of other tokens in many models. In
    float16, `PROBE` tokens of the whole vocabulary follow, else one.
    """
    begin = begin_id(loaded.container, loaded.raw_config)
    first = [begin] if begin is not None and 0 <= begin < engine.vocab else []
    count = max(min(PROBE, engine.context - 1), 1) if loaded.dtype == torch.float16 else 1
    start, vocab = probe_token(engine), engine.vocab
    ordinary = [(start + i * vocab // count) % vocab for i in range(count)]
    return [*first, *ordinary][: engine.context]


def probe_token(engine: Engine) -> int:
    """An ordinary token id: those at both ends of a vocabulary are often untrained."""
    return engine.vocab // 2


def check_finite(values: torch.Tensor, loaded: LoadedModel) -> None:
    """Raise CheckpointError if the outputs of a model contain NaN or Inf."""
    if values.isfinite().all():
        return
    cause = "its weights are damaged: download its files again"
    if loaded.dtype == torch.float16:
        cause = f"float16 overflows (try --dtype bfloat16 or float32), or {cause}"
    raise CheckpointError(f"{loaded.path.name}: the model's outputs contain NaN or Inf; {cause}")


def make_pooling_ready(engine: PoolingEngine, loaded: LoadedModel, *, warm: bool) -> None:
    """Compute `warm_up_vectors`. Raises CheckpointError if one contains NaN or Inf."""
    for vectors in warm_up_vectors(engine, warm=warm):
        check_finite(vectors, loaded)


def warm_up_vectors(engine: PoolingEngine, *, warm: bool) -> Iterator[torch.Tensor]:
    """The vector of a short input; with `warm`, also of those that compile all kernels."""
    most = min(engine.max_rows, engine.context) if warm else 2
    for length, _ in warm_up_cases(most, engine.runner.device.type):
        yield engine.read([[engine.vocab // 2] * length], None, "vectors")


def warm_up(engine: Engine) -> None:
    """Compile all kernels: draw two tokens from each case of `warm_up_cases`."""
    sampler, most = engine.runner.sampler, min(engine.scheduler.max_rows, engine.context - 2)
    for length, rules in warm_up_cases(most, engine.runner.device.type):
        prompt = [probe_token(engine)] * length
        engine.submit(TokenRequest(id="warm-up", tokens=prompt, sampling=rules, cache=False))
        engine.drain()
    sampler.counts = sampler.seen = None  # large, and only for requests with penalties
    engine.counters = type(engine.counters)()  # the metrics count requests of users only


def warm_up_cases(most: int, device: str) -> list[tuple[int, Sampling]]:
    """Lengths of prompts up to `most`, and the parameters of their draws.

    Kernels for the CPU have variants for few and for many rows. Those for CUDA have variants for
    powers of two of the rows, and for rules of sampling; each is compiled when it first runs.
    """
    greedy = Sampling(temperature=0, max_tokens=2, ignore_eos=True)
    if device == "cpu":
        return [(length, greedy) for length in (2, 17) if length <= most]
    changes: list[dict[str, Any]] = [
        {"temperature": 1},
        {"temperature": 1, "top_p": 0.9},
        {"repetition_penalty": 1.1},
        {"logit_bias": {0: 1.0}},
    ]
    rules = [msgspec.structs.replace(greedy, **change) for change in changes]
    powers = [2**i for i in range(1, most.bit_length())]
    lengths = [length for power in powers for length in (power, power + 1) if length <= most]
    return [*((length, greedy) for length in lengths), *((2, rule) for rule in rules if lengths)]
