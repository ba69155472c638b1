"""tekken.json and tiktoken files against the tiktoken and mistral-common packages."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny.vocabularies import TEXTS, train, write

from ostro.core.errors import TokenizerError
from ostro.core.tokenizer import Tokenizer, load_tokenizer
from ostro.pipelines import byte_alphabet
from ostro.plugins.tokenizers.pretokenizers import find_pretokenizer
from ostro.plugins.tokenizers.ranks import CONTROLS, QWEN

TEKKEN = find_pretokenizer("tekken", "").patterns[0]
SPECIAL = 30
BLOCKS = ((0x20, 0x250), (0x370, 0x600), (0x900, 0x1200), (0x3040, 0x9FFF), (0xAC00, 0xD7A3))


@pytest.fixture(scope="module")
def ranks() -> list[bytes]:
    """The tokens of a small trained BPE in the order of their ranks, all bytes first."""
    byte = byte_alphabet()
    vocabulary = json.loads(train().to_str())["model"]["vocab"]
    found = [
        bytes(byte[character] for character in text)
        for text, _ in sorted(vocabulary.items(), key=lambda item: item[1])
        if not text.startswith("<")
    ]
    single = [bytes([byte]) for byte in range(256)]
    return single + [token for token in found if len(token) > 1]


def tekken(ranks: Sequence[bytes], **changes: Any) -> dict[str, Any]:
    """The contents of a tekken.json."""
    vocabulary = [
        {"rank": rank, "token_bytes": b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(ranks)
    ]
    config = {
        "pattern": TEKKEN,
        "num_vocab_tokens": len(ranks),
        "default_vocab_size": len(ranks) + SPECIAL,
        "default_num_special_tokens": SPECIAL,
        "version": "v3",
    }
    return {"config": config | changes.pop("config", {}), "vocab": vocabulary, **changes}


def lines(ranks: Sequence[bytes]) -> str:
    """The contents of a tiktoken file."""
    return "".join(f"{b64encode(token).decode()} {rank}\n" for rank, token in enumerate(ranks))


def random_text(rng: random.Random) -> str:
    """Text of one of several kinds: ASCII, scripts, any code point, white space, repetitions."""
    count = rng.randrange(1, 60)
    kinds: list[Callable[[], str]] = [
        lambda: chr(rng.randrange(32, 127)),
        lambda: chr(rng.randrange(*rng.choice(BLOCKS))),
        lambda: chr(rng.choice([rng.randrange(1, 0xD800), rng.randrange(0xE000, 0x110000)])),
        lambda: rng.choice("  \n\t\r\u00a0aA1.'s/é"),
        lambda: rng.choice(["Hello ", "world's", "12345", "naïve", "CamelCase", "日本語", "\n\n"]),
    ]
    kind = rng.randrange(len(kinds) + 1)
    if kind == len(kinds):
        return rng.choice("abcde =-\n1é日") * count
    return "".join(kinds[kind]() for _ in range(count))


def check(tokenizer: Tokenizer, encode: Callable[[str], list[int]], count: int) -> None:
    """Compare ids and texts on `count` random texts."""
    rng = random.Random(0)
    for text in [*TEXTS, *(random_text(rng) for _ in range(count))]:
        ids = tokenizer.encode(text, special=False)
        assert ids == encode(text), repr(text)
        assert tokenizer.decode(ids) == text


@pytest.mark.slow
def test_tekken(tmp_path: Path, ranks: list[bytes]) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    write(tmp_path / "tekken.json", **tekken(ranks))
    theirs = tiktoken.Encoding(
        "t",
        pat_str=TEKKEN,
        mergeable_ranks={token: rank for rank, token in enumerate(ranks)},
        special_tokens={},
    )
    tokenizer = load_tokenizer(tmp_path)
    check(tokenizer, lambda text: [SPECIAL + id for id in theirs.encode_ordinary(text)], 10_000)
    assert tokenizer.prefix == [1] and tokenizer.suffix == [] and tokenizer.eos_ids == {2}
    assert tokenizer.vocab_size == len(ranks) + SPECIAL
    assert [tokenizer.token(id) for id in (0, 3, 21)] == ["<unk>", "[INST]", "<SPECIAL_21>"]
    ids = tokenizer.encode("[INST]a", special=False, parse_special=True)
    assert ids == [3, SPECIAL + ord("a")]
    assert 3 not in tokenizer.encode("[INST]a")
    assert load_tokenizer(tmp_path / "tekken.json").encode("abc") == tokenizer.encode("abc")


def test_tekken_that_lists_its_control_tokens(tmp_path: Path, ranks: list[bytes]) -> None:
    listed = [{"rank": i, "token_str": f"[C{i}]", "is_control": True} for i in range(5)]
    write(tmp_path / "tekken.json", **tekken(ranks, special_tokens=listed))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.id("[C4]") == 4 and tokenizer.id("<SPECIAL_5>") == 5
    assert tokenizer.id("[INST]") is None


@pytest.mark.parametrize("version", ["tekken_240718", "tekken_240911"])
def test_published_tekken_files(version: str) -> None:
    package = pytest.importorskip("mistral_common")
    tekkenizer = pytest.importorskip("mistral_common.tokens.tokenizers.tekken").Tekkenizer
    file = Path(package.__file__).parent / "data" / f"{version}.json"
    tokenizer, theirs = load_tokenizer(file), tekkenizer.from_file(file)
    assert tokenizer.vocab_size == theirs.n_words
    check(tokenizer, lambda text: theirs.encode(text, bos=False, eos=False), 10_000)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kind", "file", "rule"),
    [("QWen", "qwen.tiktoken", "qwen2"), ("TikToken", "tiktoken.model", "kimi-k2")],
)
def test_tiktoken(tmp_path: Path, ranks: list[bytes], kind: str, file: str, rule: str) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    (tmp_path / file).write_text(lines(ranks))
    end = len(ranks)
    added = {str(end + 1): {"content": "[EOS]"}, str(end + 2): {"content": "<|im_end|>"}}
    config = {"added_tokens_decoder": added} if kind == "TikToken" else {}
    write(tmp_path / "tokenizer_config.json", tokenizer_class=f"{kind}Tokenizer", **config)
    [pattern] = find_pretokenizer(rule, "").patterns
    mergeable = {token: rank for rank, token in enumerate(ranks)}
    theirs = tiktoken.Encoding(
        "t", pat_str=pattern, mergeable_ranks=mergeable, special_tokens={"<|im_end|>": end + 2}
    )
    for path in (tmp_path, tmp_path / file):
        tokenizer = load_tokenizer(path)
        check(tokenizer, theirs.encode_ordinary, 10_000 if path == tmp_path else 10)
        assert tokenizer.id("<|im_end|>") == end + 2
        assert tokenizer.encode("<|im_end|>", parse_special=True) == [end + 2]
        if kind == "QWen":
            assert tokenizer.vocab_size == end + len(QWEN) and tokenizer.eos_ids == {end}
        else:
            assert tokenizer.vocab_size == end + 256 and tokenizer.eos_ids == {end + 1}
            assert tokenizer.id(f"<|reserved_token_{end}|>") == end


def test_a_tiktoken_file_of_another_class_is_refused(tmp_path: Path, ranks: list[bytes]) -> None:
    (tmp_path / "other.tiktoken").write_text(lines(ranks))
    write(tmp_path / "tokenizer_config.json", tokenizer_class="OtherTokenizer")
    with pytest.raises(TokenizerError, match=r"other\.tiktoken: OtherTokenizer is not supported"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {"default_vocab_size": 10_000}}, "does not fit"),
        ({"config": {"default_num_special_tokens": 0}}, "does not fit"),
        ({"config": {"default_num_special_tokens": -1}}, "does not fit"),
        ({"config": {"pattern": "("}}, "malformed vocabulary"),
        ({"config": {"pattern": 5}}, "not a valid tekken file"),
        ({"vocab": [{"rank": 0}]}, "not a valid tekken file"),
        ({"vocab": [{"rank": i, "token_bytes": "YQ=="} for i in range(9999)]}, "not distinct"),
        ({"vocab": [{"rank": i * 2, "token_bytes": "YQ=="} for i in range(9999)]}, "ranks"),
        ({"vocab": [{"rank": i, "token_bytes": "!!!"} for i in range(9999)]}, "not base64"),
        ({"special_tokens": [{"rank": 1, "token_str": "<SPECIAL_2>"}]}, "one control token"),
        ({"special_tokens": [{"rank": 0, "token_str": "a"}]}, "one control token"),
    ],
)
def test_malformed_tekken_files(
    tmp_path: Path, ranks: list[bytes], changes: dict[str, Any], message: str
) -> None:
    write(tmp_path / "tekken.json", **tekken(ranks, **changes))
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(tmp_path)
    write(tmp_path / "tekken.json", **tekken(ranks))
    assert load_tokenizer(tmp_path).token(2) == CONTROLS[2]


@pytest.mark.parametrize("text", ["", "YQ== 1\n", "YQ==\n", "!! 0\n", "YQ== 0\nYQ== 1\n", "é 0"])
def test_malformed_tiktoken_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "qwen.tiktoken").write_text(text)
    write(tmp_path / "tokenizer_config.json", tokenizer_class="QWenTokenizer")
    with pytest.raises(TokenizerError, match=r"qwen\.tiktoken"):
        load_tokenizer(tmp_path)
