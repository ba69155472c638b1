"""Times of words: token times and words against transformers' own, and what is refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny.trained import train
from tiny.whisper import IDS, make_tokenizer, make_whisper, sound
from tokenizers import Tokenizer
from transformers.models.whisper.generation_whisper import _dynamic_time_warping
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

import ostro
from ostro.architectures.whisper import model as whisper
from ostro.core.errors import AdapterNotFound, ConfigError, Unsupported
from ostro.entrypoints.python.model import LocalModel
from ostro.plugins.pipelines.transcription import task
from ostro.plugins.pipelines.transcription.alignment import first_rows
from ostro.plugins.pipelines.transcription.languages import name_of
from ostro.plugins.pipelines.transcription.words import AFTER, BEFORE, group_words

WINDOW = 50
"""The encoder rows of a window."""
HEADS = [[0, 1], [1, 0], [1, 3]]
PLAIN: dict[str, Any] = {
    "temperatures": (0.0,),
    "repetitive": None,
    "improbable": None,
    "silent": None,
}
Times = list[tuple[list[int], list[float]]]
"""The tokens and their starts in seconds, by segment."""


def open_tiny(folder: Path, **options: Any) -> LocalModel:
    model = ostro.load(folder, dtype="float32", threads=1, **options)
    assert isinstance(model, LocalModel)
    return model


class Pair:
    """A model of ours, with the adapter "accent", and transformers' of the same weights."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.theirs = make_whisper(folder / "model", seed, alignment_heads=HEADS)
        self.accented = train(
            self.theirs, folder / "accent", r=4, target_modules=["q_proj", "v_proj", "fc1"]
        )
        self.accented.generation_config = self.theirs.generation_config
        self.ours = open_tiny(folder / "model", adapters=(f"accent={folder / 'accent'}",))

    @torch.inference_mode()
    def expected(self, samples: Any, model: Any = None, **how: Any) -> Times:
        """The times of transformers; the attention mask gives it the length of the audio."""
        spectrum = self.ours.pipeline("transcribe").compute_spectrum(samples)
        features = torch.from_numpy(spectrum)[None]
        found = (model or self.theirs).generate(
            features,
            attention_mask=torch.ones(1, features.shape[-1], dtype=torch.long),
            return_timestamps=True,
            return_segments=True,
            return_token_timestamps=True,
            temperature=0.0,
            **how,
        )
        return [
            (each["tokens"].tolist(), each["token_timestamps"].double().round(decimals=3).tolist())
            for each in found["segments"][0]
        ]

    def found(self, samples: Any, **options: Any) -> Times:
        """Our times: `TranscriptionTask.words` gets those of all tokens of a segment."""
        seen: Times = []
        words = task.TranscriptionTask.words

        def record(self: Any, tokens: Any, times: Any, offset: float) -> Any:
            seen.append((list(tokens), [round(offset + start, 3) for start, _ in times]))
            assert all(0 <= a <= b for a, b in times)
            return words(self, tokens, times, offset)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(task.TranscriptionTask, "words", record)
            self.ours.transcribe(samples, words=True, **{**PLAIN, **options})
        return seen


@pytest.fixture(scope="module", params=[0, 1])
def pair(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Pair]:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    made = Pair(tmp_path_factory.mktemp("whisper"), request.param)
    yield made
    made.ours.close()


@pytest.mark.sample(1)
@pytest.mark.parametrize(("seconds", "seed"), [(4.3, 0), (0.6, 4), (2.51, 1)])
def test_token_times_are_those_of_the_reference(pair: Pair, seconds: float, seed: int) -> None:
    samples = sound(seconds, seed)
    found = pair.found(samples, language="en")
    assert found == pair.expected(samples, task="transcribe", language="en")
    assert seconds < 1 or len({time for _, times in found for time in times}) > 3


@pytest.mark.sample(1)
def test_the_context_of_a_window_is_not_aligned(pair: Pair) -> None:
    words = pair.ours.pipeline("transcribe").model.tokenizer.encode(" Ada", special=False)
    prompt = torch.tensor([IDS["startofprev"], *words])
    how = {"task": "transcribe", "language": "en", "prompt_ids": prompt}
    samples = sound(3, 2)
    expected = pair.expected(samples, **how, condition_on_prev_tokens=True)
    assert pair.found(samples, language="en", prompt="Ada", follow=True) == expected


@pytest.mark.slow
def test_adapters_change_the_alignment(pair: Pair) -> None:
    samples, how = sound(2.2, 3), {"task": "transcribe", "language": "en"}
    found = pair.found(samples, language="en", adapters=["accent"])
    assert found == pair.expected(samples, pair.accented, **how)
    assert found != pair.found(samples, language="en")


def change(name: str, mutate: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(whisper, name, mutate)


def other_heads(decoder: Any, tokens: Any, states: Any, heads: Any, step: Any) -> Any:
    return align(decoder, tokens, states, [(layer, 3 - head) for layer, head in heads], step)


align, transcript_of = whisper.Decoder.align, whisper.Transcript
combine, attend = whisper.combine, whisper.attend
MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "no median": change("combine", lambda weights, width: combine(weights, 1)),
    "a wider median": change("combine", lambda weights, width: combine(weights, width + 2)),
    "not standardized": change("combine", lambda weights, width: weights.mean(0)),
    "one head": change("combine", lambda weights, width: combine(weights[:1], width)),
    "other heads": lambda patch: patch.setattr(whisper.Decoder, "align", other_heads),
    "silence aligned": change(
        "Transcript", lambda **values: transcript_of(**{**values, "rows": WINDOW})
    ),
    "no causal mask": change(
        "attend", lambda attention, x, step: attend(attention, x.flip(0), step).flip(0)
    ),
}


