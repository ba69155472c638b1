"""Tokenizer files: tokenizer.json, SentencePiece, BPE, WordPiece, tekken, tiktoken, GGUF."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import TokenizerFormat, TokenizerSource, hookimpl

SENTENCEPIECE = ("tokenizer.model", "spiece.model")
TIKTOKEN = "tiktoken.model"
MERGES = ("vocab.json", "merges.txt")


def is_json(source: TokenizerSource) -> bool:
    """Whether `source` is a tokenizer.json or a folder with one, which is preferred to others."""
    if source.file is not None:
        return source.suffix == ".json" and not is_tekken(source)
    return source.has("tokenizer.json")


def is_sentencepiece(source: TokenizerSource) -> bool:
    """Whether `source` is a SentencePiece model or a folder with one."""
    in_folder = any(source.has(name) for name in SENTENCEPIECE) and not is_json(source)
    one_file = source.suffix == ".model" and source.file != TIKTOKEN
    return one_file or in_folder


def is_merges(source: TokenizerSource) -> bool:
    """Whether `source` is a folder with a byte-level BPE in vocab.json and merges.txt."""
    preferred = is_json(source) or is_sentencepiece(source)
    return source.has(*MERGES) and not preferred


def is_wordpiece(source: TokenizerSource) -> bool:
    """Whether `source` is a folder with the WordPiece vocabulary of BERT."""
    preferred = is_json(source) or is_sentencepiece(source) or is_merges(source)
    return source.has("vocab.txt") and not preferred


def is_tekken(source: TokenizerSource) -> bool:
    """Whether `source` is a tekken.json or a folder with one and no other vocabulary."""
    if source.file is not None:
        return source.suffix == ".json" and source.file.startswith("tekken")
    return source.has("tekken.json") and not (is_json(source) or is_sentencepiece(source))


def is_tiktoken(source: TokenizerSource) -> bool:
    """Whether `source` is a tiktoken file or a folder with one and no tokenizer.json."""
    if source.file is not None:
        return source.suffix == ".tiktoken" or source.file == TIKTOKEN
    found = source.has(TIKTOKEN) or any(source.root.glob("*.tiktoken"))
    return source.metadata is None and found and not is_json(source)


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
        name="tekken", claims=is_tekken, load=f"{package}.ranks:load_tekken", usage="tekken.json"
    )
    yield TokenizerFormat(
        name="tiktoken",
        claims=is_tiktoken,
        load=f"{package}.ranks:load_tiktoken",
        usage=TIKTOKEN,
    )
    yield TokenizerFormat(
        name="gguf",
        claims=is_gguf,
        load=f"{package}.gguf:load_gguf",
        usage="a GGUF header",
        write=f"{package}.header:write_header",
    )
