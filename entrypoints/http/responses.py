"""JSON of text responses as in OpenAI's API, with vLLM's stop_reason and prompt_logprobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ostro.core.engine.request import TokenLogprobs
from ostro.core.pipeline import TextDelta, Usage

MIN_LOGPROB = -9999.0
"""Replaces minus infinity, which JSON cannot represent."""
TokenText = Callable[[int], str]
"""Converts a token id to its text."""
ADAPTERS_HEADER = "x-adapter-generations"
"""Header with the adapter generations of a response whose body is not JSON."""


@dataclass
class ChoiceBuilder:
    """Joins the deltas of one choice."""

    texts: list[str] = field(default_factory=list)
    last: TextDelta = field(default_factory=TextDelta)

    def add(self, delta: TextDelta) -> None:
        """Append a delta."""
        self.texts.append(delta.text)
        last = self.last
        if delta.logprobs is not None:
            last.logprobs = [*(last.logprobs or []), *delta.logprobs]
            last.tokens = last.tokens + delta.tokens
            last.offsets = last.offsets + delta.offsets
        last.prompt_logprobs = last.prompt_logprobs or delta.prompt_logprobs
        last.finish, last.stopped_by = delta.finish, delta.stopped_by

    def build(self) -> TextDelta:
        """Return the choice as one delta."""
        self.last.text = "".join(self.texts)
        return self.last


def usage(used: Usage) -> dict[str, Any]:
    """Return the field `usage`: token counts."""
    return {
        "prompt_tokens": used.prompt,
        "completion_tokens": used.completion,
        "total_tokens": used.prompt + used.completion,
        "prompt_tokens_details": {"cached_tokens": used.cached},
    }


def adapters(generations: Sequence[str] | None) -> dict[str, Any]:
    """Return the field `adapter_generations`; no field if the request has no adapters.

    An activated LoRA whose invocation is absent from the prompt has no generation in the list.
    """
    return {} if generations is None else {"adapter_generations": generations}


def adapter_headers(generations: Sequence[str] | None) -> dict[str, str]:
    """Return the generations as a header, for a body that is not JSON."""
    return {} if generations is None else {ADAPTERS_HEADER: ",".join(generations)}


def chat_choice(delta: TextDelta, token_text: TokenText) -> dict[str, Any]:
    """Return a choice of a chat completion."""
    message = {"role": "assistant", "content": delta.text, "refusal": None}
    logprobs = chat_logprobs(delta, token_text)
    return {"index": delta.index, "message": message, **finish_fields(delta, logprobs)}


def chat_chunk_choice(delta: TextDelta, token_text: TokenText, first: bool) -> dict[str, Any]:
    """Return a choice of a chat chunk. The first one of a choice contains the role."""
    message: dict[str, Any] = {"role": "assistant", "content": delta.text} if first else {}
    if delta.text:
        message["content"] = delta.text
    logprobs = chat_logprobs(delta, token_text)
    return {"index": delta.index, "delta": message, **finish_fields(delta, logprobs)}


def completion_choice(delta: TextDelta, token_text: TokenText) -> dict[str, Any]:
    """Return a choice of a completion or of one of its chunks."""
    logprobs = completion_logprobs(delta, token_text)
    choice = {"index": delta.index, "text": delta.text, **finish_fields(delta, logprobs)}
    if delta.prompt_logprobs is not None:
        choice["prompt_logprobs"] = prompt_logprobs(delta.prompt_logprobs, token_text)
    return choice


def finish_fields(delta: TextDelta, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    """Return the fields for logprobs and for the end of a choice."""
    stop = {"stop_reason": delta.stopped_by} if delta.finish else {}
    return {"logprobs": logprobs, "finish_reason": delta.finish, **stop}


def chat_logprobs(delta: TextDelta, token_text: TokenText) -> dict[str, Any] | None:
    """Return {"content": [{"token", "logprob", "bytes", "top_logprobs"}...]}."""
    if delta.logprobs is None:
        return None

    def one(token: int, logprob: float) -> dict[str, Any]:
        text = token_text(token)
        return {"token": text, "logprob": finite(logprob), "bytes": list(text.encode())}

    content = [
        {**one(entry.token, entry.logprob), "top_logprobs": [one(*pair) for pair in entry.top]}
        for entry in delta.logprobs
        if entry is not None
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(delta: TextDelta, token_text: TokenText) -> dict[str, Any] | None:
    """Return {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, of equal lengths."""
    if delta.logprobs is None:
        return None
    return {
        "tokens": [token_text(token) for token in delta.tokens],
        "token_logprobs": [entry and finite(entry.logprob) for entry in delta.logprobs],
        "top_logprobs": [
            entry and {token_text(token): finite(logprob) for token, logprob in alternatives(entry)}
            for entry in delta.logprobs
        ],
        "text_offset": delta.offsets,
    }


def prompt_logprobs(
    entries: Sequence[TokenLogprobs | None], token_text: TokenText
) -> list[dict[str, Any] | None]:
    """Return {id: {"logprob", "rank", "decoded_token"}} per prompt token, None for the first."""
    return [None if entry is None else ranked(entry, token_text) for entry in entries]


def ranked(entry: TokenLogprobs, token_text: TokenText) -> dict[str, Any]:
    """Return a token and its alternatives. The rank of a token outside the top ones is None."""
    ranks = {token: rank for rank, (token, _) in enumerate(entry.top, 1)}
    return {
        str(token): {
            "logprob": finite(logprob),
            "rank": ranks.get(token),
            "decoded_token": token_text(token),
        }
        for token, logprob in alternatives(entry)
    }


def alternatives(entry: TokenLogprobs) -> list[tuple[int, float]]:
    """Return the top tokens, followed by the sampled token unless it is one of them."""
    if any(token == entry.token for token, _ in entry.top):
        return list(entry.top)
    return [*entry.top, (entry.token, entry.logprob)]


def finite(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)
