"""Fill in the middle: the prompt of a completion between a prefix and a suffix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ostro.errors import Unsupported
from ostro.pipelines import Tokenizer

ROLES = ("fim_pre_token", "fim_suf_token", "fim_mid_token")
"""Roles of the tokens before the prefix, the suffix and the middle, from GGUF metadata."""
NAMES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM-4
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # CodeLlama; the line above is DeepSeek-Coder
    ("<PRE>", "<SUF>", "<MID>"),
)
"""Names of these tokens in vocabularies."""
SUFFIX_FIRST = ("[PREFIX]", "[SUFFIX]")
"""Names of the tokens of Codestral: the suffix precedes the prefix, and no third token follows."""
ENDS = (
    "<|endoftext|>", "<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<|file_separator|>",
    "<fim_pad>", "<file_sep>", "\u2581<EOT>", "<EOT>",
)  # fmt: skip
"""Names of tokens that end the middle."""


@dataclass(frozen=True)
class InfillTokens:
    """Token ids for fill in the middle. Without `middle` the suffix precedes the prefix."""

    prefix: int
    suffix: int
    middle: int | None
    ends: tuple[int, ...]

    @classmethod
    def find(cls, tokenizer: Tokenizer) -> InfillTokens:
        """The tokens of a vocabulary. Raises Unsupported without any."""
        stated = tuple(tokenizer.special_tokens.get(role, "") for role in ROLES)
        ends = [id for id in map(tokenizer.id, ENDS) if id is not None]
        for names in (stated, *NAMES, SUFFIX_FIRST):
            ids = [id for name in names if name and (id := tokenizer.id(name)) is not None]
            if len(ids) == len(names):
                middle = ids[2] if len(ids) == 3 else None
                return cls(ids[0], ids[1], middle, tuple(dict.fromkeys([*ends, *ids])))
        raise Unsupported(
            "suffix: the vocabulary of this model has no tokens for fill in the middle; leave "
            "it out, or use a model for code",
            param="suffix",
        )

    def prompt(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """The prompt whose continuation belongs between two texts."""
        if self.middle is None:
            return [self.suffix, *after, self.prefix, *before]
        return [self.prefix, *before, self.suffix, *after, self.middle]
