"""Vocabularies in GGUF headers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny.vocabularies import header
from tokenizers import pre_tokenizers

from ostro.core.errors import TokenizerError
from ostro.core.tokenizer import load_tokenizer
from ostro.plugins.tokenizers.gguf import END_IDS, ENDS, tokenizer_from_gguf
from ostro.plugins.tokenizers.pieces import Kind
from ostro.plugins.tokenizers.pretokenizers import RULES, find_pretokenizer

LAST = 259


def with_token(text: str, kind: int, model: str = "gpt2", **changes: Any) -> dict[str, Any]:
    """The header of a vocabulary of bytes, with one more token: id 259."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if model not in ("gpt2", "gemma4"):
        changes = {"scores": [0.0] * 260, "unknown_token_id": 256, **changes}
    return header(
        model=model,
        pre=None if model == "gemma4" else "qwen2",
        tokens=[*alphabet, "[UNK]", "aa", "bb", text],
        token_type=[Kind.NORMAL] * LAST + [kind],
        merges=[],
        **changes,
    )


class TestGGUF:
    def test_kinds_of_tokens(self) -> None:
        tokenizer = tokenizer_from_gguf(header())
        end, user = tokenizer.id("<|im_end|>"), tokenizer.id("<user>")
        assert tokenizer.controls == {"<|im_end|>"}
        assert tokenizer.eos_ids == {0, end}
        assert end not in tokenizer.encode("ab<|im_end|>")
        assert tokenizer.encode("ab<user> ab")[1:] == [user, tokenizer.id("Ġab")]
        assert tokenizer.split("a<|im_end|>b") == ["a", end, "b"]

    @pytest.mark.parametrize("kind", [Kind.NORMAL, Kind.CONTROL, Kind.USER_DEFINED, Kind.UNUSED])
    @pytest.mark.parametrize("model", ["gpt2", "gemma4", "llama", "t5", "bert"])
    def test_ends_of_a_turn_are_control_tokens_of_any_kind(self, model: str, kind: int) -> None:
        # In a vocabulary of WordPiece the first letter of this one marks the beginning of a word.
        for text in {*ENDS} - ({"\u2581<EOT>"} if model == "bert" else set()):
            tokenizer = tokenizer_from_gguf(with_token(text, kind, model))
            end, ids = LAST, tokenizer.encode(f"a{text}b", special=False)
            assert tokenizer.token(end) == text and end in tokenizer.eos_ids
            assert end not in ids and tokenizer.decode([end]) == ""
            parsed = tokenizer.encode(f"a{text}b", special=False, parse_special=True)
            assert [id for id in parsed if id == end] == [end]

    @pytest.mark.parametrize("key", ["eos_token_id", *END_IDS])
    def test_ends_that_the_header_names_are_control_tokens(self, key: str) -> None:
        tokenizer = tokenizer_from_gguf(with_token("<|mine|>", Kind.NORMAL, **{key: LAST}))
        assert LAST in tokenizer.eos_ids and tokenizer.controls == {"<|mine|>"}
        assert tokenizer.split("a<|mine|>") == ["a", LAST]

    def test_tokens_that_do_not_end_a_turn_keep_their_kind(self) -> None:
        for text, kind in (("</s>", Kind.USER_DEFINED), ("<b>", Kind.NORMAL), ("ab", Kind.NORMAL)):
            tokenizer = tokenizer_from_gguf(with_token(text, kind))
            assert not tokenizer.controls and tokenizer.eos_ids == {0}
        infill = tokenizer_from_gguf(with_token("<|fim_middle|>", Kind.NORMAL))
        assert infill.controls == {"<|fim_middle|>"} and infill.eos_ids == {0}

    def test_in_harmony_a_message_ends_without_the_turn(self) -> None:
        metadata = with_token("<|end|>", Kind.NORMAL)
        metadata["tokenizer.ggml.tokens"][0] = "<|return|>"
        tokenizer = tokenizer_from_gguf(metadata)
        assert tokenizer.controls == {"<|return|>", "<|end|>"} and tokenizer.eos_ids == {0}

    @pytest.mark.parametrize("main", [{}, {"tokenizer.chat_template": "A"}], ids=["none", "main"])
    def test_named_chat_templates(self, main: dict[str, str]) -> None:
        named = {f"tokenizer.chat_template.{name}": name for name in ("tool_use", "rerank")}
        tokenizer = tokenizer_from_gguf({**header(), **main, **named})
        expected = {"tool_use": "tool_use", "rerank": "rerank"}
        assert tokenizer.chat_template == {**({"default": "A"} if main else {}), **expected}

    def test_tokens_for_fill_in_the_middle(self) -> None:
        metadata = header()
        names = metadata["tokenizer.ggml.tokens"]
        for id, role in enumerate(("pre", "suf", "mid")):
            metadata[f"tokenizer.ggml.fim_{role}_token_id"] = id
        special = tokenizer_from_gguf(metadata).special_tokens
        assert [special[f"fim_{role}_token"] for role in ("pre", "suf", "mid")] == names[:3]

    def test_only_the_dialogue_tokens_of_phi3_swallow_space(self) -> None:
        words = ["▁", "<|user|>", "<|endoftext|>", "\n"]
        metadata = {
            "general.architecture": "phi3",
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *words],
            "tokenizer.ggml.token_type": [2, 3, 3, 1, 3, 3, 1],
        }
        tokenizer = tokenizer_from_gguf(metadata)
        assert tokenizer.encode("<|user|>\n", special=False, parse_special=True) == [4]
        assert tokenizer.encode("<|endoftext|>\n", special=False, parse_special=True) == [5, 3, 6]
        assert tokenizer.split("<|user|> \n<s> ") == [4, 1, " "]

    def test_whole_lines_are_no_way_to_a_control_token(self) -> None:
        tokenizer = tokenizer_from_gguf(header(pre="gemma4", merges=[]))
        assert tokenizer.id("<|im_end|>") not in tokenizer.encode("<|im_end|>", special=False)

    @pytest.mark.parametrize("names", RULES, ids=lambda names: names.split()[0])
    def test_every_rule_keeps_the_text(self, names: str) -> None:
        for pre in names.split():
            tokenizer = tokenizer_from_gguf(header(pre=pre))
            text = "It's ab, AB 1234567 don't\r\n\n  Ünï 日本 한국\u3000—!?  "
            if find_pretokenizer(pre, "").byte_level:
                assert tokenizer.decode(tokenizer.encode(text, special=False)) == text

    @pytest.mark.parametrize(
        ("pre", "words"),
        [
            ("gpt-2", ["ab", "12345", "'s", "DON", "'", "T"]),
            ("llama-bpe", ["ab", "123", "45", "'s", "DON", "'T"]),
            ("qwen2", ["ab", "1", "2", "3", "4", "5", "'s", "DON", "'T"]),
            ("tekken", ["ab", "1", "2", "3", "4", "5", "'s", "DON", "'T"]),
            ("gpt-4o", ["ab", "123", "45", "'s", "DON'T"]),
            ("deepseek-v3", ["ab", "123", "45", "'sDON", "'T"]),
        ],
    )
    def test_rules_cut_words(self, pre: str, words: list[str]) -> None:
        cut = tokenizer_from_gguf(header(pre=pre)).backend.pre_tokenizer
        assert [word for word, _ in cut.pre_tokenize_str("ab12345'sDON'T")] == words

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"model": "rwkv"}, "tokenizer.ggml.model = 'rwkv' is not supported"),
            ({"model": None}, "tokenizer.ggml.model is missing"),
            ({"model": 3}, "tokenizer.ggml.model is 3, not str"),
            ({"pre": "qwen9"}, "unknown pre-tokenizer tokenizer.ggml.pre = 'qwen9'; nearest"),
            ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
            ({"tokens": "abc"}, "tokenizer.ggml.tokens is missing or not an array"),
            ({"tokens": [1, 2], "token_type": [1, 1]}, "token 1 is not a string"),
            ({"tokens": ["a", "b", "a"], "token_type": [1] * 3}, "'a' has two ids, 0 and 2"),
            ({"tokens": ["a" * 5000], "token_type": [1]}, "5000 characters"),
            ({"token_type": [1]}, "260 tokens, 260 scores and 1 token types"),
            ({"merges": ["a q q"]}, "malformed gpt2 vocabulary: .*q q"),
            ({"merges": ["ab"]}, "merge 'ab' is not a pair"),
            ({"merges": None}, "tokenizer.ggml.merges is missing"),
            ({"eos_token_id": 10**6}, "id 1000000 exceeds the vocabulary of 260"),
            ({"model": "t5", "precompiled_charsmap": [1, 2, 3]}, "malformed t5"),
            ({"model": "t5", "scores": [float("nan")] * 260, "unknown_token_id": 999}, "unk_id"),
        ],
    )
    def test_bad_headers_are_refused(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(TokenizerError, match=message):
            tokenizer_from_gguf(header(**changes), source="bad.gguf")

    def test_a_file_without_its_metadata_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "x.gguf").write_bytes(b"GGUF")
        with pytest.raises(TokenizerError, match="metadata"):
            load_tokenizer(tmp_path / "x.gguf")
