"""Tokenizers against known vectors and their reference implementations, and against bad input."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from ostro.core.errors import RequestError, TokenizerError
from ostro.core.tokenizer import Tokenizer, load_tokenizer, tokenizer_from_gguf
from ostro.core.tokenizer.pretokenizers import RULES, find_words

VOCAB = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "vocab"
FILES = sorted(VOCAB.glob("*.gguf")) if VOCAB.is_dir() else []
TEXTS = [
    "Hello, world! It's 3 o'clock; 12345 tokens.",
    "naïve café e\u0301 ﬁ ÀÉ",
    "日本語のテキスト 한국어 🙂🇫🇷 \u200d",
    "  two  spaces\n\n\nand\tlines \r\n end  ",
    "",
    " ",
    "def f(x):\n    return x ** 2  # ok",
]
WORDS = (Path(__file__).read_text() * 2) + " ".join(TEXTS)


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


def train(**special: Any) -> tokenizers.Tokenizer:
    """A small byte-level BPE."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>", "</s>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([WORDS], trainer)
    backend.add_tokens([AddedToken("<think>", normalized=False)])
    return backend


@pytest.fixture(scope="session")
def trained() -> str:
    return train().to_str()


@pytest.fixture
def folder(tmp_path: Path, trained: str) -> Path:
    """A model folder whose config names its special tokens."""
    (tmp_path / "tokenizer.json").write_text(trained)
    write(tmp_path / "tokenizer_config.json", bos_token="<s>", eos_token={"content": "</s>"})
    return tmp_path


def write(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(fields))


def pieces(tokenizer: Tokenizer, ids: list[int], **how: Any) -> str:
    stream = tokenizer.detokenizer(**how)
    return "".join(stream.add([id]) for id in ids) + stream.finish()


class TestVectors:
    def test_ids_are_those_of_the_reference(self, file: Path) -> None:
        tokenizer = vocabulary(file)
        wrong = [
            (text, tokenizer.encode(text, special=False), ids)
            for text, ids in vectors(file)
            if tokenizer.encode(text, special=False) != ids
        ]
        assert len(vectors(file)) > 40
        assert not wrong

    def test_text_comes_back(self, file: Path) -> None:
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

    def test_the_time_grows_with_the_text_alone(self, file: Path) -> None:
        tokenizer = vocabulary(file)
        for text in ("a" * 200_000, " " * 100_000, "<|" * 50_000, "1" * 100_000):
            start = time.process_time()
            tokenizer.encode(text)
            assert time.process_time() - start < 5  # quadratic, it would be an hour


class TestStreaming:
    def test_half_a_character_is_held_back(self, folder: Path) -> None:
        tokenizer = load_tokenizer(folder)
        stream = tokenizer.detokenizer()
        letters = [tokenizer.id(letter) for letter in "ðŁĻĤ"]  # the four bytes of U+1F642
        assert [stream.add([id]) for id in letters] == ["", "", "", "🙂"]

    def test_what_never_becomes_a_character_is_shown(self, folder: Path) -> None:
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

    def test_wordpiece_streams_too(self, tmp_path: Path) -> None:
        tokenizer = load_tokenizer(bert_folder(tmp_path))
        ids = tokenizer.encode("Unaffable, unaffable!", special=False)
        assert pieces(tokenizer, ids) == tokenizer.decode(ids) == "unaffable, unaffable!"

    def test_the_time_per_token_does_not_grow(self, folder: Path) -> None:
        tokenizer = load_tokenizer(folder)
        ids = [tokenizer.id("ð")] * 100_000  # nothing ever completes
        stream = tokenizer.detokenizer()
        start = time.process_time()
        for id in ids:
            stream.add([id])
        assert time.process_time() - start < 5


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

    def test_the_post_processor_says_what_goes_around_a_text(self, folder: Path) -> None:
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
        backend.save(str(folder / "tokenizer.json"))
        assert load_tokenizer(folder).encode("a")[::2] == [0, 1]
        assert load_tokenizer(folder).encode("a", special=False)[::2] != [0, 1]

    def test_generation_config_names_further_ends(self, folder: Path) -> None:
        write(folder / "config.json", eos_token_id=7)
        assert load_tokenizer(folder).eos_ids == {7, 1}
        write(folder / "generation_config.json", eos_token_id=[1, 2])
        assert load_tokenizer(folder).eos_ids == {1, 2}

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

    def test_templates_are_found_wherever_they_are_kept(self, folder: Path) -> None:
        assert load_tokenizer(folder).chat_template is None
        several = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
        write(folder / "tokenizer_config.json", chat_template=several)
        assert load_tokenizer(folder).chat_template == {"default": "A", "tool_use": "B"}
        (folder / "chat_template.jinja").write_text("C")
        assert load_tokenizer(folder).chat_template == "C"

    def test_inner_text_gets_no_leading_space_where_only_the_first_has_one(self) -> None:
        backend = scored("▁a", "a").backend
        backend.normalizer = None
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer = Tokenizer(backend)
        assert tokenizer.encode("a") == [tokenizer.id("▁a")]
        assert tokenizer.encode("a", start=False) == [tokenizer.id("a")]

    def test_clip_files_without_tokenizer_json(self, tmp_path: Path) -> None:
        transformers = pytest.importorskip("transformers")
        letters = [*pre_tokenizers.ByteLevel.alphabet()]
        letters += [f"{letter}</w>" for letter in letters]
        merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o</w>"), ("'", "s</w>")]
        words = letters + [a + b for a, b in merges] + ["<|startoftext|>", "<|endoftext|>"]
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


