"""Outputs and statistics of the engine: plain data, the same within and between processes."""

from __future__ import annotations

from itertools import zip_longest
from typing import Literal

import msgspec

from ostro.core.errors import Fact
from ostro.core.messages.arrays import Array


class TokenLogprobs(msgspec.Struct, frozen=True):
    """The log probability of one token, and (id, log probability) of the best alternatives."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


Finish = Literal["stop", "length", "tool_calls", "abort", "error"]


class TokenOutput(msgspec.Struct, kw_only=True, tag=True):
    """New tokens of one choice of a request; the last output of a choice has `finish`.

    `index` is the choice (0..n-1). `stopped_by` is the stop id or end-of-text id that ended it and
    is not among `tokens`. `error`, `kind`, `param`, `status`, `code` and `facts` describe the
    error of finish "error": its message, and the other fields of `describe_error`. The first output
    has `prompt_tokens`, of which the prefix cache had `cached`, and `queued`, the seconds before
    the first step. `drafted` tokens were proposed for those of the output, and `accepted` ones of
    them were right.
    """

    id: str
    index: int = 0
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish: Finish | None = None
    stopped_by: int | None = None
    error: str | None = None
    kind: str = ""
    param: str | None = None
    status: int | None = None
    code: str | None = None
    facts: dict[str, Fact] | None = None
    prompt_tokens: int = 0
    cached: int = 0
    queued: float = 0.0
    drafted: int = 0
    accepted: int = 0
    generations: tuple[str, ...] = ()


class JobOutput(msgspec.Struct, kw_only=True, tag=True):
    """The progress of a pooling request or a job, `done` of `total`; the last output has `finish`.

    `arrays` are a preview, or with finish "stop" the result: "rows" [n, d] float32 of a pooling
    request. `generations`, with the result, are those of its adapters. `error`, `kind`, `param`,
    `status`, `code` and `facts` describe the error of finish "error", as in `TokenOutput`.
    """

    id: str
    done: int = 0
    total: int = 0
    arrays: dict[str, Array] = {}
    finish: Finish | None = None
    error: str | None = None
    kind: str = ""
    param: str | None = None
    status: int | None = None
    code: str | None = None
    facts: dict[str, Fact] | None = None
    generations: tuple[str, ...] = ()


Output = TokenOutput | JobOutput


class Stats(msgspec.Struct, kw_only=True, tag=True):
    """Counters of an engine, for `/metrics`, `bench` and tests; `models` are those by model.

    `proposals` counts the steps of sequences with drafts, `accepted_at` the accepted drafts by
    their place in a proposal.
    `weight_bytes`, `cache_capacity_bytes` and `adapter_bytes` are the memory of models on all
    devices.
    """

    running: int = 0
    waiting: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    proposals: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    accepted_at: list[int] = []
    blocks_total: int = 0
    blocks_used: int = 0
    cache_bytes: int = 0
    peak_cache_bytes: int = 0
    weight_bytes: int = 0
    cache_capacity_bytes: int = 0
    adapter_bytes: int = 0
    models: dict[str, Stats] = {}

    def add(self, other: Stats) -> None:
        """Add the counters of another engine; `models` stays as it is."""
        for name in self.__struct_fields__:
            value = getattr(other, name)
            if isinstance(value, int):
                setattr(self, name, getattr(self, name) + value)
        pairs = zip_longest(self.accepted_at, other.accepted_at, fillvalue=0)
        self.accepted_at = [own + more for own, more in pairs]
