"""The longest text of one token, for tokenizers that convert every byte of a text."""

from __future__ import annotations

import json
from typing import Any

import tokenizers

from ostro.core.tokenizer.detokenizer import ALPHABET

SHRINK = 3
"""The most by which NFC shortens a text in UTF-8 (Unicode Standard Annex 15)."""


def longest_token(backend: tokenizers.Tokenizer) -> int | None:
    """Return the most bytes of a text that one token stands for; None if there is no limit.

    There is none for tokenizers with an unknown token, and for those whose normalizer,
    pre-tokenizer or added tokens may drop any amount of a text, such as white space.
    """
    added = list(backend.get_added_tokens_decoder().values())
    if any(token.lstrip or token.rstrip for token in added) or not encodes_bytes(backend):
        return None
    steps = steps_of(backend)
    if not all(map(keeps_text, steps)):
        return None
    kinds = {step["type"] for step in steps}
    spelled = (text if "ByteLevel" in kinds else text.encode() for text in backend.get_vocab())
    lengths = [1, *map(len, spelled), *(len(token.content.encode()) for token in added)]
    return max(lengths) * (SHRINK if "NFC" in kinds else 1)


def encodes_bytes(backend: tokenizers.Tokenizer) -> bool:
    """Whether every byte has a token, so that no text is unknown."""
    model = backend.model
    if not isinstance(model, tokenizers.models.BPE):
        return False
    if model.byte_fallback:
        return all(backend.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256))
    by_level = any(step["type"] == "ByteLevel" for step in steps_of(backend))
    return by_level and all(backend.token_to_id(each) is not None for each in ALPHABET)


def steps_of(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """Return the steps of the normalizer and the pre-tokenizer, as in tokenizer.json."""
    steps: list[dict[str, Any]] = []
    for component in (backend.normalizer, backend.pre_tokenizer):
        if component is not None:
            state = json.loads(component.__getstate__())
            steps += state.get("normalizers") or state.get("pretokenizers") or [state]
    return steps


def keeps_text(step: dict[str, Any]) -> bool:
    """Whether a step drops nothing of a text; NFC shortens it to a third at most."""
    kind = step["type"]
    if kind == "Replace":
        old = step["pattern"].get("String")
        return old is not None and len(old.encode()) <= len(step["content"].encode())
    if kind in ("Split", "Punctuation"):
        return bool(step["behavior"] != "Removed")
    return kind in ("ByteLevel", "Digits", "Metaspace", "NFC", "Prepend")
