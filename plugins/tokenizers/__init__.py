"""Tokenizer files: tokenizer.json, SentencePiece, byte-level BPE, WordPiece and GGUF headers."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import TokenizerFormat, TokenizerSource, hookimpl

SENTENCEPIECE = ("tokenizer.model", "spiece.model")
MERGES = ("vocab.json", "merges.txt")


def is_json(source: TokenizerSource) -> bool:
    """Whether `source` is a tokenizer.json or a folder with one, which is preferred to others."""
    return source.suffix == ".json" or source.has("tokenizer.json")


def is_sentencepiece(source: TokenizerSource) -> bool:
    """Whether `source` is a SentencePiece model or a folder with one."""
    in_folder = any(source.has(name) for name in SENTENCEPIECE) and not is_json(source)
    return source.suffix == ".model" or in_folder


def is_merges(source: TokenizerSource) -> bool:
    """Whether `source` is a folder with a byte-level BPE in vocab.json and merges.txt."""
    preferred = is_json(source) or is_sentencepiece(source)
    return source.has(*MERGES) and not preferred


def is_wordpiece(source: TokenizerSource) -> bool:
    """Whether `source` is a folder with the WordPiece vocabulary of BERT."""
    preferred = is_json(source) or is_sentencepiece(source) or is_merges(source)
    return source.has("vocab.txt") and not preferred


def is_gguf(source: TokenizerSource) -> bool:
    """Whether `source` has the header of a GGUF file."""
    return source.metadata is not None


@hookimpl
def ostro_tokenizers() -> Iterator[TokenizerFormat]:
    """Yield the formats."""
    package = "ostro.plugins.tokenizers"
    yield TokenizerFormat(
        name="tokenizer.json",
        claims=is_json,
        load=f"{package}.vocabulary:load_json",
        usage="tokenizer.json",
    )
    yield TokenizerFormat(
        name="sentencepiece",
        claims=is_sentencepiece,
        load=f"{package}.sentencepiece:load_sentencepiece",
        usage="tokenizer.model",
    )
    yield TokenizerFormat(
        name="bpe",
        claims=is_merges,
        load=f"{package}.vocabulary:load_merges",
        usage="vocab.json with merges.txt",
    )
    yield TokenizerFormat(
        name="wordpiece",
        claims=is_wordpiece,
        load=f"{package}.vocabulary:load_wordpiece",
        usage="vocab.txt",
    )
    yield TokenizerFormat(
        name="gguf", claims=is_gguf, load=f"{package}.gguf:load_gguf", usage="a GGUF header"
    )
