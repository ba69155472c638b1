"""SentencePiece model files, without the sentencepiece package.

Source of the format: sentencepiece_model.proto (google/sentencepiece), a protobuf message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from ostro import TokenizerSource
from ostro.checkpoints import read_regular
from ostro.errors import TokenizerError
from ostro.pipelines import Tokenizer, build_tokenizer, tokenizer_errors
from ostro.plugins.tokenizers import SENTENCEPIECE
from ostro.plugins.tokenizers.pieces import Kind, Pieces, build_bpe, build_unigram

PLAIN = ("Llama", "CodeLlama", "Gemma", "T5", "")
"""Tokenizer classes that use the ids of the SentencePiece file; others shift them."""


def build_sentencepiece(
    path: Path, *, legacy: bool = True
) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Read a SentencePiece model file (BPE or unigram): a backend and arguments of `Tokenizer`.

    `legacy` adds a leading space to every text between control tokens, not only to the first.
    Raises TokenizerError for other model types and malformed files.
    """
    with tokenizer_errors(f"{path.name}: not a SentencePiece model"):
        model = _Model.parse(read_regular(path), path.name)
    pieces = model.pieces
    with tokenizer_errors(f"{path.name}: malformed vocabulary"):
        if model.type == "BPE":
            scheme = "never" if not model.prefix else "always" if legacy else "first"
            backend = build_bpe(pieces, unk=pieces.token(model.unk), prefix=scheme)
        else:
            backend = build_unigram(
                pieces, unk=model.unk, charsmap=model.charsmap, prefix=model.prefix,
                collapse=model.collapse,
            )  # fmt: skip
    backend.add_tokens(pieces.added(normalized=not model.prefix))
    bos = [] if model.bos is None else [model.bos]
    eos = [] if model.eos is None else [model.eos]
    named = {"unk_token": model.unk, "bos_token": model.bos, "eos_token": model.eos}
    special = {role: text for role, id in named.items() if (text := pieces.token(id))}
    rules: dict[str, Any] = {"special_tokens": special, "eos_ids": eos, "source": path.name}
    # T5 appends eos to its inputs; all other models of this format prepend bos.
    return backend, rules | ({"prefix": bos} if model.type == "BPE" else {"suffix": eos})


def read_pieces(path: Path) -> Pieces:
    """The pieces of a SentencePiece model file. Raises TokenizerError if it is malformed."""
    with tokenizer_errors(f"{path.name}: not a SentencePiece model"):
        return _Model.parse(read_regular(path), path.name).pieces


def load_sentencepiece(source: TokenizerSource) -> Tokenizer:
    """Load the SentencePiece model of a model folder, or one file without the folder's configs.

    Raises TokenizerError for tokenizer classes that shift the ids of the file.
    """
    if source.file is not None:
        backend, rules = build_sentencepiece(source.root / source.file)
        return Tokenizer(backend, **rules)
    file = next(name for name in SENTENCEPIECE if source.has(name))
    if source.tokenizer_class not in PLAIN:
        raise TokenizerError(
            f"{source.root.name}/{file}: {source.tokenizer_class}Tokenizer assigns ids of its own; "
            "save the tokenizer with transformers to get a tokenizer.json"
        )
    legacy = source.config.get("legacy", True) is not False
    backend, rules = build_sentencepiece(source.root / file, legacy=legacy)
    return build_tokenizer(
        backend,
        source,
        file=file,
        special_tokens=rules["special_tokens"],
        prefix=rules.get("prefix", ()),
        suffix=rules.get("suffix", ()),
    )


@dataclass(frozen=True, kw_only=True)
class _Model:
    pieces: Pieces
    type: str
    unk: int | None
    bos: int | None
    eos: int | None
    charsmap: bytes
    prefix: bool
    collapse: bool

    @classmethod
    def parse(cls, data: bytes, source: str) -> _Model:
        rows = []
        trainer: Mapping[int, Any] = {}
        normalizer: Mapping[int, Any] = {}
        for field, value in _fields(data):
            if field == 1:
                row = dict(_fields(value))
                rows.append((row[1].decode(), row.get(2, 0.0), row.get(3, Kind.NORMAL)))
            elif field == 2:
                trainer = dict(_fields(value))
            elif field == 3:
                normalizer = dict(_fields(value))
        if not rows:
            raise ValueError("no pieces")
        types = {1: "unigram", 2: "BPE", 3: "word", 4: "char"}
        type = types.get(trainer.get(3, 1), "unknown")
        if type not in ("unigram", "BPE"):
            raise TokenizerError(f"{source}: SentencePiece {type} models are not supported")
        texts, scores, kinds = zip(*rows, strict=True)
        return cls(
            pieces=Pieces(texts=texts, scores=scores, kinds=kinds, source=source),
            type=type,
            unk=_signed(trainer.get(40, 0)),
            bos=_signed(trainer.get(41, 1)),
            eos=_signed(trainer.get(42, 2)),
            charsmap=normalizer.get(2, b""),
            prefix=bool(normalizer.get(3, 1)),
            collapse=bool(normalizer.get(4, 1)),
        )


def _signed(value: int) -> int | None:
    """Convert a protobuf int32; None for -1 (no such token), which is encoded in 64 bits."""
    return None if value >= 1 << 31 else value


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protobuf message: numbers, with ints, floats and bytes as values."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        field, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield field, value
        elif wire == 2:
            size, at = _varint(data, at)
            if size > len(data) - at:
                raise ValueError(f"field {field} at byte {at} runs past the end")
            yield field, data[at : at + size]
            at += size
        elif wire in (1, 5):
            form = "<d" if wire == 1 else "<f"
            yield field, struct.unpack_from(form, data, at)[0]
            at += 8 if wire == 1 else 4
        else:
            raise ValueError(f"unknown wire type {wire} at byte {at}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"truncated number at byte {at}")
