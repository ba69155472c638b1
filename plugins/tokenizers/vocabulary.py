"""Vocabulary files: tokenizer.json, vocab.json with merges.txt, and vocab.txt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from ostro import TokenizerSource
from ostro.checkpoints import read_regular
from ostro.errors import TokenizerError
from ostro.pipelines import Tokenizer, build_tokenizer, tokenizer_errors
from ostro.plugins.tokenizers.pretokenizers import find_pretokenizer

WORDS = {"GPT2": "gpt-2", "Roberta": "gpt-2", "Bart": "gpt-2", "Whisper": "gpt-2", "Qwen2": "qwen2"}
"""Pre-tokenizers of the tokenizer classes with vocab.json and merges.txt."""

CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


class _Added(msgspec.Struct):
    id: int
    content: str


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[Any] = []


class _Stated(msgspec.Struct):
    model: _Model
    added_tokens: list[_Added] = []


def load_json(source: TokenizerSource) -> Tokenizer:
    """Load a tokenizer.json with the configs in its folder."""
    file = source.file or "tokenizer.json"
    return build_tokenizer(read_backend(source.root / file), source, file=file)


def load_merges(source: TokenizerSource) -> Tokenizer:
    """Load vocab.json and merges.txt with the configs in their folder."""
    backend, rules = build_merges(source.root, source.tokenizer_class)
    return build_tokenizer(backend, source, file="vocab.json", **rules)


def load_wordpiece(source: TokenizerSource) -> Tokenizer:
    """Load a vocab.txt with the configs in its folder."""
    backend, rules = build_wordpiece(source.root, source.tokenizer_class, source.config)
    return build_tokenizer(backend, source, file="vocab.txt", **rules)


def read_backend(path: Path) -> tokenizers.Tokenizer:
    """Read a tokenizer.json. Truncation and padding are disabled.

    Raises TokenizerError for malformed files, colliding ids, and tokens that do not get the ids
    that the file states.
    """
    with tokenizer_errors(f"{path.name}: not a valid tokenizer"):
        data = read_regular(path)
        backend = tokenizers.Tokenizer.from_buffer(data)
        stated = msgspec.json.decode(data, type=_Stated)
    backend.no_truncation()
    backend.no_padding()
    ids = stated.model.vocab
    if isinstance(ids, dict) and len(set(ids.values())) < len(ids):
        raise TokenizerError(
            f"{path.name}: {len(ids)} tokens share {len(set(ids.values()))} ids; ids collide"
        )
    for token in stated.added_tokens:
        if (actual := backend.token_to_id(token.content)) != token.id:
            raise TokenizerError(
                f"{path.name}: token {token.content!r} is declared with id {token.id}, but "
                f"gets {actual}; the vocabulary has {backend.get_vocab_size()} tokens"
            )
    return backend


def build_merges(root: Path, kind: str) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Build byte-level BPE from vocab.json and merges.txt for the tokenizer class `kind`.

    Raises TokenizerError for malformed files and unknown classes.
    """
    if kind != "CLIP" and kind not in WORDS:
        raise TokenizerError(
            f"{root.name}: no tokenizer.json, and vocab.json with merges.txt of "
            f"{kind or 'an unnamed '}Tokenizer is not supported (supported: CLIP, "
            f"{', '.join(WORDS)}); save the tokenizer with transformers to get a tokenizer.json"
        )
    with tokenizer_errors(f"{root.name}: vocab.json or merges.txt"):
        vocab = msgspec.json.decode(read_regular(root / "vocab.json"), type=dict[str, int])
        model = models.BPE(vocab, read_merges(root / "merges.txt"))
    backend = tokenizers.Tokenizer(model)
    backend.decoder = decoders.ByteLevel()
    if kind == "CLIP":
        return _build_clip(backend)
    rule = find_pretokenizer(WORDS[kind], root.name)
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
    if kind == "Qwen2":
        backend.normalizer = normalizers.NFC()
    if kind in ("Roberta", "Bart"):
        return backend, _rules(backend, "<s>", "</s>")
    return backend, {"prefix": (), "suffix": ()}


def read_merges(path: Path) -> list[tuple[str, str]]:
    """The merges of a merges.txt, one a line. Raises TokenizerError, OSError and ValueError."""
    merges = []
    lines = read_regular(path).decode().replace("\r\n", "\n").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, 1):
        if line.startswith("#version"):
            continue
        left, space, right = line.partition(" ")
        if not space or " " in right:
            raise TokenizerError(
                f"{path.name}: line {number}: {line!r:.80} is not a pair of tokens"
            )
        merges.append((left, right))
    return merges


def _build_clip(backend: tokenizers.Tokenizer) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Add CLIP's rules: lower case, </w> after words, tokens before and after a text."""
    backend.model.end_of_word_suffix = "</w>"
    backend.model.unk_token = "<|endoftext|>"
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    words = pre_tokenizers.Split(Regex(CLIP_WORDS), "removed", invert=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return backend, _rules(backend, "<|startoftext|>", "<|endoftext|>")


def build_wordpiece(
    root: Path, kind: str, config: Mapping[str, Any]
) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Build BERT's WordPiece from vocab.txt.

    Raises TokenizerError for other tokenizer classes.
    """
    if kind not in ("Bert", "DistilBert", "Electra", ""):
        raise TokenizerError(
            f"{root.name}: vocab.txt of {kind}Tokenizer is not supported; save the tokenizer with "
            "transformers to get a tokenizer.json"
        )
    with tokenizer_errors(f"{root.name}: vocab.txt"):
        lines = read_regular(root / "vocab.txt").decode().split("\n")
    ids = {line.rstrip("\r"): id for id, line in enumerate(lines) if line}
    backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=config.get("do_lower_case", True),
        strip_accents=config.get("strip_accents"),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    named = ("[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]")
    roles = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
    return backend, _rules(backend, "[CLS]", "[SEP]") | {
        "special_tokens": dict(zip(roles, named, strict=True))
    }


def _rules(backend: tokenizers.Tokenizer, first: str, last: str) -> dict[str, Any]:
    """Keyword arguments of `build_tokenizer`: the ids around a text.

    Raises TokenizerError for missing tokens.
    """
    ids = [backend.token_to_id(first), backend.token_to_id(last)]
    if None in ids:
        raise TokenizerError(
            f"the vocabulary of {backend.get_vocab_size()} tokens lacks {first!r} or {last!r}"
        )
    return {"prefix": ids[:1], "suffix": ids[1:]}
