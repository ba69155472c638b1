"""Tokenizers against the known vectors of vocabularies beside the checkout."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
from tiny.vocabularies import pieces

from ostro.core.tokenizer import Tokenizer, load_tokenizer

VOCAB = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "vocab"
FILES = sorted(VOCAB.glob("*.gguf")) if VOCAB.is_dir() else []


@cache
def vocabulary(file: Path) -> Tokenizer:
    from ostro.plugins.checkpoints.gguf.reader import open_gguf

    container = open_gguf(file)
    try:
        return load_tokenizer(file, metadata=container.metadata)
    finally:
        container.close()


@cache
def vectors(file: Path) -> list[tuple[str, list[int]]]:
    texts = file.with_name(file.name + ".inp").read_bytes().decode()
    ids = file.with_name(file.name + ".out").read_text()
    pairs = zip(texts.split("\n__ggml_vocab_test__\n"), ids.split("\n"), strict=True)
    return [(text, [int(id) for id in line.split()]) for text, line in pairs]


@pytest.fixture(params=FILES or [None], ids=lambda file: file.stem if file else "absent")
def file(request: pytest.FixtureRequest) -> Path:
    if request.param is None:
        pytest.skip("no vocabularies beside the checkout")
    return request.param


class TestVectors:
    @pytest.mark.sample(3)
    def test_ids_are_those_of_the_reference(self, file: Path) -> None:
        tokenizer = vocabulary(file)
        wrong = [
            (text, tokenizer.encode(text, special=False), ids)
            for text, ids in vectors(file)
            if tokenizer.encode(text, special=False) != ids
        ]
        assert len(vectors(file)) > 40
        assert not wrong

    @pytest.mark.sample(3)
    def test_text_round_trips(self, file: Path) -> None:
        if "bert" in file.name:
            pytest.skip("WordPiece loses case and spaces")
        tokenizer = vocabulary(file)
        for text, ids in vectors(file):
            assert tokenizer.decode(ids) == text
            assert pieces(tokenizer, ids) == text

    def test_streamed_text_is_decoded_text_for_any_ids(self, file: Path) -> None:
        tokenizer = vocabulary(file)
        draw = random.Random(0)
        for _ in range(200):
            ids = [draw.randrange(tokenizer.vocab_size) for _ in range(draw.randrange(1, 30))]
            for skip in (True, False):
                whole = tokenizer.decode(ids, skip_special=skip)
                assert pieces(tokenizer, ids, skip_special=skip) == whole

    def test_decoded_text_is_the_librarys(self, file: Path) -> None:
        tokenizer = vocabulary(file)
        draw = random.Random(1)
        for _ in range(100):
            ids = [draw.randrange(tokenizer.vocab_size) for _ in range(20)]
            ids = [id for id in ids if not tokenizer.token(id).startswith("<0x")]
            assert tokenizer.decode(ids) == tokenizer.backend.decode(ids)

    def test_control_tokens_in_text_stay_text(self, file: Path) -> None:
        tokenizer = vocabulary(file)
        for control in sorted(tokenizer.controls)[:20]:
            id = tokenizer.id(control)
            text = f"a{control}b {control}{control}"
            assert id not in tokenizer.encode(text, special=False)
            assert id in tokenizer.encode(text, special=False, parse_special=True)

    @pytest.mark.sample(2)
    def test_the_time_is_not_quadratic(self, file: Path) -> None:
        tokenizer = vocabulary(file)
        for text in ("a" * 200_000, " " * 100_000, "<|" * 50_000, "1" * 100_000):
            tokenizer.encode(text)  # if its time were quadratic, the test would run out of time
