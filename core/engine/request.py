"""What the engine is asked and what it answers: plain data, the same in and between processes."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ostro.core.errors import RequestError
from ostro.core.media import Array, Item

MAX_N = 64
MAX_STOPS = 16
MAX_LOGPROBS = 20
MAX_STOP_LENGTH = 1024


class Dry(msgspec.Struct, frozen=True, kw_only=True):
    """DRY penalty (github.com/oobabooga/text-generation-webui pull 5677).

    A token that would extend a repeated suffix of `match` >= `allowed_length` tokens loses
    multiplier * base ** (match - allowed_length) off its logit; `breakers` are token ids that no
    match cross_groups; `window` is how many last tokens are searched (0 = all).
    """

    multiplier: float = 0.0
    base: float = 1.75
    allowed_length: int = 2
    window: int = 0
    breakers: tuple[int, ...] = ()


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How to draw tokens. Neutral defaults; `checked` refuses what is out of range.

    `logprobs` and `prompt_logprobs` are how many alternatives to report beside each token (0 =
    the token alone, None = off). `stop` strings are found by the pipeline, ids by the engine.
    `processors` are logits processors of plugins by name, each with what it is asked for.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry: Dry | None = None
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    processors: dict[str, Any] = {}

    def checked(self, vocab: int | None = None) -> Sampling:
        """Return self, or raise RequestError naming the first field that is out of range."""
        for name, low, high in RANGES:
            value = getattr(self, name)
            if value is None:
                continue
            if not low <= value <= high:
                raise RequestError(f"{name}={value} is not within {low}..{high}", param=name)
        if self.temperature > 0 and self.top_p == 0:
            raise RequestError(
                "top_p=0 keeps no token; use temperature=0 for greedy", param="top_p"
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens={self.min_tokens} exceeds max_tokens={self.max_tokens}",
                param="min_tokens",
            )
        self._check_stops()
        self._check_ids(vocab)
        if self.dry is not None:
            self._check_dry(self.dry)
        return self

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOPS:
            raise RequestError(f"{len(self.stop)} stop strings; at most {MAX_STOPS}", param="stop")
        for text in self.stop:
            if not 0 < len(text) <= MAX_STOP_LENGTH:
                raise RequestError(
                    f"a stop string has {len(text)} characters; 1..{MAX_STOP_LENGTH} are allowed",
                    param="stop",
                )

    def _check_ids(self, vocab: int | None) -> None:
        top = vocab if vocab is not None else 2**31
        breakers = () if self.dry is None else self.dry.breakers
        told = {"logit_bias": self.logit_bias, "stop_ids": self.stop_ids, "dry": breakers}
        for name, ids in told.items():
            for token in ids:
                if not 0 <= token < top:
                    raise RequestError(f"token id {token} is not within 0..{top - 1}", param=name)
        for token, bias in self.logit_bias.items():
            if not abs(bias) <= 100:
                raise RequestError(
                    f"the bias {bias} of token {token} is not within -100..100", param="logit_bias"
                )

    def _check_dry(self, dry: Dry) -> None:
        good = (
            0 <= dry.multiplier <= 100
            and 1 <= dry.base <= 10
            and 1 <= dry.allowed_length <= 1000
            and 0 <= dry.window <= 2**20
        )
        if not good:
            raise RequestError(f"dry settings out of range: {dry}", param="dry")


RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0, 100),
    ("top_k", 0, 2**20),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("typical_p", 1e-6, 1),
    ("repetition_penalty", 1e-3, 100),
    ("presence_penalty", -100, 100),
    ("frequency_penalty", -100, 100),
    ("seed", -(2**63), 2**63 - 1),
    ("n", 1, MAX_N),
    ("max_tokens", 0, 2**31),
    ("min_tokens", 0, 2**31),
    ("logprobs", 0, MAX_LOGPROBS),
    ("prompt_logprobs", 0, MAX_LOGPROBS),
)

DEFAULT = "default"
"""The name by which the first model always goes."""


class AdapterRef(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that a request asks for, by name or by generation, and how much of it."""

    name: str = ""
    generation: str = ""
    scale: float = 1.0


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Work for the token loop: a prompt and how to go on. Lower `priority` goes first.

    `salt` separates tenants in the prefix cache; `adapters` are mixed as they say; `model` names
    the runner where one engine holds several. `items` are its media, in the order of their places;
    `positions` [axes, T] of its prompt, where they do not just count.
    """

    id: str
    tokens: list[int]
    sampling: Sampling = Sampling()
    model: str = DEFAULT
    priority: int = 0
    salt: str = ""
    adapters: tuple[AdapterRef, ...] = ()
    cache: bool = True
    items: list[Item] = []
    positions: Array | None = None


class PoolingRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Whole inputs to be read: a vector of each, or the scores of a model that gives some.

    `kinds` say of the tokens of input i which kind of text they belong to, for encoders that ask.
    """

    id: str
    inputs: list[list[int]]
    kinds: dict[int, list[int]] = {}
    output: Literal["vectors", "scores"] = "vectors"
    model: str = DEFAULT
    adapters: tuple[AdapterRef, ...] = ()


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Work in slices: what to do as plain values, and arrays; their meaning is the model's."""

    id: str
    values: dict[str, Any] = {}
    arrays: dict[str, Array] = {}
    model: str = DEFAULT
    adapters: tuple[AdapterRef, ...] = ()


class TokenLogprobs(msgspec.Struct, frozen=True):
    """One position's log probabilities: its token's, and those of the best alternatives."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


Finish = Literal["stop", "length", "abort", "error"]


class TokenOutput(msgspec.Struct, kw_only=True, tag=True):
    """New tokens of one choice of one request; the last one carries `finish`.

    `index` is the choice (0..n-1). `stopped_by` is the stop id that ended it (not among `tokens`
    where it is an end-of-text id). `cached` counts prompt tokens served by the prefix cache.
    """

    id: str
    index: int = 0
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish: Finish | None = None
    stopped_by: int | None = None
    error: str | None = None
    prompt_tokens: int = 0
    cached: int = 0
    generations: tuple[str, ...] = ()


class JobOutput(msgspec.Struct, kw_only=True, tag=True):
    """How far a reading or a job has come: `done` of `total`; the last one carries `finish`.

    `arrays` are a preview, or with finish "stop" the result: "rows" [n, d] float32 of a reading;
    `generations` are those of the adapters that made it, told with the result.
    """

    id: str
    done: int = 0
    total: int = 0
    arrays: dict[str, Array] = {}
    finish: Finish | None = None
    error: str | None = None
    param: str | None = None
    generations: tuple[str, ...] = ()


Request = TokenRequest | PoolingRequest | JobRequest
Output = TokenOutput | JobOutput


class Stats(msgspec.Struct, kw_only=True, tag=True):
    """The engine's counters, for `/metrics`, `bench` and tests."""

    running: int = 0
    waiting: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    blocks_total: int = 0
    blocks_used: int = 0
    cache_bytes: int = 0
    peak_cache_bytes: int = 0
