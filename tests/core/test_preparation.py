"""Long texts are refused at a cost that grows with the context, and prompt work is bounded."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from ostro.core.errors import ContextLengthExceeded, Overloaded
from ostro.core.preparation import PromptExecutor
from ostro.core.tokenizer import Tokenizer, limit
from ostro.core.tokenizer import tokenizer as tokenizer_module
from ostro.core.tokenizer.bound import longest_token
from ostro.core.tokenizer.limit import CUT_TOKENS, PIECE, check_length

TESTS = Path(__file__).parents[1]
SOURCE = Path(__file__).read_text()


def wordpiece() -> Tokenizer:
    vocab = {word: i for i, word in enumerate(["[UNK]", "word", "a", "##a"])}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return Tokenizer(backend)


def unigram() -> Tokenizer:
    vocab = [("<unk>", 0.0), ("\u2581", -1.0), ("a", -2.0), ("\u2581word", -3.0)]
    backend = tokenizers.Tokenizer(models.Unigram(vocab, 0, False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    return Tokenizer(backend)


def merges(split: bool) -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    if split:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = [*pre_tokenizers.ByteLevel.alphabet(), " ", "\n"]
    backend.train_from_iterator(
        [*SOURCE.splitlines(), *["-=" * 100, "a" * 100, " " * 100, "ab" * 100] * 9],
        trainers.BpeTrainer(vocab_size=800, initial_alphabet=alphabet, show_progress=False),
    )
    return Tokenizer(backend)


def fallback(normalizer: normalizers.Normalizer | None = None) -> Tokenizer:
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"\u2581": 256, "\u2581word": 257}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    backend.normalizer = normalizer or normalizers.Replace(" ", "\u2581")
    return Tokenizer(backend)


@pytest.mark.parametrize(
    ("tokenizer", "longest"),
    [(merges(split=True), 200), (fallback(), 7), (fallback(normalizers.NFC()), 21)],
    ids=["byte-level", "byte fallback", "NFC"],
)
def test_no_token_stands_for_more_text_than_the_longest(tokenizer: Tokenizer, longest: int) -> None:
    assert tokenizer.longest == longest
    for text in (SOURCE, "-=" * 999, "a" * 999, " " * 999, "\u03b9\u0308\u0301" * 99, "\0\t\n"):
        ids = tokenizer.encode(text, special=False)
        assert len(text.encode()) <= longest * len(ids)


def test_tokens_that_stand_for_any_text_have_no_limit() -> None:
    trimming = merges(split=True)
    trimming.backend.add_tokens([tokenizers.AddedToken("<x>", lstrip=True)])
    incomplete = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    incomplete.pre_tokenizer = pre_tokenizers.ByteLevel()
    dropping = fallback().backend
    dropping.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for backend in (trimming.backend, incomplete, dropping, fallback(normalizers.Strip()).backend):
        assert longest_token(backend) is None
    removes = fallback(normalizers.Replace("aa", "a")).backend
    assert longest_token(removes) is None
    assert wordpiece().longest is None and unigram().longest is None


def test_a_text_that_cannot_fit_is_not_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = merges(split=True)

    def tokenize(*_: object) -> list[int]:
        raise AssertionError("tokenized")

    monkeypatch.setattr(tokenizer_module, "_ids", tokenize)
    for encode in (tokenizer.encode, tokenizer.encode_pair):
        with pytest.raises(ContextLengthExceeded, match="at least 65 tokens; shorten"):
            encode("a" * (64 * 200 + 1), limit=64)


def test_a_long_text_is_not_tokenized_whole() -> None:
    sizes: list[int] = []

    def count(piece: str) -> int:
        sizes.append(len(piece))
        return len(piece) // 5

    with pytest.raises(ContextLengthExceeded, match="length is 4096 tokens") as caught:
        check_length("word " * (4 * PIECE), 4096, count)
    assert caught.value.param == "prompt"
    assert sum(sizes) == PIECE


def test_a_text_of_usual_length_is_counted_once() -> None:
    def count(piece: str) -> int:
        raise AssertionError("counted")

    check_length("w" * PIECE, 10, count)
    check_length("w" * 8 * PIECE, PIECE, count)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("tokenizer", "text"),
    [
        (wordpiece(), " " * 3 * PIECE + "a"),
        (wordpiece(), "a" * 3 * PIECE),
        (wordpiece(), "\u0001" * 3 * PIECE + "a"),
        (unigram(), "z" * 3 * PIECE),
    ],
    ids=["white space", "one word", "control characters", "unknown characters"],
)
def test_a_text_that_fits_in_tokens_is_never_rejected(tokenizer: Tokenizer, text: str) -> None:
    assert len(tokenizer.encode(text, limit=4)) <= 2
    assert len(tokenizer.encode_pair(text, limit=4)[0]) <= 2


@pytest.mark.parametrize(
    "tokenizer",
    [wordpiece(), unigram(), merges(split=True), merges(split=False)],
    ids=["wordpiece", "unigram", "words", "one word"],
)
def test_cuts_add_few_tokens(tokenizer: Tokenizer) -> None:
    size = 997
    for text in (SOURCE, "-=" * 9999, "a" * 9999, " " * 9999, "ab" * 9999, "é\u0301" * 9999):
        whole = len(tokenizer.encode(text, special=False))
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        parts = sum(len(tokenizer.encode(piece, special=False)) for piece in pieces)
        assert parts - whole <= CUT_TOKENS // 2 * (len(pieces) - 1)


def test_the_limit_is_exact_for_short_texts() -> None:
    tokenizer = wordpiece()
    assert len(tokenizer.encode("word " * 5, limit=5)) == 5
    assert len(tokenizer.encode_pair("word " * 3, "word " * 2, limit=5)[0]) == 5
    with pytest.raises(ContextLengthExceeded, match=r"is 5 tokens. .* in 6 tokens;"):
        tokenizer.encode("word " * 6, limit=5)
    with pytest.raises(ContextLengthExceeded, match="in 6 tokens;"):
        tokenizer.encode_pair("word " * 3, "word " * 3, limit=5)
    assert limit.too_long(5).code == "context_length_exceeded"


CHILD = """
import resource, sys, asyncio
from pathlib import Path
sys.path.append(sys.argv[1])
from echo.engine import EchoEngine
from echo.model import make_model, served_echo
from echo.thread import ThreadEngine
from ostro.core.errors import ContextLengthExceeded
from ostro.core.tokenizer import load_tokenizer
from ostro.plugins.pipelines.text.pipeline import Text
from ostro.core.messages.text_requests import ChatRequest, CompletionRequest, Message

