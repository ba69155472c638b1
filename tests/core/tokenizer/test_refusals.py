"""Tokenizer files that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny.vocabularies import write

from ostro.core.errors import RequestError, TokenizerError
from ostro.core.tokenizer import load_tokenizer

LOST: dict[str, Any] = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "[GONE]", "type_id": 0}}],
    "pair": [],
    "special_tokens": {},
}
"""A post-processor with a token that it does not declare: the library panics when it encodes."""


class TestRefusals:
    def test_vocabulary_larger_than_the_embedding(self, folder: Path) -> None:
        tokenizer = load_tokenizer(folder)
        tokenizer.check(tokenizer.vocab_size)
        with pytest.raises(TokenizerError, match=f"{tokenizer.vocab_size} ids.* only 100 rows"):
            tokenizer.check(100)

    def test_post_processor_beyond_the_embedding(self, folder: Path) -> None:
        file = folder / "tokenizer.json"
        around = {"type": "BertProcessing", "sep": ["[SEP]", 9998], "cls": ["[CLS]", 1]}
        write(file, **{**json.loads(file.read_text()), "post_processor": around})
        with pytest.raises(TokenizerError, match="9999 ids"):
            load_tokenizer(folder).check(700)

    def test_missing_special_token(self, folder: Path) -> None:
        write(folder / "tokenizer_config.json", eos_token="<|gone|>")
        with pytest.raises(TokenizerError, match=r"'<\|gone\|>' is not among the 601 tokens"):
            load_tokenizer(folder)

    @pytest.mark.parametrize(
        "text", ["", "{}", "[]", "{" * 100_000, '{"model": {"type": "BPE"}}', "\x00" * 100]
    )
    def test_malformed_tokenizer_json(self, folder: Path, text: str) -> None:
        (folder / "tokenizer.json").write_text(text)
        with pytest.raises(TokenizerError, match=r"tokenizer\.json: not a valid tokenizer"):
            load_tokenizer(folder)

    def test_colliding_ids(self, folder: Path, trained: str) -> None:
        state = json.loads(trained)
        state["model"]["vocab"]["a"] = state["model"]["vocab"]["b"]
        write(folder / "tokenizer.json", **state)
        with pytest.raises(TokenizerError, match="ids collide"):
            load_tokenizer(folder)
        state = json.loads(trained)
        state["added_tokens"][-1]["id"] = 9999
        write(folder / "tokenizer.json", **state)
        with pytest.raises(TokenizerError, match="declared with id 9999"):
            load_tokenizer(folder)

    def test_malformed_config(self, folder: Path) -> None:
        (folder / "tokenizer_config.json").write_text('{"bos_token": ')
        with pytest.raises(TokenizerError, match=r"tokenizer_config.json: .*line 1 column"):
            load_tokenizer(folder)

    @pytest.mark.parametrize(
        ("file", "changes"),
        [
            ("tokenizer.json", {"post_processor": LOST}),
            ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "<a>"}}}),
            ("tokenizer_config.json", {"added_tokens_decoder": {"5": "<a>"}}),
            ("tokenizer_config.json", {"added_tokens_decoder": {"5": {"text": "<a>"}}}),
            ("tokenizer_config.json", {"added_tokens_decoder": [1]}),
            ("tokenizer_config.json", {"tokenizer_class": 5}),
            ("tokenizer_config.json", {"chat_template": [{"name": "a"}]}),
            ("config.json", {"text_config": 5}),
        ],
    )
    def test_malformed_fields(self, folder: Path, file: str, changes: Any) -> None:
        path = folder / file
        found = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**found, **changes}))
        with pytest.raises(TokenizerError, match=folder.name):
            load_tokenizer(folder)

    def test_a_folder_without_tokenizer_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "weights.bin").touch()
        with pytest.raises(TokenizerError, match=r"found: weights.bin"):
            load_tokenizer(tmp_path)
        with pytest.raises(TokenizerError, match="does not exist"):
            load_tokenizer(tmp_path / "gone")

    def test_text_that_is_not_unicode(self, folder: Path) -> None:
        tokenizer = load_tokenizer(folder)
        with pytest.raises(RequestError, match="not valid Unicode"):
            tokenizer.encode("a\ud800")
        assert tokenizer.encode("a")
