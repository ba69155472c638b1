"""Requests and results of tokenization: texts and conversations to token ids, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ostro.core.errors import RequestError
from ostro.core.tasks import VectorTask
from ostro.core.tokenizer import Tokenizer
from ostro.entrypoints.operations.requests.model_body import ModelBody

TOKENIZING: tuple[Literal["text"] | VectorTask, ...] = ("text", "embed", "rerank", "classify")
"""The tasks whose pipelines have a tokenizer, the preferred one first."""
MAX_CONTEXTS = 8
"""Limit on the tokens that are counted, as a multiple of the model's context."""


class TokenizeRequest(ModelBody, kw_only=True):
    """A text to convert to token ids.

    `add_special_tokens` adds those that the model expects around a text, such as BOS. With
    `parse_special`, control tokens in the text become their ids, as in the prompts of completions;
    otherwise they are text.
    """

    text: str
    add_special_tokens: bool = True
    parse_special: bool = True


class DetokenizeRequest(ModelBody, kw_only=True):
    """Token ids to convert to text."""

    tokens: list[int]


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Token ids, with the name, the context length in tokens and the tokenizer of their model."""

    model: str
    context: int
    tokens: list[int]
    tokenizer: Tokenizer


def decode(tokenizer: Tokenizer, vocab: int, tokens: Sequence[int]) -> str:
    """Return the text of token ids, control tokens included.

    Raises RequestError for an id outside of 0..vocab-1.
    """
    for index, token in enumerate(tokens):
        if not 0 <= token < vocab:
            raise RequestError(
                f"tokens[{index}]={token} is not within 0..{vocab - 1}", param="tokens"
            )
    return tokenizer.decode(tokens, skip_special=False)
