"""Speed of answers under a JSON schema beside free ones, in one process, interleaved.

python tests/peers/grammar_speed.py --tokenizer FILE [--streams 1,8,32] [--tokens 64] [--runs 5]

The weights are random (`--shape`), the tokenizer is that of FILE: a GGUF file with a vocabulary, or
a folder. Requests of the same length: free ones, ones under a schema of texts, where nearly every
token is a choice, and ones under a schema of long property names, whose tokens are forced; these
also with each token drawn. Prints tokens per second, and medians of the ratios to the free requests
of the same round.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ostro
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.entrypoints.python.model import LocalModel

TEXTS = {"type": "array", "items": {"type": "string", "minLength": 40}, "minItems": 40}
RECORD = {
    name: {"type": "boolean"}
    for name in ("the_customer_has_paid_the_invoice", "the_goods_have_left_the_warehouse")
}
KEYS = {
    "type": "array",
    "items": {"properties": RECORD, "required": [*RECORD], "type": "object"},
    "minItems": 40,
}
KINDS: Mapping[str, Any] = {
    "free": None,
    "texts": {"grammar": {"json_schema": TEXTS}},
    "long keys": {"grammar": {"json_schema": KEYS}},
    "long keys, each drawn": {"grammar": {"json_schema": KEYS}},
}


def seconds_of(model: LocalModel, kind: str, streams: int, tokens: int, seed: int) -> float:
    """The time of `streams` requests of 16 random tokens at once, from the first token on."""
    rng, engine = random.Random(seed), model.engine
    for index in range(streams):
        rules = Sampling(
            temperature=1,
            seed=rng.randrange(2**31),
            max_tokens=tokens,
            ignore_eos=KINDS[kind] is None,
            processors=KINDS[kind] or {},
        )
        prompt = [rng.randrange(1000, 100_000) for _ in range(16)]
        engine.submit(
            TokenRequest(
                id=f"{kind} {seed} {index}",
                tokens=prompt,
                sampling=rules,
                speculate=not kind.endswith("drawn"),
            )
        )
    begun, count, start = set[str](), 0, 0.0
    while engine.busy:
        for output in engine.step():
            assert output.error is None, output.error
            begun.add(output.id)
            if start:
                count += len(output.tokens)
        if not start and len(begun) == streams:
            start = time.perf_counter()
    return (time.perf_counter() - start) / count


def measure(model: LocalModel, streams: int, tokens: int, runs: int) -> dict[str, list[float]]:
    """Tokens per second by kind, one value per run; the first run is not counted."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for run in range(runs + 1):
        for kind in KINDS:
            rate = 1 / seconds_of(model, kind, streams, tokens, run)
            if run:
                found[kind].append(rate)
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--quant", default="q8_0")
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args(words)
    options = {"tokenizer": args.tokenizer, "quant": args.quant, "max_seqs": 32}
    with ostro.load(dummy_weights=args.shape, context=1024, **options) as model:
        for streams in map(int, args.streams.split(",")):
            found = measure(model, streams, args.tokens, args.runs)
            for kind, rates in found.items():
                ratios = [rate / free for rate, free in zip(rates, found["free"], strict=True)]
                rate, ratio = statistics.median(rates), statistics.median(ratios)
                print(f"{streams:2} streams  {kind:22} {rate:7.1f} tok/s  {ratio:5.2f}", flush=True)


if __name__ == "__main__":
    main()
