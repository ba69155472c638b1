"""Write a tokenizer to the keys of a GGUF header, which `ostro.plugins.tokenizers.gguf` reads.

Every tokenizer is a backend of the `tokenizers` library, whichever file it came from. A
SentencePiece file in its folder has the scores of its pieces, which other files lack. The written
keys are read again, and both tokenizers must convert a text to the same ids.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ostro import TokenizerSource
from ostro.checkpoints import read_config
from ostro.errors import TokenizerError
from ostro.pipelines import Tokenizer
from ostro.plugins.tokenizers import SENTENCEPIECE
from ostro.plugins.tokenizers.gguf import ROLES, tokenizer_from_gguf
from ostro.plugins.tokenizers.pieces import SPACE, Kind, Pieces
from ostro.plugins.tokenizers.pretokenizers import name_pretokenizer, patterns_of
from ostro.plugins.tokenizers.sentencepiece import read_pieces

PREFIX = "tokenizer.ggml."

PROBE = (
    "The cat's 3 hats cost $12,345.67, don't they?  I'LL say\tyes!\n\n\n  x_1 = f(a[0]) # 100%\r\n"
    "na\u00efve \u00dcber \u0417\u0434\u0440\u0430\u0432\u0441\u0442\u0432\u0443\u0439 "
    "\u4f60\u597d\uff0c\u4e16\u754c 2024\u5e74 \u3053\u3093\u306b\u3061\u306f \uc548\ub155 "
    "\u0645\u0631\u062d\u0628\u0627 \U0001f600\U0001f44d\U0001f3fd "
    "\u0928\u092e\u0938\u094d\u0924\u0947 CamelCase HTTPServer  (end)"
)
"""A text of several scripts, composed, with cases on which pre-tokenizers differ."""

SPECIAL_LOOKS = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
FRAMES = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))
"""Added tokens that are control tokens although their files do not say so, as in llama.cpp's
converter."""

UNUSED_SCORE, ADDED_SCORE = -10000.0, -1000.0

logger = logging.getLogger(__name__)


def write_header(
    tokenizer: Tokenizer, source: TokenizerSource, keys: Mapping[str, Any]
) -> dict[str, Any]:
    """The keys of a tokenizer; `keys` are those of the model, of which tokenizer keys win.

    The vocabulary is padded to the model's rows. Raises TokenizerError for a tokenizer that GGUF
    files cannot describe.
    """
    vocabulary = Vocabulary(tokenizer, source, keys)
    kind = keys.get(f"{PREFIX}model") or vocabulary.kind
    found = {"model": kind, **WRITERS[kind](vocabulary)}
    found |= special_ids(vocabulary)
    header = {f"{PREFIX}{key}": value for key, value in found.items() if value is not None}
    header |= templates(tokenizer)
    header |= {key: value for key, value in keys.items() if key.startswith("tokenizer.")}
    compare(tokenizer, header | {"general.architecture": keys["general.architecture"]})
    return header


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer to be written: its backend's state, and the rows of the model."""

    tokenizer: Tokenizer
    source: TokenizerSource
    keys: Mapping[str, Any]

    @cached_property
    def state(self) -> Mapping[str, Any]:
        found: dict[str, Any] = json.loads(self.tokenizer.backend.to_str())
        return found

    @cached_property
    def model(self) -> Mapping[str, Any]:
        found: dict[str, Any] = self.state["model"]
        return found

    @property
    def architecture(self) -> str:
        return str(self.keys["general.architecture"])

    @property
    def rows(self) -> int:
        """The rows of the embedding."""
        rows: int = self.keys.get(f"{self.architecture}.vocab_size", self.tokenizer.vocab_size)
        return rows

    @cached_property
    def kind(self) -> str:
        """The value of tokenizer.ggml.model. Raises TokenizerError for another kind."""
        steps = [
            *flat(self.state["pre_tokenizer"], "pretokenizers"),
            *flat(self.state["decoder"], "decoders"),
        ]
        kind = self.model["type"]
        if kind == "BPE" and any(step["type"] == "ByteLevel" for step in steps):
            return "gpt2"
        if kind == "BPE" and self.model.get("byte_fallback"):
            return "llama"
        if kind in ("WordPiece", "Unigram"):
            return {"WordPiece": "bert", "Unigram": "t5"}[kind]
        raise TokenizerError(
            f"{self.tokenizer.source}: a {kind} model without bytes has no kind in GGUF files"
        )

    @cached_property
    def texts(self) -> list[str]:
        """The text of every id; those of the padding are "[PAD5]" and so on."""
        token = self.tokenizer.backend.id_to_token
        return [token(id) or f"[PAD{id}]" for id in range(self.rows)]

    @cached_property
    def kinds(self) -> list[int]:
        """The kind of every id."""
        backend = self.tokenizer.backend
        added = backend.get_added_tokens_decoder()
        kinds: list[int] = []
        for id, text in enumerate(self.texts):
            if backend.id_to_token(id) is None:
                kinds.append(Kind.UNUSED)
            elif id in added:
                control = added[id].special or looks_special(text)
                kinds.append(Kind.CONTROL if control else Kind.USER_DEFINED)
            elif len(text) == 6 and text.startswith("<0x") and self.model.get("byte_fallback"):
                kinds.append(Kind.BYTE)
            else:
                kinds.append(Kind.NORMAL)
        return [int(kind) for kind in kinds]

    @cached_property
    def pieces(self) -> Pieces | None:
        """The pieces of the folder's SentencePiece file, None without one."""
        name = next((name for name in SENTENCEPIECE if self.source.has(name)), None)
        return None if name is None else read_pieces(self.source.root / name)

    def scored(self, score: Callable[[int], float]) -> tuple[list[float], list[int]]:
        """The scores and kinds of SentencePiece's file, of added tokens, and else `score(id)`."""
        scores, kinds = [], list(self.kinds)
        added = self.tokenizer.backend.get_added_tokens_decoder()
        unknown = self.tokenizer.special_tokens.get("unk_token")
        for id, text in enumerate(self.texts):
            piece = self.pieces
            if piece is not None and id < len(piece.texts) and piece.texts[id] == text:
                scores.append(piece.scores[id])
                if kinds[id] == Kind.NORMAL or piece.kinds[id] == Kind.UNKNOWN:
                    kinds[id] = piece.kinds[id]
            elif kinds[id] == Kind.UNUSED:
                scores.append(UNUSED_SCORE)
            else:
                scores.append(ADDED_SCORE if id in added else score(id))
            if text == unknown:
                kinds[id] = int(Kind.UNKNOWN)
        return scores, kinds

    def prepends(self) -> bool:
        """Whether a space precedes a text."""
        steps = [
            *flat(self.state["normalizer"], "normalizers"),
            *flat(self.state["pre_tokenizer"], "pretokenizers"),
        ]
        return any(
            step["type"] == "Prepend" or step.get("prepend_scheme") in ("always", "first")
            for step in steps
        )


