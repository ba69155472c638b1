"""Requests of the engine: plain data, the same within and between processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ostro.core.errors import RequestError
from ostro.core.messages.arrays import Array
from ostro.core.messages.prompt import Item

# Limits per request: each choice, stop string and logprob costs memory or time in every step.
MAX_N = 64
MAX_STOPS = 16
MAX_LOGPROBS = 20
MAX_STOP_LENGTH = 1024


class Dry(msgspec.Struct, frozen=True, kw_only=True):
    """DRY penalty (github.com/oobabooga/text-generation-webui pull 5677).

    A token that would extend a repeated suffix of `match` >= `allowed_length` tokens loses
    multiplier * base ** (match - allowed_length) of its logit. No match contains a token id of
    `breakers`. Only the last `window` tokens are searched (0 = all).
    """

    multiplier: float = 0.0
    base: float = 1.75
    allowed_length: int = 2
    window: int = 0
    breakers: tuple[int, ...] = ()


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters, with neutral defaults; `checked` rejects values out of range.

    `logprobs` and `prompt_logprobs` are the number of alternatives to report with each token (0 =
    the token alone, None = off). The pipeline finds `stop` strings, the engine `stop_ids`.
    `processors` are the parameters of plugins' logits processors, by name.
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

    @property
    def fewest_tokens(self) -> int:
        """The fewest tokens of a choice that no end token or stop string ends."""
        return max(self.min_tokens, int(self.max_tokens != 0))

    def checked(self, vocab: int | None = None) -> Sampling:
        """Return self, or raise RequestError for the first field that is out of range.

        Token ids are checked against `vocab` if it is given.
        """
        for name, low, high in RANGES:
            value = getattr(self, name)
            if value is None:
                continue
            if not low <= value <= high:
                raise RequestError(f"{name}={value} is not within {low}..{high}", param=name)
        if self.temperature > 0 and self.top_p == 0:
            raise RequestError(
                "top_p=0 excludes every token; use temperature=0 for greedy", param="top_p"
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
        fields = {"logit_bias": self.logit_bias, "stop_ids": self.stop_ids, "dry": breakers}
        for name, ids in fields.items():
            for token in ids:
                if not 0 <= token < top:
                    raise RequestError(f"token id {token} is not within 0..{top - 1}", param=name)
        # `not <=` and not `>`: NaN fails every comparison.
        for token, bias in self.logit_bias.items():
            if not abs(bias) <= 100:
                raise RequestError(
                    f"the bias {bias} of token {token} is not within -100..100", param="logit_bias"
                )

    def _check_dry(self, dry: Dry) -> None:
        for name, low, high in DRY_RANGES:
            value = getattr(dry, name)
            if not low <= value <= high:
                message = f"dry.{name}={value} is not within {low}..{high}"
                raise RequestError(message, param=f"dry.{name}")


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

DRY_RANGES: tuple[tuple[str, float, float], ...] = (
    ("multiplier", 0, 100),
    ("base", 1, 10),
    ("allowed_length", 1, 1000),
    ("window", 0, 2**20),
)

USUAL_RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0, 2),
    ("repetition_penalty", 0.5, 2),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
)
"""The ranges of OpenAI's API; for repetition_penalty values around 1, as models state them."""


def unusual_values(values: Mapping[str, Any]) -> str | None:
    """A warning about values that are allowed but rarely give readable text, None without them."""
    outside = [
        f"{name} {values[name]:g} is outside the usual range of {low:g} to {high:g}"
        for name, low, high in USUAL_RANGES
        if values.get(name) is not None and not low <= values[name] <= high
    ]
    return "; ".join(outside) or None


DEFAULT_MODEL = "default"
"""A name of the first model, in addition to its own."""


class AdapterRef(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter of a request, by name or by generation, and its scale."""

    name: str = ""
    generation: str = ""
    scale: float = 1.0


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request to generate tokens: a prompt and sampling parameters. Lower `priority` is first.

    Requests with different `salt` share no blocks of the prefix cache. `adapters` are summed with
    their scales. `model` is a name of a model of the engine. Without `speculate` each token is
    drawn: none is proposed, and none that is forced is appended; the result is the same. `items`
    are its media, in the order of their rows. `positions` [axes, T] are those of the prompt, None
    for 0, 1, 2, ... The `owner`s of requests take turns where their preparation queues.
    """

    id: str
    tokens: list[int]
    sampling: Sampling = Sampling()
    model: str = DEFAULT_MODEL
    owner: str = ""
    priority: int = 0
    salt: str = ""
    adapters: tuple[AdapterRef, ...] = ()
    cache: bool = True
    speculate: bool = True
    items: list[Item] = []
    positions: Array | None = None


class PoolingRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request for a vector of each input, or for scores if the model has them.

    `kinds` are the token types of input i, for encoders with segment embeddings. Lower `priority`
    is first.
    """

    id: str
    inputs: list[list[int]]
    kinds: dict[int, list[int]] = {}
    output: Literal["vectors", "scores"] = "vectors"
    model: str = DEFAULT_MODEL
    priority: int = 0
    adapters: tuple[AdapterRef, ...] = ()


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request for a job in slices; the model defines the meaning of `values` and `arrays`.

    Lower `priority` is first.
    """

    id: str
    values: dict[str, Any] = {}
    arrays: dict[str, Array] = {}
    model: str = DEFAULT_MODEL
    priority: int = 0
    adapters: tuple[AdapterRef, ...] = ()


Request = TokenRequest | PoolingRequest | JobRequest
