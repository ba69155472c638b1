"""Read and validate the sampling parameters of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro.errors import ContextLengthExceeded, RequestError, Unsupported
from ostro.pipelines import Dry, Sampling, Tokenizer
from ostro.plugins.pipelines.text.schema import ChatRequest, CompletionRequest, GenerationRequest

BREAKERS = ("\n", ":", '"', "*")
"""Strings that end a DRY match, as in text-generation-webui."""
MAX_BREAKERS = 64
MAX_STOP_IDS = 1024
MAX_BIASES = 1024
MAX_SALT = 256
MAX_PRIORITY = 2**31
NAMES = {"stop_ids": "stop_token_ids", "dry": "dry_multiplier"}
"""Fields of `Sampling` with other names in requests."""


def sampling_of(
    request: GenerationRequest, tokenizer: Tokenizer, vocab: int, defaults: Mapping[str, Any]
) -> Sampling:
    """The sampling of a request; `defaults` apply to missing fields.

    Raises RequestError for a field out of range, Unsupported for a feature that is not implemented.
    """
    check(request)
    stated = {
        name: getattr(request, name)
        for name in Sampling.__struct_fields__
        if name in request.__struct_fields__ and getattr(request, name) is not None
    }
    values: dict[str, Any] = {**defaults, **stated}
    values["stop"] = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    values["stop_ids"] = tuple(request.stop_token_ids or ())
    values["logit_bias"] = bias_of(request)
    values["dry"] = dry_of(request, tokenizer)
    if request.top_k == -1:
        values["top_k"] = 0
    if isinstance(request, ChatRequest):
        values["logprobs"] = (request.top_logprobs or 0) if request.logprobs else None
        if request.max_completion_tokens is not None:
            values["max_tokens"] = request.max_completion_tokens
    echoes = isinstance(request, CompletionRequest) and request.echo
    if echoes and values.get("logprobs") is not None:
        values.setdefault("prompt_logprobs", values["logprobs"])
    try:
        sampling = Sampling(**values).checked(vocab)
    except RequestError as error:
        name = error.param or ""
        raise RequestError(str(error), param=NAMES.get(name, name)) from None
    if sampling.max_tokens == 0 and not (echoes and sampling.prompt_logprobs is not None):
        raise RequestError("max_tokens=0 generates nothing; use at least 1", param="max_tokens")
    return sampling


def check(request: GenerationRequest) -> None:
    """Raise an error for contradictory fields and for features that are not implemented."""
    form = (request.response_format or {}).get("type")
    if form not in (None, "text"):
        raise Unsupported(
            f"response_format {form!r:.40}: constrained output is not implemented; use text",
            param="response_format",
        )
    if len(request.stop_token_ids or ()) > MAX_STOP_IDS:
        raise RequestError(f"more than {MAX_STOP_IDS} stop_token_ids", param="stop_token_ids")
    if len(request.cache_salt or "") > MAX_SALT:
        raise RequestError(f"cache_salt exceeds {MAX_SALT} characters", param="cache_salt")
    if not -MAX_PRIORITY <= (request.priority or 0) < MAX_PRIORITY:
        raise RequestError("priority is not within -2^31..2^31-1", param="priority")
    if isinstance(request, ChatRequest):
        if request.top_logprobs is not None and not request.logprobs:
            raise RequestError("top_logprobs needs logprobs=true", param="top_logprobs")
        if request.top_logprobs is not None and not 0 <= request.top_logprobs <= 20:
            raise RequestError("top_logprobs is not within 0..20", param="top_logprobs")
        if any(kind != "text" for kind in request.modalities or ()):
            raise Unsupported("modalities: this model generates text only", param="modalities")
    elif isinstance(request, CompletionRequest) and request.best_of not in (None, request.n or 1):
        raise RequestError("best_of must equal n: all choices are returned", param="best_of")


def bias_of(request: GenerationRequest) -> dict[int, float]:
    """The logit bias by token id; keys in JSON are strings."""
    given = request.logit_bias or {}
    if len(given) > MAX_BIASES:
        raise RequestError(f"more than {MAX_BIASES} entries of logit_bias", param="logit_bias")
    biases = {}
    for key, bias in given.items():
        if not (key.isascii() and key.isdigit() and len(key) < 12):
            raise RequestError(f"{key!r:.40} is not a token id", param="logit_bias")
        biases[int(key)] = bias
    return biases


def dry_of(request: GenerationRequest, tokenizer: Tokenizer) -> Dry | None:
    """The DRY penalty; None without a multiplier.

    A breaker becomes the last token of "a" + breaker: its token in running text.
    """
    if not request.dry_multiplier:
        return None
    strings = BREAKERS if request.dry_sequence_breakers is None else request.dry_sequence_breakers
    if len(strings) > MAX_BREAKERS or not all(0 < len(string) <= 64 for string in strings):
        raise RequestError(
            f"at most {MAX_BREAKERS} breakers of 1..64 characters", param="dry_sequence_breakers"
        )
    ends = [tokenizer.encode("a" + string, special=False)[-1] for string in strings]
    given: dict[str, Any] = {
        "multiplier": request.dry_multiplier,
        "base": request.dry_base,
        "allowed_length": request.dry_allowed_length,
        "window": request.dry_penalty_last_n,
    }
    fields = {name: value for name, value in given.items() if value is not None}
    return Dry(breakers=tuple(dict.fromkeys(ends)), **fields)


def check_length(sampling: Sampling, prompt: int, context: int) -> None:
    """Raise ContextLengthExceeded if a prompt and `max_tokens` exceed the context."""
    wanted = sampling.max_tokens
    if context - prompt < (wanted != 0):
        raise ContextLengthExceeded(
            f"the context is {context} tokens and the prompt has {prompt}; shorten the prompt",
            param="prompt",
        )
    if wanted is not None and prompt + wanted > context:
        raise ContextLengthExceeded(
            f"the context is {context} tokens, but {prompt + wanted} are requested: {prompt} in "
            f"the prompt and {wanted} to generate; shorten either",
            param="max_tokens",
        )
