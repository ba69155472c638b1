"""Prompts as ids: those that transformers' tokenizers give diffusers' pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ostro.architectures.flux import TINY
from ostro.architectures.flux.inputs import Inputs
from ostro.core.errors import RequestError, TokenizerError

transformers = pytest.importorskip("transformers")

PROMPTS = (
    "",
    "a photo of a cat",
    "A  CAT's   hat,\n on the Mat!",
    "hut tat 42 <|endoftext|> </s> café",
    "the cat sat on the mat " * 60,
)
MERGES = [("c", "a"), ("a", "t</w>"), ("ca", "t</w>"), ("t", "h"), ("th", "e</w>"), ("m", "at</w>")]
WORDS = ("▁", "▁a", "▁cat", "▁the", "▁photo", "▁of", "▁on", "▁mat", "'s", "▁hat", "at", "s")
CHARACTERS = "abcdefghijklmnopqrstuvwxyzACMHTO42,!'éêà<|>/"


def clip(folder: Path, older: bool) -> Any:
    """CLIP's tokenizer with a small vocabulary; `older` folders have no tokenizer.json."""
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    pieces: Iterable[str] = [*alphabet, *(f"{x}</w>" for x in alphabet), *map("".join, MERGES)]
    names = [*dict.fromkeys(pieces), "<|startoftext|>", "<|endoftext|>"]
    vocab = {piece: id for id, piece in enumerate(names)}
    theirs = transformers.CLIPTokenizer(vocab=vocab, merges=MERGES, model_max_length=77)
    if not older:
        theirs.save_pretrained(folder)
        return theirs
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text(
        "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in MERGES)
    )
    marks = {"bos_token": "<|startoftext|>"} | dict.fromkeys(
        ("eos_token", "unk_token", "pad_token"), "<|endoftext|>"
    )
    config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, **marks}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return theirs


def t5(folder: Path) -> Any:
    marks = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    words = [(word, -2.0 - 0.1 * i) for i, word in enumerate(WORDS)]
    theirs = transformers.T5Tokenizer(
        vocab=[*marks, *words, *((x, -8.0) for x in CHARACTERS)], extra_ids=0
    )
    theirs.save_pretrained(folder)
    return theirs


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("guided", [True, False])
def test_ids_are_those_of_transformers(tmp_path: Path, older: bool, guided: bool) -> None:
    first, second = clip(tmp_path / "tokenizer", older), t5(tmp_path / "tokenizer_2")
    raw = {**TINY, "transformer": {"guidance_embeds": guided}}
    inputs, length = Inputs(raw, tmp_path), 512 if guided else 256
    for prompt in PROMPTS:
        # Control tokens written in a prompt are control tokens to transformers, and text to us.
        plain = prompt.replace("<|endoftext|>", "").replace("</s>", "")
        how = {"padding": "max_length", "truncation": True}
        asked = first(plain, max_length=77, **how)["input_ids"]
        expected = second(plain, max_length=length, **how)["input_ids"]
        assert inputs.texts(plain) == (asked, expected), plain
    assert inputs.cut(PROMPTS[-1] * 2) and not inputs.cut(PROMPTS[1])


def test_control_tokens_in_a_prompt_are_text(tmp_path: Path) -> None:
    clip(tmp_path / "tokenizer", False)
    t5(tmp_path / "tokenizer_2")
    inputs = Inputs(TINY, tmp_path)
    written, _ = inputs.texts("cat <|endoftext|> mat")
    end = inputs.clip.suffix[0]
    first = written.index(end)
    assert first > 5 and set(written[first:]) == {end}


def test_t5_may_read_a_text_of_its_own(tmp_path: Path) -> None:
    clip(tmp_path / "tokenizer", False)
    t5(tmp_path / "tokenizer_2")
    inputs = Inputs(TINY, tmp_path)
    ids, other = inputs.texts("a cat", "the mat")
    assert (ids, other) == (inputs.texts("a cat")[0], inputs.texts("the mat")[1])
    with pytest.raises(RequestError):
        inputs.texts("\ud800")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    clip(tmp_path / "tokenizer", False)
    with pytest.raises(TokenizerError, match="tokenizer_2"):
        Inputs(TINY, tmp_path)