@pytest.fixture(scope="module")
def right(pair: Pair) -> Times:
    return pair.found(sound(2.51, 1))


@pytest.mark.slow
@pytest.mark.parametrize("pair", [1], indirect=True)
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_have_other_times(
    pair: Pair, right: Times, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[name](monkeypatch)
    assert pair.found(sound(2.51, 1)) != right


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (3, 40), (40, 3), (25, 60)], ids=str)
def test_paths_are_those_of_the_reference(shape: tuple[int, int]) -> None:
    random = np.random.default_rng(sum(shape))
    for whole in (False, True):  # whole numbers: many paths are equally cheap
        matrix = random.integers(0, 3, shape) if whole else random.standard_normal(shape)
        matrix = matrix.astype(np.float32)
        tokens, rows = _dynamic_time_warping(-matrix.astype(np.float64))
        expected = [int(rows[tokens == token].min()) for token in range(shape[0])]
        assert first_rows(matrix) == expected


class ReferenceTokenizer:
    """The methods that `_combine_tokens_into_words` calls."""

    def __init__(self, tokenizer: Tokenizer, language: str) -> None:
        self.tokenizer, self.language = tokenizer, name_of(language)
        self.eos_token_id = IDS["endoftext"]

    def decode(self, ids: Sequence[int], decode_with_timestamps: bool = False) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))


TEXTS = [
    ("en", " The sand-castles, people's (old) \"towers\": it's 5.5% - don't!? \u201cYes\u201d."),
    ("en", "No space; two  spaces ( ( nested ) ) end-"),
    ("fr", " \u00c7a co\u00fbte 3 \u20ac\u2026 na\u00efve \u00e9t\u00e9, \u00bfno? \U0001f600 ok"),
    ("zh", "\u4eca\u5929\u5929\u6c14\u3002\u5f88\u597d\uff0c\u662f\u5417\uff1f OK"),
    ("ja", "\u300c\u30cd\u30b3\u300d\u3001\u3067\u3059"),
    ("de", ""),
    ("de", " ..."),
]


@pytest.mark.parametrize(("language", "text"), TEXTS)
def test_tokens_are_grouped_as_by_the_reference(language: str, text: str) -> None:
    tokenizer = make_tokenizer()
    ids = tokenizer.encode(text).ids
    words, _, indices = _combine_tokens_into_words(ReferenceTokenizer(tokenizer, language), ids)
    expected = [
        (word.strip().strip(BEFORE + AFTER).strip(), span[0], span[-1] + 1.0)
        for word, span in zip(words, indices, strict=True)
    ]
    data = list(text.encode())
    assert len(data) == len(ids)
    found = group_words([(bytes([byte]), i, i + 1.0) for i, byte in enumerate(data)], language)
    assert [(each.word, each.start, each.end) for each in found] == [e for e in expected if e[0]]


def test_words_have_no_punctuation_around_them() -> None:
    pieces = [b" The", b" beach", b",", b" isn", b"'t", b" (", b"far", b")", b".", b" -", b" \xff"]
    found = group_words([(piece, i, i + 0.5) for i, piece in enumerate(pieces)], "en")
    assert [(each.word, each.start, each.end) for each in found] == [
        ("The", 0, 0.5),
        ("beach", 1, 2.5),
        ("isn't", 3, 4.5),
        ("far", 5, 8.5),
        ("\ufffd", 9, 10.5),
    ]
    assert group_words([(b" a", 0, 1), (b"\xe4", 1, 2)], "en")[-1].word == "a"


@pytest.mark.slow
def test_other_formats_and_logprobs_do_not_change(pair: Pair) -> None:
    samples = sound(4.3)
    plain = pair.ours.transcribe(samples, logprobs=True, **PLAIN)
    timed = pair.ours.transcribe(samples, logprobs=True, words=True, **PLAIN)
    for form in ("text", "json", "srt", "vtt"):
        assert timed.format(form) == plain.format(form)
    assert [s.logprobs for s in timed.segments] == [s.logprobs for s in plain.segments]
    assert plain.words is None and timed.words
    verbose = json.loads(timed.format("verbose_json"))
    assert verbose.pop("words") == [
        {"word": each.word, "start": each.start, "end": each.end} for each in timed.words
    ]
    assert verbose == json.loads(plain.format("verbose_json"))


def test_words_without_timestamp_tokens(pair: Pair) -> None:
    found = pair.ours.transcribe(sound(0.9, 6), times=False, words=True, language="en", **PLAIN)
    assert found.words and found.words[-1].end <= 0.9


def test_models_without_alignment_heads_are_refused(tmp_path: Path) -> None:
    make_whisper(tmp_path)
    with open_tiny(tmp_path) as model:
        with pytest.raises(Unsupported, match="no alignment_heads; use segment") as caught:
            model.transcribe(sound(1), words=True)
        assert caught.value.param == "timestamp_granularities"
        assert model.transcribe(sound(1), **PLAIN).words is None


def test_heads_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    make_whisper(tmp_path, alignment_heads=[[0, 1], [2, 0]])
    with open_tiny(tmp_path) as model:
        with pytest.raises(Unsupported, match=r"\[2, 0\], but the decoder has 2 layers of 4 heads"):
            model.transcribe(sound(1), words=True, **PLAIN)
        assert model.transcribe(sound(1), **PLAIN).segments


def test_malformed_heads_are_refused(tmp_path: Path) -> None:
    make_whisper(tmp_path)
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "alignment_heads": [[1], 2]}))
    with pytest.raises(ConfigError, match=r"generation_config\.json: alignment_heads"):
        open_tiny(tmp_path)


def test_unknown_adapters_are_refused(pair: Pair) -> None:
    with pytest.raises(AdapterNotFound):
        pair.ours.transcribe(sound(1), words=True, adapters=["missing"], **PLAIN)
