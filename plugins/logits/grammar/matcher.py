"""llguidance's tokenizer of a vocabulary, and its matchers under limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from ostro.errors import RequestError

MAX_STATES = 32_768
"""The most states of a lexer, of one to two kilobytes each: the memory of a matcher is bounded."""
MAX_MESSAGE = 400
"""The most characters of a message of llguidance that a user gets."""

ENDLESS = "NoExtension"
"""The begin of llguidance's message where no token may come next."""

QUOTED = re.compile(r" \d+ \| .*")
"""The lines of a grammar that llguidance quotes."""
REASON = " error: "
"""Text before the reason for which a regular expression is invalid."""
EXPLAINED = {
    "oneOf constraints": "oneOf: its branches may overlap; use anyOf, or give each branch a "
    "required property with a const of its own",
}
"""Messages of llguidance that name its own options, by their begins."""


class Tokens:
    """The tokens of a vocabulary as llguidance reads them."""

    bos_token_id = None

    def __init__(
        self,
        pieces: Sequence[bytes],
        special: Mapping[str, int],
        ends: Iterable[int],
        encode: Callable[[str], list[int]] | None,
    ) -> None:
        self.encode, self.greedy = encode, list[Callable[[str], list[int]]]()
        self.tokens = list(pieces)
        ends = sorted(ends)
        self.eos_token_id = ends[0]
        for text, id in special.items():
            self.tokens[id] = text.encode()
        # An end of answers is never text, even if its token writes some.
        for id in ends:
            self.tokens[id] = self.tokens[id] or b"<end>"
        self.special_token_ids = sorted({*special.values(), *ends})

    def __call__(self, text: str) -> list[int]:
        """The ids of a text that a grammar requires: those that a model would write."""
        ids = [] if self.encode is None else self.encode(text)
        # A tokenizer may normalize a text, or write a space before it.
        if b"".join(self.tokens[id] for id in ids) == text.encode():
            return ids
        return self.greedy[0](text) if self.greedy else []


def build_tokenizer(
    pieces: Sequence[bytes],
    special: Mapping[str, int],
    ends: Iterable[int],
    encode: Callable[[str], list[int]] | None = None,
) -> LLTokenizer:
    """llguidance's tokenizer. Without `encode`, required text is cut into the longest tokens.

    pieces, special, ends: those of a `Vocabulary`; at least one end.
    """
    ends = sorted(ends)
    tokens = Tokens(pieces, special, ends, encode)
    built = LLTokenizer(TokenizerWrapper(tokens), eos_token=ends)
    tokens.greedy.append(built.greedy_tokenize)
    return built


def build_matcher(tokenizer: LLTokenizer, source: str) -> LLMatcher:
    """The matcher of a grammar at its beginning.

    Raises RequestError for a grammar that llguidance rejects, that exceeds its limits, or that no
    output satisfies.
    """
    limits = LLParserLimits(max_lexer_states=MAX_STATES, verbose_errors=False)
    matcher = LLMatcher(tokenizer, source, log_level=0, limits=limits)
    check_matcher(matcher)
    # The first mask shows what compiling does not: rules that never end, and steps that are too
    # expensive.
    matcher.compute_bitmask()
    if matcher.get_error().startswith(ENDLESS):
        raise RequestError("no output satisfies the grammar: a rule refers to itself without end")
    check_matcher(matcher)
    return matcher


def check_matcher(matcher: LLMatcher) -> None:
    """Raise RequestError if a matcher has failed."""
    if matcher.is_error():
        raise RequestError(explain(matcher.get_error()))


def explain(message: str) -> str:
    """A message of llguidance on one line, without the grammar that it quotes."""
    text = " ".join(message.removesuffix("<non-verbose/>").split())
    for begin, what in EXPLAINED.items():
        if text.startswith(begin):
            return what
    text = QUOTED.sub("", text)
    if REASON in text:
        text = f"invalid regular expression: {text.rpartition(REASON)[2]}"
    return text[:MAX_MESSAGE]