def bert_folder(path: Path) -> Path:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able", ",", "!", "日"]
    (path / "vocab.txt").write_text("\n".join(words) + "\n")
    write(path / "tokenizer_config.json", tokenizer_class="BertTokenizer")
    return path


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

    def test_the_configs_flags_say_what_goes_around_a_text(
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
        with pytest.raises(TokenizerError, match="XLMRobertaTokenizer numbers its tokens"):
            load_tokenizer(tmp_path)


def header(**changes: Any) -> dict[str, Any]:
    """A small byte-level vocabulary as a GGUF header has it; None takes a key away."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, "ab", "Ġab", "<|im_end|>", "<user>"]
    fields: dict[str, Any] = {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": tokens,
        "token_type": [1] * (len(letters) + 2) + [3, 4],
        "merges": ["a b", "Ġ ab"],
        "eos_token_id": 0,
    }
    fields |= changes
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items() if value is not None}


def scored(*words: str) -> Tokenizer:
    """A small SentencePiece vocabulary in a GGUF header."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *words]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (1 + len(words))
    return tokenizer_from_gguf(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": [0.0] * len(tokens),
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.add_bos_token": False,
        }
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
            if find_words(pre, "").bytes:
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
            ({"model": "rwkv"}, "tokenizer.ggml.model = 'rwkv' are not supported"),
            ({"model": None}, "tokenizer.ggml.model is missing"),
            ({"model": 3}, "tokenizer.ggml.model is 3, not str"),
            ({"pre": "qwen9"}, "unknown pre-tokenizer tokenizer.ggml.pre = 'qwen9'; nearest"),
            ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
            ({"tokens": "abc"}, "tokenizer.ggml.tokens is missing or no array"),
            ({"tokens": [1, 2], "token_type": [1, 1]}, "token 1 is not text"),
            ({"tokens": ["a", "b", "a"], "token_type": [1] * 3}, "'a' has two ids, 0 and 2"),
            ({"tokens": ["a" * 5000], "token_type": [1]}, "5000 characters"),
            ({"token_type": [1]}, "260 tokens, 260 scores and 1 token types"),
            ({"merges": ["a q q"]}, "malformed gpt2 vocabulary: .*q q"),
            ({"merges": ["ab"]}, "merge 'ab' is not a pair"),
            ({"merges": None}, "tokenizer.ggml.merges is missing"),
            ({"eos_token_id": 10**6}, "id 1000000, the vocabulary 260"),
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

    def test_nothing_there(self, tmp_path: Path) -> None:
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


def test_neither_torch_nor_transformers_is_imported(folder: Path) -> None:
    code = (
        "import sys, pathlib; from ostro.core.tokenizer import load_tokenizer; "
        "import ostro.core.chat; load_tokenizer(pathlib.Path(sys.argv[1])).encode('a'); "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parents[2] / "src"
    subprocess.run(
        [sys.executable, "-c", code, str(folder)], check=True, env={"PYTHONPATH": str(root)}
    )
