"""Text that is streamed token by token."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny.steps import count_lines
from tiny.vocabularies import bert_folder, pieces, scored

from ostro.core.tokenizer import load_tokenizer
from ostro.core.tokenizer.detokenizer import Detokenizer, token_name


class TestStreaming:
    def test_half_a_character_is_held_back(self, folder: Path) -> None:
        tokenizer = load_tokenizer(folder)
        stream = tokenizer.detokenizer()
        ids = [tokenizer.id(letter) for letter in "ðŁĻĤ"]  # the four bytes of U+1F642
        assert [stream.add([id]) for id in ids] == ["", "", "", "🙂"]

    def test_incomplete_utf8_becomes_a_replacement_character(self, folder: Path) -> None:
        tokenizer = load_tokenizer(folder)
        stream = tokenizer.detokenizer()
        assert stream.add([tokenizer.id("ð"), tokenizer.id("a")]) == "\ufffda"
        assert stream.add([tokenizer.id("ð")]) == ""
        assert stream.finish() == "\ufffd"

    def test_an_id_outside_the_vocabulary_has_no_text(self, folder: Path) -> None:
        tokenizer = load_tokenizer(folder)
        assert tokenizer.decode([10**9, -1]) == ""

    def test_the_first_space_belongs_to_a_continued_text_only(self) -> None:
        tokenizer = scored("▁a", "▁b")
        ids = [tokenizer.id("▁a"), tokenizer.id("▁b")]
        assert pieces(tokenizer, ids) == "a b"
        assert pieces(tokenizer, ids, prompt=[tokenizer.id("</s>")]) == "a b"
        assert pieces(tokenizer, ids, prompt=ids) == " a b"

    def test_the_first_space_may_follow_tokens_without_text(self) -> None:
        texts = {0: b"", 1: b" a", 2: b" b"}
        stream = Detokenizer(texts.__getitem__, skip=frozenset({3}), strip_space=True)
        assert [stream.add(ids) for ids in ([3], [0], [1], [2])] == ["", "", "a", " b"]

    def test_names_of_tokens(self) -> None:
        names = {
            b"a": "a", b" hi": " hi", "\u00e9".encode(): "\u00e9", b"": "",
            b"\xf0\x9f": r"bytes:\xf0\x9f", b" \xf0": r"bytes: \xf0", b"\\\xff": r"bytes:\x5c\xff",
        }  # fmt: skip
        assert {piece: token_name(piece) for piece in names} == names
        tokenizer = scored("\u2581a", "a")
        every = [token_name(tokenizer.piece(id)) for id in range(3 + 128, tokenizer.vocab_size)]
        assert len({*every}) == len(every), "bytes beyond ASCII, and words with a space or without"

    def test_the_bytes_of_wordpiece_tokens_join_to_the_text(self, tmp_path: Path) -> None:
        tokenizer = load_tokenizer(bert_folder(tmp_path))
        ids = tokenizer.encode("unaffable, un unaff!", special=False)
        written = b"".join(tokenizer.piece(id) for id in ids).decode()
        assert written == " unaffable, un unaff!" == f" {tokenizer.decode(ids)}"
        assert tokenizer.piece(2) == b"[CLS]" and tokenizer.piece(999) == b""
        names = {token_name(tokenizer.piece(id)) for id in range(tokenizer.vocab_size)}
        assert len(names) == tokenizer.vocab_size

    def test_wordpiece_streams_too(self, tmp_path: Path) -> None:
        tokenizer = load_tokenizer(bert_folder(tmp_path))
        ids = tokenizer.encode("Unaffable, unaffable!", special=False)
        assert pieces(tokenizer, ids) == tokenizer.decode(ids) == "unaffable, unaffable!"

    def test_the_work_per_token_does_not_grow(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokenizer = load_tokenizer(folder)
        id = tokenizer.id("ð")  # nothing ever completes
        stream, decoded = tokenizer.detokenizer(), list[int]()
        piece = stream._piece
        monkeypatch.setattr(stream, "_piece", lambda id: decoded.append(id) or piece(id))
        lines = [count_lines(lambda: stream.add([id])) for _ in range(5000)]
        assert len(decoded) == 5000 and max(lines) == lines[0]
        held, _ = stream._utf8.getstate()
        assert len(held) < 4
