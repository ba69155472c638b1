"""The bytes of a vocabulary equal what its tokenizer decodes."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tiny.vocabularies import TEXTS, bert_folder, scored, train

from ostro.core.errors import TokenizerError
from ostro.core.tokenizer import Tokenizer, load_tokenizer
from ostro.core.tokenizer.vocabulary import Vocabulary


def byte_level() -> Tokenizer:
    return Tokenizer(
        tokenizers.Tokenizer.from_str(train().to_str()),
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
        eos_ids=[1],
    )


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
def test_pieces_are_the_bytes_of_the_decoded_text(kind: str) -> None:
    tokenizer = byte_level() if kind == "byte-level" else scored("▁a", "b", "▁the")
    size = tokenizer.vocab_size + 5
    vocabulary = Vocabulary.from_tokenizer(tokenizer, size, tokenizer.eos_ids)
    assert len(vocabulary.pieces) == vocabulary.size == size
    for text in TEXTS:
        ids = vocabulary.encode(text)
        written = b"".join(vocabulary.pieces[id] for id in ids)
        # Byte-level BPE without a normalizer and SentencePiece with byte tokens lose nothing.
        assert written == text.encode()


def test_control_tokens_and_padding_write_nothing() -> None:
    vocabulary = Vocabulary.from_tokenizer(byte_level(), 700, [1, 900])
    assert vocabulary.special == {"<s>": 0, "</s>": 1, "<|end|>": 2}
    assert [vocabulary.pieces[id] for id in (0, 1, 2, 699)] == [b""] * 4
    assert b"<think>" in vocabulary.pieces, "an added token that is not special writes its text"
    assert vocabulary.eos_ids == {1}, "an id beyond the logits ends nothing"


def test_byte_tokens_write_one_byte() -> None:
    tokenizer = scored("▁a")
    vocabulary = Vocabulary.from_tokenizer(tokenizer, tokenizer.vocab_size, ())
    assert [vocabulary.pieces[3 + byte] for byte in range(256)] == [bytes([b]) for b in range(256)]


def test_wordpiece_is_refused_by_name(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(bert_folder(tmp_path))
    with pytest.raises(TokenizerError, match="WordPiece"):
        Vocabulary.from_tokenizer(tokenizer, tokenizer.vocab_size, ())


def test_a_vocabulary_without_a_tokenizer_encodes_nothing() -> None:
    with pytest.raises(TokenizerError, match="no tokenizer"):
        Vocabulary(32).encode("a")
