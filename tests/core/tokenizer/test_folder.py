"""Tokenizers of model folders against transformers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from tiny.vocabularies import TEXTS, bert_folder, scored, write
from tokenizers import pre_tokenizers

from ostro.core.errors import TokenizerError
from ostro.core.tokenizer import Tokenizer, load_tokenizer


class TestFolder:
    def test_ids_and_texts_are_those_of_transformers(self, folder: Path) -> None:
        transformers = pytest.importorskip("transformers")
        write(
            folder / "tokenizer_config.json",
            tokenizer_class="PreTrainedTokenizerFast",
            bos_token="<s>",
            eos_token="</s>",
        )
        ours = load_tokenizer(folder)
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        for text in [*TEXTS, "a<|end|>b <think> </s>"]:
            ids = ours.encode(text, parse_special=True)
            assert ids == theirs(text)["input_ids"]
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
            assert ours.decode(ids, skip_special=False) == theirs.decode(ids)
        assert (ours.bos_id, ours.vocab_size) == (theirs.bos_token_id, len(theirs))

    def test_the_post_processor_selects_prefix_and_suffix_tokens(self, folder: Path) -> None:
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
        backend.save(str(folder / "tokenizer.json"))
        assert load_tokenizer(folder).encode("a")[::2] == [0, 1]
        assert load_tokenizer(folder).encode("a", special=False)[::2] != [0, 1]

    def test_a_text_that_begins_with_bos_gets_another_as_in_transformers(
        self, folder: Path
    ) -> None:
        transformers = pytest.importorskip("transformers")
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
        backend.save(str(folder / "tokenizer.json"))
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")
        ours = load_tokenizer(folder).encode("<s>a", parse_special=True)
        assert ours == theirs("<s>a")["input_ids"] and ours[:2] == [0, 0]

    def test_generation_config_names_further_ends(self, folder: Path) -> None:
        write(folder / "config.json", eos_token_id=7)
        assert load_tokenizer(folder).eos_ids == {7, 1}
        write(folder / "generation_config.json", eos_token_id=[1, 2])
        assert load_tokenizer(folder).eos_ids == {1, 2}

    @pytest.mark.parametrize("named", ["generation_config.json", "config.json", "eos_token"])
    def test_ends_are_control_tokens_though_the_vocabulary_says_otherwise(
        self, folder: Path, named: str
    ) -> None:
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        end = backend.token_to_id("<think>")  # an added token that is not special
        if named == "eos_token":
            write(folder / "tokenizer_config.json", eos_token="<think>")
        else:
            write(folder / named, eos_token_id=[1, end])
        tokenizer = load_tokenizer(folder)
        assert end in tokenizer.eos_ids and "<think>" in tokenizer.controls
        assert end not in tokenizer.encode("a<think>") and tokenizer.split("<think>") == [end]

    def test_an_ordinary_word_that_ends_a_generation_stays_text(self, folder: Path) -> None:
        word = load_tokenizer(folder).encode("a", special=False)[0]
        write(folder / "generation_config.json", eos_token_id=[1, word])
        tokenizer = load_tokenizer(folder)
        assert tokenizer.eos_ids == {1, word} and tokenizer.decode([word]) == "a"

    def test_truncation_and_padding_in_the_file_are_switched_off(self, folder: Path) -> None:
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        backend.enable_truncation(2)
        backend.enable_padding(length=50)
        backend.save(str(folder / "tokenizer.json"))
        assert 10 < len(load_tokenizer(folder).encode("q w e r t y u i o p a s")) < 50

    def test_tokens_that_only_the_config_knows_are_added(self, folder: Path) -> None:
        size = load_tokenizer(folder).vocab_size
        entry = {"content": "<|tool|>", "special": True, "normalized": False}
        write(folder / "tokenizer_config.json", added_tokens_decoder={str(size): entry})
        tokenizer = load_tokenizer(folder / "tokenizer.json")
        assert tokenizer.encode("<|tool|>", parse_special=True) == [size]
        assert size not in tokenizer.encode("<|tool|>")
        write(folder / "tokenizer_config.json", added_tokens_decoder={str(size + 5): entry})
        with pytest.raises(TokenizerError, match=f"id {size + 5} and would get {size}"):
            load_tokenizer(folder)

    def test_templates_are_found_in_all_their_files(self, folder: Path) -> None:
        assert load_tokenizer(folder).chat_template is None
        several = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
        write(folder / "tokenizer_config.json", chat_template=several)
        assert load_tokenizer(folder).chat_template == {"default": "A", "tool_use": "B"}
        (folder / "chat_template.jinja").write_text("C")
        assert load_tokenizer(folder).chat_template == "C"
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text("D")
        assert load_tokenizer(folder).chat_template == {"default": "C", "tool_use": "D"}
        (folder / "chat_template.jinja").unlink()
        assert load_tokenizer(folder).chat_template == {"default": "A", "tool_use": "D"}
        write(folder / "tokenizer_config.json", chat_template="E")
        assert load_tokenizer(folder).chat_template == {"default": "E", "tool_use": "D"}
        (folder / "tokenizer_config.json").unlink()
        assert load_tokenizer(folder).chat_template == {"tool_use": "D"}

    def test_inner_text_gets_no_leading_space_where_only_the_first_has_one(self) -> None:
        backend = scored("▁a", "a").backend
        backend.normalizer = None
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer = Tokenizer(backend)
        assert tokenizer.encode("a") == [tokenizer.id("▁a")]
        assert tokenizer.encode("a", start=False) == [tokenizer.id("a")]
        backend.add_special_tokens(["<s>"])
        tokenizer = Tokenizer(backend)
        assert tokenizer.encode("a<s>", parse_special=True) == [tokenizer.id("▁a"), 1]
        assert tokenizer.encode("a<s>", parse_special=True, start=False) == [tokenizer.id("a"), 1]

    def test_clip_files_without_tokenizer_json(self, tmp_path: Path) -> None:
        transformers = pytest.importorskip("transformers")
        alphabet = [*pre_tokenizers.ByteLevel.alphabet()]
        alphabet += [f"{letter}</w>" for letter in alphabet]
        merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o</w>"), ("'", "s</w>")]
        words = alphabet + [a + b for a, b in merges] + ["<|startoftext|>", "<|endoftext|>"]
        write(tmp_path / "vocab.json", **{word: id for id, word in enumerate(words)})
        lines = "".join(f"{a} {b}\n" for a, b in merges)
        (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{lines}")
        special = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>"}
        special |= {"unk_token": "<|endoftext|>", "tokenizer_class": "CLIPTokenizer"}
        write(tmp_path / "tokenizer_config.json", **special)
        ours = load_tokenizer(tmp_path)
        theirs = transformers.CLIPTokenizer.from_pretrained(tmp_path)
        for text in ["Hello  HELLO's 42", *TEXTS]:
            assert ours.encode(text) == theirs(text)["input_ids"]

    def test_bert_files_without_tokenizer_json(self, tmp_path: Path) -> None:
        transformers = pytest.importorskip("transformers")
        ours = load_tokenizer(bert_folder(tmp_path))
        theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
        for text in ["UNaffable, unaffable!", "Ünaffable 日 zzz"]:
            assert ours.encode(text) == theirs(text)["input_ids"]


def test_neither_torch_nor_transformers_is_imported(folder: Path) -> None:
    code = (
        "import sys, pathlib; from ostro.core.tokenizer import load_tokenizer; "
        "import ostro.core.chat; load_tokenizer(pathlib.Path(sys.argv[1])).encode('a'); "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parents[3] / "src"
    subprocess.run(
        [sys.executable, "-c", code, str(folder)], check=True, env={"PYTHONPATH": str(root)}
    )
