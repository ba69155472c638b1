"""Answers in the forms of OpenAI's API, with vLLM's additions (stop_reason, prompt_logprobs)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ostro.core.engine.request import TokenLogprobs
from ostro.core.pipeline import TextDelta, Usage

LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""
Spell = Callable[[int], str]
ADAPTERS = "x-adapter-generations"
"""The header that tells of adapters where the body is no JSON."""


@dataclass
class Whole:
    """All deltas of one choice, put together."""

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

    def delta(self) -> TextDelta:
        """The whole choice as one delta."""
        self.last.text = "".join(self.texts)
        return self.last


def usage(used: Usage) -> dict[str, Any]:
    """Token counts."""
    return {
        "prompt_tokens": used.prompt,
        "completion_tokens": used.completion,
        "total_tokens": used.prompt + used.completion,
        "prompt_tokens_details": {"cached_tokens": used.cached},
    }


def adapters(generations: Sequence[str] | None) -> dict[str, Any]:
    """The generations of the adapters that an answer was made with; nothing where none were asked
    for. One that asks for tokens that the prompt does not have is not among them.
    """
    return {} if generations is None else {"adapter_generations": generations}


def adapter_headers(generations: Sequence[str] | None) -> dict[str, str]:
    """The same of an answer whose body is no JSON."""
    return {} if generations is None else {ADAPTERS: ",".join(generations)}


def chat_choice(delta: TextDelta, spell: Spell) -> dict[str, Any]:
    """A choice of a whole chat answer."""
    message = {"role": "assistant", "content": delta.text, "refusal": None}
    return {"index": delta.index, "message": message, **ending(delta, chat_logprobs(delta, spell))}


def chat_piece(delta: TextDelta, spell: Spell, first: bool) -> dict[str, Any]:
    """A choice of a chat chunk; a choice's first one names the role."""
    said: dict[str, Any] = {"role": "assistant", "content": delta.text} if first else {}
    if delta.text:
        said["content"] = delta.text
    return {"index": delta.index, "delta": said, **ending(delta, chat_logprobs(delta, spell))}


def completion_choice(delta: TextDelta, spell: Spell) -> dict[str, Any]:
    """A choice of a completion, whole or not."""
    told = completion_logprobs(delta, spell)
    choice = {"index": delta.index, "text": delta.text, **ending(delta, told)}
    if delta.prompt_logprobs is not None:
        choice["prompt_logprobs"] = prompt_logprobs(delta.prompt_logprobs, spell)
    return choice


def ending(delta: TextDelta, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    """What all choices say of their logprobs and of how they ended."""
    ended = {"stop_reason": delta.stopped_by} if delta.finish else {}
    return {"logprobs": logprobs, "finish_reason": delta.finish, **ended}


def chat_logprobs(delta: TextDelta, spell: Spell) -> dict[str, Any] | None:
    """{"content": [{"token", "logprob", "bytes", "top_logprobs"}...]}."""
    if delta.logprobs is None:
        return None

    def one(token: int, logprob: float) -> dict[str, Any]:
        text = spell(token)
        return {"token": text, "logprob": finite(logprob), "bytes": list(text.encode())}

    content = [
        {**one(entry.token, entry.logprob), "top_logprobs": [one(*pair) for pair in entry.top]}
        for entry in delta.logprobs
        if entry is not None
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(delta: TextDelta, spell: Spell) -> dict[str, Any] | None:
    """{"tokens", "token_logprobs", "top_logprobs", "text_offset"}, of equal lengths."""
    if delta.logprobs is None:
        return None
    return {
        "tokens": [spell(token) for token in delta.tokens],
        "token_logprobs": [entry and finite(entry.logprob) for entry in delta.logprobs],
        "top_logprobs": [
            entry and {spell(token): finite(logprob) for token, logprob in alternatives(entry)}
            for entry in delta.logprobs
        ],
        "text_offset": delta.offsets,
    }


def prompt_logprobs(
    entries: Sequence[TokenLogprobs | None], spell: Spell
) -> list[dict[str, Any] | None]:
    """Per prompt token {id: {"logprob", "rank", "decoded_token"}}; the first has none."""
    return [None if entry is None else ranked(entry, spell) for entry in entries]


def ranked(entry: TokenLogprobs, spell: Spell) -> dict[str, Any]:
    """A token and its alternatives; the rank of a token that is not among them is not known."""
    ranks = {token: rank for rank, (token, _) in enumerate(entry.top, 1)}
    return {
        str(token): {
            "logprob": finite(logprob),
            "rank": ranks.get(token),
            "decoded_token": spell(token),
        }
        for token, logprob in alternatives(entry)
    }


def alternatives(entry: TokenLogprobs) -> list[tuple[int, float]]:
    """The best tokens and the one that was taken, the latter last unless it is among them."""
    taken = [] if any(token == entry.token for token, _ in entry.top) else [entry]
    return [*entry.top, *((own.token, own.logprob) for own in taken)]


def finite(logprob: float) -> float:
    return max(logprob, LOWEST)