def looks_special(text: str) -> bool:
    return text in SPECIAL_LOOKS or any(
        text.startswith(start) and text.endswith(end) for start, end in FRAMES
    )


def flat(step: Mapping[str, Any] | None, children: str) -> list[Mapping[str, Any]]:
    """The steps of a component of a backend, without sequences."""
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    return [each for child in step[children] for each in flat(child, children)]


def byte_level(vocabulary: Vocabulary) -> dict[str, Any]:
    """Byte-level BPE: tokens, merges, and the name of the pre-tokenizer."""
    steps = flat(vocabulary.state["pre_tokenizer"], "pretokenizers")
    name = name_pretokenizer(
        patterns_of(steps),
        ignore_merges=bool(vocabulary.model.get("ignore_merges")),
        architecture=vocabulary.architecture,
        source=vocabulary.tokenizer.source,
    )
    return {
        "pre": name,
        "tokens": vocabulary.texts,
        "token_type": vocabulary.kinds,
        "merges": merges(vocabulary),
    }


def merges(vocabulary: Vocabulary) -> list[str]:
    """The merges as pairs of words; a space within one is its byte-level character."""
    pairs = vocabulary.model["merges"]
    return [" ".join(part.replace(" ", "\u0120") for part in pair) for pair in pairs]


def sentencepiece(vocabulary: Vocabulary) -> dict[str, Any]:
    """SentencePiece's BPE. Without its file, the score of a token is the rank of its merge."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(vocabulary.model["merges"], 1):
        ranks.setdefault("".join(pair), rank)
    texts = vocabulary.texts
    scores, kinds = vocabulary.scored(lambda id: -float(ranks.get(texts[id], 0)))
    return {
        "pre": "default",
        "tokens": texts,
        "scores": scores,
        "token_type": kinds,
        "add_space_prefix": vocabulary.prepends(),
    }


def fallback(vocabulary: Vocabulary) -> dict[str, Any]:
    """Gemma 4's BPE of characters, with bytes for all others."""
    return {
        "tokens": vocabulary.texts,
        "scores": [ADDED_SCORE] * vocabulary.rows,
        "token_type": vocabulary.kinds,
        "merges": merges(vocabulary),
        "add_space_prefix": vocabulary.prepends(),
    }


def unigram(vocabulary: Vocabulary) -> dict[str, Any]:
    """SentencePiece's unigram model, and its normalization."""
    stated = dict(enumerate(score for _, score in vocabulary.model["vocab"]))
    scores, kinds = vocabulary.scored(lambda id: stated.get(id, ADDED_SCORE))
    if (unknown := vocabulary.model.get("unk_id")) is not None:
        kinds[unknown] = int(Kind.UNKNOWN)
    steps = flat(vocabulary.state["normalizer"], "normalizers")
    charsmap = next((s["precompiled_charsmap"] for s in steps if s["type"] == "Precompiled"), None)
    collapses = any(s["type"] in ("Strip", "Replace") for s in steps)
    return {
        "pre": "default",
        "tokens": vocabulary.texts,
        "scores": scores,
        "token_type": kinds,
        "add_space_prefix": vocabulary.prepends(),
        "remove_extra_whitespaces": collapses,
        "precompiled_charsmap": decode(charsmap) if charsmap else None,
    }


