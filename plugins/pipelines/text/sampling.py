"""Sampling parameters and constraints of requests, as the engine and its processors take them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ostro.errors import RequestError
from ostro.pipelines import (
    Choices,
    CompletionRequest,
    Constraint,
    Dry,
    Grammar,
    JsonSchema,
    Regex,
    Sampling,
    StructuralTag,
    TextRequest,
    Tokenizer,
)

GRAMMAR = "grammar"
"""The name of the logits processor."""
BUDGET = "reasoning_budget"
"""The name of the logits processor that ends reasoning."""
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
    echoes = isinstance(request, CompletionRequest) and request.echo
    if echoes and values.get("logprobs") is not None:
        values.setdefault("prompt_logprobs", values["logprobs"])
    if isinstance(request, CompletionRequest) and ranks(request):
        values["n"], values["logprobs"] = request.best_of, request.logprobs or 0
    try:
        sampling = Sampling(**values).checked(vocab)
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
    if isinstance(request, CompletionRequest):
        if request.best_of is not None and not (request.n or 1) <= request.best_of <= MAX_BEST_OF:
            raise RequestError(f"best_of is not within n..{MAX_BEST_OF}", param="best_of")
        if request.suffix and request.echo:
            raise RequestError("suffix excludes echo", param="suffix")


def ranks(request: CompletionRequest) -> bool:
    """Whether a request generates more choices than it returns."""
    return request.best_of is not None and request.best_of > (request.n or 1)


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


def processors_of(request: TextRequest) -> dict[str, Any]:
    """The parameters of logits processors of a request, a grammar among them.

    Raises RequestError for two constraints of the output.
    """
    processors, constraint = dict(request.logits_processors), request.constraint
    if constraint is None:
        return processors
    if GRAMMAR in processors:
        raise RequestError(
            f"logits_processors and {constraint.field} exclude each other; use one of them",
            param=constraint.field,
        )
    return {**processors, GRAMMAR: grammar_parameter(constraint)}


def grammar_parameter(constraint: Constraint) -> dict[str, Any]:
    """The parameter of the logits processor "grammar" for a constraint."""
    match constraint.value:
        case JsonSchema(schema=schema):
            grammar: dict[str, Any] = {"json_schema": schema}
        case Regex(pattern=pattern):
            grammar = {"regex": pattern}
        case Choices(texts=texts):
            grammar = {"choice": texts}
        case Grammar(notation=notation, text=text):
            grammar = {notation: text}
        case StructuralTag(value=tag):
            grammar = {"structural_tag": tag}
    return {**grammar, "field": constraint.field}
