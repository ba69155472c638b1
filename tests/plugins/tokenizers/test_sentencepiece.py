"""SentencePiece models against the sentencepiece package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny.vocabularies import TEXTS, WORDS, write

from ostro.core.errors import TokenizerError
from ostro.core.tokenizer import load_tokenizer
from ostro.plugins.tokenizers.gguf import tokenizer_from_gguf
from ostro.plugins.tokenizers.pieces import Kind, Pieces
from ostro.plugins.tokenizers.sentencepiece import read_pieces


@pytest.fixture(scope="session")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Train a model of a kind with the sentencepiece package."""
    spm = pytest.importorskip("sentencepiece")
    root = tmp_path_factory.mktemp("sentencepiece")
    (root / "words.txt").write_text(WORDS)

    def make(kind: str, **options: Any) -> tuple[Path, Any]:
        path = root / f"{kind}{len(options)}"
        spm.SentencePieceTrainer.train(
            input=str(root / "words.txt"),
            model_prefix=str(path),
            model_type=kind,
            vocab_size=600,
            minloglevel=2,
            **options,
        )
        return path.with_suffix(".model"), spm.SentencePieceProcessor(str(path) + ".model")

    return make


LLAMA = {"byte_fallback": True, "normalization_rule_name": "identity"}
LLAMA |= {"remove_extra_whitespaces": False, "user_defined_symbols": ["<user>"]}


class TestSentencePiece:
    def test_bpe_is_the_packages(self, sentencepiece_model: Any) -> None:
        path, theirs = sentencepiece_model("bpe", **LLAMA)
        ours = load_tokenizer(path)
        for text in TEXTS:
            assert ours.encode(text, special=False) == theirs.encode(text)
            assert ours.decode(theirs.encode(text)) == text
        assert theirs.piece_to_id("<user>") in ours.encode("naive <user> text")
        assert ours.encode("a")[0] == theirs.bos_id()

    def test_unigram_is_the_packages(self, sentencepiece_model: Any) -> None:
        path, theirs = sentencepiece_model("unigram")
        ours = load_tokenizer(path)
        for text in TEXTS:
            ids = theirs.encode(text)
            assert ours.encode(text, special=False) == ids
            if theirs.unk_id() not in ids:
                assert ours.decode(ids) == theirs.decode(ids)
        assert ours.encode("a")[-1] == theirs.eos_id()

    def test_a_unigram_piece_that_is_a_control_token_is_not_spelled(
        self, sentencepiece_model: Any
    ) -> None:
        ours = load_tokenizer(sentencepiece_model("unigram")[0])
        assert ours.id("</s>") not in ours.encode("a</s>b</s>", special=False)
        assert ours.id("</s>") in ours.encode("a</s>b", special=False, parse_special=True)

    def test_the_same_models_as_gguf(self, sentencepiece_model: Any) -> None:
        for kind, options, model in (("bpe", LLAMA, "llama"), ("unigram", {}, "t5")):
            _, theirs = sentencepiece_model(kind, **options)
            ids = range(theirs.vocab_size())
            kinds = [1 + theirs.is_unknown(i) + 2 * theirs.is_control(i) for i in ids]
            metadata = {
                "tokenizer.ggml.model": model,
                "tokenizer.ggml.tokens": [theirs.id_to_piece(i) for i in ids],
                "tokenizer.ggml.scores": [theirs.get_score(i) for i in ids],
                "tokenizer.ggml.token_type": [6 if theirs.is_byte(i) else kinds[i] for i in ids],
                "tokenizer.ggml.unknown_token_id": theirs.unk_id(),
                "tokenizer.ggml.eos_token_id": theirs.eos_id(),
                "tokenizer.ggml.remove_extra_whitespaces": kind == "unigram",
            }
            ours = tokenizer_from_gguf(metadata)
            # Without its character map the unigram model does not normalise.
            for text in TEXTS if kind == "bpe" else ["Hello, world!", "  two  spaces", "f(x)"]:
                assert ours.encode(text, special=False) == theirs.encode(text)

    def test_truncated_and_foreign_files_are_refused(
        self, sentencepiece_model: Any, tmp_path: Path
    ) -> None:
        data = sentencepiece_model("unigram")[0].read_bytes()
        for bad in (data[:500], b"", b"\xff" * 100, b"\x0a\x80" * 50):
            (tmp_path / "tokenizer.model").write_bytes(bad)
            with pytest.raises(TokenizerError, match=r"tokenizer\.model"):
                load_tokenizer(tmp_path)

    def test_config_flags_select_prefix_and_suffix_tokens(
        self, sentencepiece_model: Any, tmp_path: Path
    ) -> None:
        path, theirs = sentencepiece_model("bpe", **LLAMA)
        (tmp_path / "tokenizer.model").write_bytes(path.read_bytes())
        write(tmp_path / "tokenizer_config.json", add_bos_token=False, add_eos_token=True)
        assert load_tokenizer(tmp_path).encode("a") == [*theirs.encode("a"), theirs.eos_id()]

    def test_classes_that_shift_ids_are_refused(
        self, sentencepiece_model: Any, tmp_path: Path
    ) -> None:
        (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model("unigram")[0].read_bytes())
        write(tmp_path / "tokenizer_config.json", tokenizer_class="XLMRobertaTokenizer")
        with pytest.raises(TokenizerError, match="XLMRobertaTokenizer assigns ids"):
            load_tokenizer(tmp_path)


def test_of_merges_with_equal_scores_the_first_token_wins() -> None:
    texts, scores = ["a", "b", "ab", "ba", "bb"], [0.0, 0.0, -1.0, -1.0, -0.5]
    pieces = Pieces(texts=texts, scores=scores, kinds=[Kind.NORMAL] * 5, source="test")
    assert pieces.merges() == [("b", "b"), ("a", "b"), ("b", "a")]


@pytest.mark.parametrize("size", [4, 5, 6, 100])
def test_a_field_beyond_the_end_is_refused(size: int, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.model"
    file.write_bytes(bytes([0x0A, size]) + b"\x0a\x01a")  # the rest is a whole piece
    with pytest.raises(TokenizerError, match="runs past the end"):
        read_pieces(file)