def decode(charsmap: str | list[int]) -> bytes:
    """The compiled normalization, which a backend's state holds in base64."""
    from base64 import b64decode

    return b64decode(charsmap) if isinstance(charsmap, str) else bytes(charsmap)


def wordpiece(vocabulary: Vocabulary) -> dict[str, Any]:
    """BERT's WordPiece: GGUF marks the beginnings of words instead of continuations."""
    texts = []
    for text, kind in zip(vocabulary.texts, vocabulary.kinds, strict=True):
        bracketed = text.startswith("[") and text.endswith("]")
        if kind == Kind.UNUSED:
            texts.append(SPACE + text)
        elif kind != Kind.NORMAL or bracketed:
            texts.append(text)
        else:
            texts.append(text[2:] if text.startswith("##") else SPACE + text)
    normalizer = next(iter(flat(vocabulary.state["normalizer"], "normalizers")), {})
    return {
        "pre": "default",
        "tokens": texts,
        "token_type": vocabulary.kinds,
        "normalizer.lowercase": normalizer.get("lowercase"),
        "normalizer.strip_accents": normalizer.get("strip_accents"),
    }


WRITERS: Mapping[str, Callable[[Vocabulary], dict[str, Any]]] = {
    "gpt2": byte_level,
    "gemma4": fallback,
    "llama": sentencepiece,
    "t5": unigram,
    "bert": wordpiece,
}
"""By tokenizer.ggml.model."""


def special_ids(vocabulary: Vocabulary) -> dict[str, Any]:
    """The ids of special tokens, and whether a text begins with bos and ends with eos."""
    tokenizer = vocabulary.tokenizer
    found: dict[str, Any] = {
        key: tokenizer.id(tokenizer.special_tokens[role])
        for role, key in ROLES.items()
        if role in tokenizer.special_tokens
    }
    model = text_config(vocabulary.source.root)
    for role, key in ROLES.items():
        id = model.get(f"{role}_id")
        if key not in found and isinstance(id, int) and 0 <= id < vocabulary.rows:
            found[key] = id
    found.setdefault("bos_token_id", found.get("cls_token_id"))
    found.setdefault("eos_token_id", found.get("seperator_token_id"))
    ends = sorted(id for id in tokenizer.eos_ids - {found["eos_token_id"]} if id < vocabulary.rows)
    if found["eos_token_id"] is None and ends:
        found["eos_token_id"] = ends.pop(0)
    found |= dict(zip(("eot_token_id", "eom_token_id"), ends, strict=False))
    found["add_bos_token"] = around(tokenizer.prefix, found["bos_token_id"], "before", tokenizer)
    found["add_eos_token"] = around(tokenizer.suffix, found["eos_token_id"], "after", tokenizer)
    return found


def text_config(folder: Path) -> Mapping[str, Any]:
    """The config.json of a folder, that of its text if it has one; {} without a file."""
    config = read_config(folder / "config.json", missing_ok=True)
    text = config.get("text_config")
    return {**text, **config} if isinstance(text, dict) else config


def around(ids: list[int], one: int | None, side: str, tokenizer: Tokenizer) -> bool:
    """Whether a text gets a token on one side; other tokens than bos and eos are reported."""
    if ids and ids != [one]:
        logger.warning(
            "%s: a GGUF header cannot state the tokens %s %s a text; a prompt must contain them",
            tokenizer.source,
            [tokenizer.token(id) for id in ids],
            side,
        )
    return ids == [one]


def templates(tokenizer: Tokenizer) -> dict[str, Any]:
    """The keys of the chat template, or of several by name."""
    found = tokenizer.chat_template
    if not isinstance(found, dict):
        return {} if found is None else {"tokenizer.chat_template": found}
    named = {name: text for name, text in found.items() if name != "default"}
    keys: dict[str, Any] = {f"tokenizer.chat_template.{k}": text for k, text in named.items()}
    if "default" in found:
        keys["tokenizer.chat_template"] = found["default"]
    return keys | {"tokenizer.chat_templates": list(named)}


def compare(tokenizer: Tokenizer, header: Mapping[str, Any]) -> None:
    """Raise TokenizerError unless a header's tokenizer converts `PROBE` to the same ids."""
    stored = {key: list(each) if isinstance(each, bytes) else each for key, each in header.items()}
    written = tokenizer_from_gguf(stored, source="the written header")
    ours, theirs = (each.encode(PROBE, special=False) for each in (written, tokenizer))
    if ours == theirs:
        return
    pairs = zip_longest(ours, theirs, fillvalue=-1)
    at = next(i for i, (a, b) in enumerate(pairs) if a != b)
    found, expected = (
        [each.token(id) for id in ids[at : at + 3]]
        for each, ids in ((written, ours), (tokenizer, theirs))
    )
    raise TokenizerError(
        f"{tokenizer.source}: a GGUF header cannot describe this tokenizer: after "
        f"{tokenizer.decode(theirs[:at])[-20:]!r} its tokens are {expected}, those of the header "
        f"{found}; use --to uqff, which copies the tokenizer"
    )