async def main():
    tokenizer = load_tokenizer(make_model(Path(sys.argv[2])))
    engine = ThreadEngine(lambda report: EchoEngine())
    await engine.start()
    text = Text(served_echo(tokenizer, context=4096, vocab=258), engine)
    resource.setrlimit(resource.RLIMIT_AS, (1200 << 20, 1200 << 20))
    prompt = "word " * 10_000_000
    for work in (
        text.complete(CompletionRequest(prompts=[prompt])),
        text.chat(ChatRequest(messages=[Message(role="user", content=prompt[: 4 << 20])])),
    ):
        try:
            await work
        except ContextLengthExceeded as error:
            print(error.param)
    await engine.close()

asyncio.run(main())
"""


def test_fifty_megabytes_of_text_need_little_memory(tmp_path: Path) -> None:
    """A prompt of 10 million words is refused in a process of 1.2 GB."""
    command = [sys.executable, "-c", CHILD, str(TESTS), str(tmp_path / "echo")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["prompt", "messages"], done.stderr[-2000:]


def test_work_that_has_not_begun_is_dropped_with_its_caller() -> None:
    executor = PromptExecutor(threads=1)
    release, done = threading.Event(), list[int]()

    async def main() -> None:
        first = asyncio.ensure_future(executor.run(10, partial(release.wait, 30)))
        others = [asyncio.ensure_future(executor.run(5, partial(done.append, i))) for i in range(3)]
        await asyncio.sleep(0)
        assert executor.used == 25
        others[1].cancel()
        first.cancel()
        await asyncio.gather(others[1], first, return_exceptions=True)
        assert executor.used == 20  # what has begun counts until it ends
        release.set()
        await asyncio.gather(others[0], others[2])

    asyncio.run(asyncio.wait_for(main(), 30))
    assert done == [0, 2]
    assert executor.used == 0


def test_bytes_under_way_are_limited() -> None:
    executor = PromptExecutor(threads=1, max_bytes=100)
    release = threading.Event()

    async def main() -> None:
        large = asyncio.ensure_future(executor.run(500, partial(release.wait, 30)))
        await asyncio.sleep(0)
        small = asyncio.ensure_future(executor.run(49, partial(release.wait, 30)))
        await asyncio.sleep(0)
        for size in (1, 500):
            with pytest.raises(Overloaded, match="try again"):
                await executor.run(size, release.is_set)
        release.set()
        await asyncio.gather(large, small)
        assert await executor.run(100, release.is_set)
        with pytest.raises(ZeroDivisionError):
            await executor.run(60, lambda: 1 // 0)
        assert await executor.run(100, release.is_set)

    asyncio.run(asyncio.wait_for(main(), 30))
