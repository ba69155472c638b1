"""Byte-level BPE by ranks: tekken.json of Mistral and tiktoken files.

Such a vocabulary lists tokens as bytes in the order of their ranks. Of all adjacent pieces, those
are merged first whose concatenation has the lowest rank.
Sources of the formats: tiktoken (openai/tiktoken), mistral-common (mistralai/mistral-common).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

from ostro import TokenizerSource
from ostro.checkpoints import read_regular
from ostro.errors import TokenizerError
from ostro.pipelines import Tokenizer, build_tokenizer, byte_alphabet, tokenizer_errors
from ostro.plugins.tokenizers.pretokenizers import find_pretokenizer

TEKKEN = "tekken.json"
CONTROLS = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)  # fmt: skip
"""Control tokens of tekken.json files that list none, by id."""

QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205)))
"""Control tokens of Qwen 1, in the order of their ids."""

RESERVED = 256
"""Ids behind the vocabulary of Kimi that are control tokens; its config names some of them."""


class _Entry(msgspec.Struct):
    rank: int
    token_bytes: str


class _Control(msgspec.Struct):
    rank: int
    token_str: str


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _Tekken(msgspec.Struct):
    config: _Config
    vocab: list[_Entry]
    special_tokens: list[_Control] | None = None


def load_tekken(source: TokenizerSource) -> Tokenizer:
    """Load a tekken.json. The ids of control tokens come first, the ranks follow."""
    file = source.file or TEKKEN
    with tokenizer_errors(f"{file}: not a valid tekken file"):
        stated = msgspec.json.decode(read_regular(source.root / file), type=_Tekken)
    config = stated.config
    count = config.default_num_special_tokens
    size = config.default_vocab_size - count
    if not 0 < count < config.default_vocab_size or size > len(stated.vocab):
        raise TokenizerError(
            f"{file}: default_vocab_size {config.default_vocab_size} with {count} control tokens "
            f"does not fit the {len(stated.vocab)} tokens of the file"
        )
    entries = sorted(stated.vocab, key=lambda entry: entry.rank)[:size]
    if [entry.rank for entry in entries] != list(range(size)):
        raise TokenizerError(f"{file}: the ranks of the vocabulary are not 0..{size - 1}")
    tokens = [decode(entry.token_bytes, file) for entry in entries]
    named = {id: text for id, text in enumerate(CONTROLS)}
    if stated.special_tokens is not None:
        named = {each.rank: each.token_str for each in stated.special_tokens}
    controls = [named.get(id, f"<SPECIAL_{id}>") for id in range(count)]
    backend = build_ranks(tokens, [config.pattern], first=count, file=file, controls=controls)
    roles = ("unk_token", "bos_token", "eos_token")
    special = dict(zip(roles, controls, strict=False))
    bos = [id for id, text in enumerate(controls) if text == special["bos_token"]]
    return build_tokenizer(
        backend, source, file=file, special_tokens=special, prefix=bos, suffix=()
    )


def load_tiktoken(source: TokenizerSource) -> Tokenizer:
    """Load a tiktoken file of Qwen 1 or Kimi; its tokenizer class decides the other rules.

    Raises TokenizerError for other tokenizer classes, whose rules are code.
    """
    file = source.file or next(iter(tiktoken_files(source)))
    kind = source.tokenizer_class
    if kind not in ("QWen", "TikToken"):
        raise TokenizerError(
            f"{source.root.name}/{file}: {kind or 'an unnamed '}Tokenizer is not supported "
            "(supported: QWen, TikToken); save the tokenizer with transformers to get a "
            "tokenizer.json"
        )
    tokens = list(read_ranks(source.root / file))
    end = len(tokens)
    if kind == "QWen":
        controls, rule, eos = list(QWEN), "qwen2", QWEN[0]
    else:
        added = source.config.get("added_tokens_decoder") or {}
        named = {int(id): entry["content"] for id, entry in added.items()}
        ids = range(end, end + RESERVED)
        controls = [named.get(id, f"<|reserved_token_{id}|>") for id in ids]
        rule, eos = "kimi-k2", "[EOS]"
    patterns = find_pretokenizer(rule, file).patterns
    backend = build_ranks(tokens, patterns, first=0, file=file, controls=controls)
    special = {"eos_token": eos} if eos in controls else {}
    return build_tokenizer(backend, source, file=file, special_tokens=special, prefix=(), suffix=())


def tiktoken_files(source: TokenizerSource) -> Iterator[str]:
    """The tiktoken files of a model folder."""
    if source.file is None and source.metadata is None:
        yield from sorted(path.name for path in source.root.glob("*.tiktoken"))
        if source.has("tiktoken.model"):
            yield "tiktoken.model"


def read_ranks(path: Path) -> Iterator[bytes]:
    """The tokens of a tiktoken file in the order of their ranks: lines of base64 and rank."""
    with tokenizer_errors(f"{path.name}: not a tiktoken file"):
        lines = read_regular(path).decode("ascii").splitlines()
        rows = [line.split() for line in lines if line]
        ranks = {int(rank): token for token, rank in rows}
    if sorted(ranks) != list(range(len(rows))):
        raise TokenizerError(f"{path.name}: the ranks of its {len(rows)} lines are not consecutive")
    for rank in range(len(rows)):
        yield decode(ranks[rank], path.name)


def decode(text: str, file: str) -> bytes:
    """The bytes of a token in base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise TokenizerError(f"{file}: token {text!r:.40} is not base64: {error}") from error


def build_ranks(
    tokens: Sequence[bytes],
    patterns: Sequence[str],
    *,
    first: int,
    file: str,
    controls: Sequence[str],
) -> tokenizers.Tokenizer:
    """Build byte-level BPE of tokens in the order of their ranks; the id of rank 0 is `first`.

    All cuts of a token into two others are merges, with the token's rank: which one applies depends
    on the text. patterns: expressions of the words within which BPE merges. controls: control
    tokens with the ids before `first`, or behind the tokens if `first` is 0.
    """
    ranks = {token: rank for rank, token in enumerate(tokens)}
    if len(ranks) < len(tokens) or any(bytes([byte]) not in ranks for byte in range(256)):
        raise TokenizerError(f"{file}: the tokens are not distinct, or a byte is missing")
    alphabet = {byte: character for character, byte in byte_alphabet().items()}
    texts = ["".join(alphabet[byte] for byte in token) for token in tokens]
    vocabulary: dict[Any, int] = {text: first + rank for rank, text in enumerate(texts)}
    if len(set(controls)) < len(controls) or not vocabulary.keys().isdisjoint(controls):
        raise TokenizerError(f"{file}: two tokens have the text of one control token")
    if first:  # the library appends added tokens unless the vocabulary has them
        vocabulary |= {text: id for id, text in enumerate(controls)}
    merges = [
        (texts[left], texts[right])
        for token in tokens
        for cut in range(1, len(token))
        if (left := ranks.get(token[:cut])) is not None
        and (right := ranks.get(token[cut:])) is not None
    ]
    with tokenizer_errors(f"{file}: malformed vocabulary"):
        model = models.BPE(vocabulary, merges)
        model.ignore_merges = True  # a word of the vocabulary is one token, as in tiktoken
        backend = tokenizers.Tokenizer(model)
        cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens(
            [AddedToken(text, special=True, normalized=False) for text in controls]
        )
    return backend
