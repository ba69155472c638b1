"""Read and validate the sampling parameters of requests."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from ostro.errors import ContextLengthExceeded, RequestError
from ostro.pipelines import ChatRequest, CompletionRequest, Dry, Sampling, TextRequest, Tokenizer
from ostro.plugins.pipelines.text.structure import check_ends, processors_of

BREAKERS = ("\n", ":", '"', "*")
"""Strings that end a DRY match, as in text-generation-webui."""
MAX_BREAKERS = 64
MAX_STOP_IDS = 1024
MAX_BIASES = 1024
MAX_SALT = 256
MAX_BEST_OF = 64
MAX_PRIORITY = 2**31
NAMES = {
    "stop_ids": "stop_token_ids",
    "dry": "dry_sequence_breakers",
    "dry.multiplier": "dry_multiplier",
    "dry.base": "dry_base",
    "dry.allowed_length": "dry_allowed_length",
    "dry.window": "dry_penalty_last_n",
}
"""Fields of `Sampling` with other names in requests."""
TYPES = {
    "bool": "true or false",
    "float": "a number",
    "int": "an integer",
    "str": "a text",
    "array": "a list",
    "null": "none",
    "object": "an object",
}
"""The words of messages for the types of JSON."""


def sampling_of(
    request: TextRequest, tokenizer: Tokenizer, vocab: int, defaults: Mapping[str, Any]
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
    values["stop"], values["stop_ids"] = tuple(request.stop), tuple(request.stop_token_ids)
    values["dry"] = dry_of(request, tokenizer)
    values["processors"] = processors_of(request)
    if request.top_k == -1:
        values["top_k"] = 0
    if isinstance(request, ChatRequest):
        values["logprobs"] = (request.top_logprobs or 0) if request.logprobs else None
    echoes = isinstance(request, CompletionRequest) and request.echo
    if echoes and values.get("logprobs") is not None:
        values.setdefault("prompt_logprobs", values["logprobs"])
    if isinstance(request, CompletionRequest) and ranks(request):
        values["n"], values["logprobs"] = request.best_of, request.logprobs or 0
    try:
        sampling = check_ends(Sampling(**values).checked(vocab))
    except RequestError as error:
        name = error.param or ""
        if (own := NAMES.get(name)) is None:
            raise
        message = str(error)
        if message.startswith(name):
            message = own + message.removeprefix(name)
        raise RequestError(message, param=own) from None
    if sampling.max_tokens == 0 and not (echoes and sampling.prompt_logprobs is not None):
        raise RequestError("max_tokens=0 generates nothing; use at least 1", param="max_tokens")
    return sampling


def check(request: TextRequest) -> None:
    """Raise RequestError for fields that are out of range or contradict each other."""
    if len(request.stop_token_ids) > MAX_STOP_IDS:
        raise RequestError(f"more than {MAX_STOP_IDS} stop_token_ids", param="stop_token_ids")
    if len(request.logit_bias) > MAX_BIASES:
        raise RequestError(f"more than {MAX_BIASES} entries of logit_bias", param="logit_bias")
    if len(request.cache_salt or "") > MAX_SALT:
        raise RequestError(f"cache_salt exceeds {MAX_SALT} characters", param="cache_salt")
    if not -MAX_PRIORITY <= (request.priority or 0) < MAX_PRIORITY:
        raise RequestError("priority is not within -2^31..2^31-1", param="priority")
    if isinstance(request, ChatRequest):
        check_chat(request)
    elif isinstance(request, CompletionRequest):
        if request.best_of is not None and not (request.n or 1) <= request.best_of <= MAX_BEST_OF:
            raise RequestError(f"best_of is not within n..{MAX_BEST_OF}", param="best_of")
        if request.suffix and request.echo:
            raise RequestError("suffix excludes echo", param="suffix")


def ranks(request: CompletionRequest) -> bool:
    """Whether a request generates more choices than it returns."""
    return request.best_of is not None and request.best_of > (request.n or 1)


def check_chat(request: ChatRequest) -> None:
    """Raise RequestError for fields of a chat that contradict each other."""
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs=true", param="top_logprobs")
    if request.top_logprobs is not None and not 0 <= request.top_logprobs <= 20:
        raise RequestError("top_logprobs is not within 0..20", param="top_logprobs")


def dry_of(request: TextRequest, tokenizer: Tokenizer) -> Dry | None:
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
    encode = partial(tokenizer.encode, special=False, parse_special=True)
    ends = [encode("a" + string)[-1] for string in strings]
    given: dict[str, Any] = {
        "multiplier": request.dry_multiplier,
        "base": request.dry_base,
        "allowed_length": request.dry_allowed_length,
        "window": request.dry_penalty_last_n,
    }
    fields = {name: value for name, value in given.items() if value is not None}
    return Dry(breakers=tuple(dict.fromkeys(ends)), **fields)


def check_integers(processors: Mapping[str, Any]) -> None:
    """Raise RequestError for an integer beyond 64 bits in the parameters of logits processors."""
    for name, parameter in processors.items():
        field = parameter.get("field") if isinstance(parameter, dict) else None
        field = field if isinstance(field, str) else f"logits_processors.{name}"
        try:
            with suppress(TypeError):  # an object, which Python may pass to its own engine
                msgspec.msgpack.encode(parameter)
        except OverflowError:
            raise RequestError(
                f"{field:.80}: an integer is not within -2^63..2^64-1", param=field[:80]
            ) from None


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


def describe_type_error(error: msgspec.ValidationError, values: Mapping[str, Any]) -> str:
    """The message for a parameter of another type: "seed: expected an integer, got 'a'"."""
    fault, _, path = str(error).partition(" - at `$.")
    path = path.strip("`")
    name, expected = path.partition("[")[0].partition(".")[0], fault.split("`")[1:2]
    kinds = [TYPES.get(kind, kind) for kind in "".join(expected).split(" | ")]
    given = values.get(name)
    if not kinds or name not in values:
        return f"sampling: {error}"
    return f"{path}: expected {' or '.join(kinds)}, got {given!r:.60}"
