"""The interfaces of the pipelines of each task, and their results.

That of text is `TextPipeline` of `ostro.core.pipeline`. `adapters` are those of a request, and
every method that has them raises AdapterError for unknown ones. A result's `generations` are those
of the adapters in use, None for a request without adapters. This module imports neither torch nor
numpy.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from ostro.core.messages.requests import AdapterRef
from ostro.core.pipeline import ServedModel, TextPipeline

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
    from PIL.Image import Image

T = TypeVar("T")

VectorTask = Literal["embed", "rerank", "classify"]
"""The tasks of a `VectorPipeline`."""


class PoolingResult(NamedTuple, Generic[T]):
    """A result, its number of input tokens, and the generations of the adapters in use, None for a
    request without adapters.
    """

    answer: T
    tokens: int
    generations: list[str] | None


@dataclass(frozen=True)
class Ranked:
    """The index of a document in the request, and its score; higher is better."""

    index: int
    score: float


class VectorPipeline(Protocol):
    """The pipeline of the tasks "embed", "rerank" and "classify".

    Its methods raise RequestError for invalid inputs, among them ContextLengthExceeded.
    """

    model: ServedModel

    async def embed(
        self,
        inputs: Sequence[str | list[int]],
        *,
        prompt: str | None = None,
        dimensions: int | None = None,
        truncate: int | None = None,
        adapters: Sequence[AdapterRef] = (),
    ) -> PoolingResult[NDArray[np.float32]]:
        """One vector per text, or per list of token ids: [n, d] float32.

        `prompt` names one of the model's prompts, which precedes every text. `dimensions` truncates
        vectors and normalises them again. `truncate` is the number of tokens to which longer inputs
        are shortened, -1 for the limit of the model, 0 to reject them.
        """
        ...

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        max_tokens: int | None = None,
        adapters: Sequence[AdapterRef] = (),
    ) -> PoolingResult[list[Ranked]]:
        """The documents in descending order of relevance to the query, as `relevance`.

        `max_tokens` truncates longer documents.
        """
        ...

    async def relevance(
        self, pairs: Sequence[tuple[str, str]], *, adapters: Sequence[AdapterRef] = ()
    ) -> PoolingResult[NDArray[np.float64]]:
        """The relevance of the second text of each pair to the first: [n] float64, within 0..1.

        Raises Unsupported for a model whose labels state no relevance.
        """
        ...

    async def similarity(
        self, pairs: Sequence[tuple[str, str]], *, adapters: Sequence[AdapterRef] = ()
    ) -> PoolingResult[NDArray[np.float64]]:
        """The cosine similarity of the vectors of each pair: [n] float64, within -1..1."""
        ...

    async def classify(
        self, inputs: Sequence[str], *, adapters: Sequence[AdapterRef] = ()
    ) -> PoolingResult[list[dict[str, float]]]:
        """The probability of every label, by text."""
        ...

    async def label_probabilities(
        self, inputs: Sequence[str], *, adapters: Sequence[AdapterRef] = ()
    ) -> PoolingResult[NDArray[np.float64]]:
        """The probabilities of the labels in their order: [n, labels] float64."""
        ...


class Word(msgspec.Struct, kw_only=True):
    """A word of a transcript, `start` and `end` in seconds."""

    word: str
    start: float
    end: float


class TokenLogprob(msgspec.Struct, kw_only=True):
    """A token of a transcript, its bytes in UTF-8 and its log probability."""

    token: str
    bytes: list[int]
    logprob: float


class Segment(msgspec.Struct, kw_only=True):
    """A stretch of speech, `start` and `end` in seconds.

    `seek` is the start of its window in hundredths of a second; `avg_logprob` (per token),
    `compression_ratio` and `no_speech_prob` are those of its window, sampled with `temperature`.
    `logprobs` are those of the tokens of the text, `words` are its words, if requested.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    logprobs: list[TokenLogprob] = []
    words: list[Word] = []


class Transcript(Protocol):
    """The transcript of audio. `words` are those of all segments, None if not requested."""

    @property
    def text(self) -> str: ...

    @property
    def language(self) -> str:
        """A code, such as "en"."""
        ...

    @property
    def duration(self) -> float:
        """That of the audio in seconds."""
        ...

    @property
    def segments(self) -> Sequence[Segment]: ...

    @property
    def words(self) -> Sequence[Word] | None: ...

    @property
    def generations(self) -> list[str] | None: ...

    def format(self, form: str) -> str:
        """The transcript as "json", "verbose_json", "text", "srt" or "vtt".

        Raises RequestError for another form.
        """
        ...


class TranscriptionState(Protocol):
    """The state of a transcription whose segments are streamed; complete after the last one."""

    @property
    def language(self) -> str:
        """A code, such as "en"; empty until it is detected."""
        ...

    @property
    def audio_tokens(self) -> int:
        """The number of rows of the encoded audio, known once its first segment is there."""
        ...

    @property
    def prompt(self) -> Sequence[int]:
        """The token ids of the keywords and the prompt."""
        ...

    @property
    def generations(self) -> list[str] | None: ...


class TranscriptionPipeline(Protocol):
    """The pipeline of the task "transcribe".

    `audio` is a path, the bytes of a file, or samples float32 [n] at 16 kHz. `options` belong to
    the pipeline. Its methods raise RequestError for invalid audio and options, UsageError for a
    path that cannot be read, and Unsupported for options that the model does not support.
    """

    async def transcribe(
        self,
        audio: str | Path | bytes | ArrayLike,
        *,
        adapters: Sequence[AdapterRef] = (),
        **options: Any,
    ) -> Transcript: ...

    def new_task(
        self, options: Mapping[str, Any], adapters: Sequence[AdapterRef] = ()
    ) -> TranscriptionState:
        """The state of a new transcription, for `stream`."""
        ...

    def stream(
        self, audio: str | Path | bytes | ArrayLike, task: TranscriptionState
    ) -> AsyncGenerator[Segment, None]:
        """The segments of audio, as soon as each window is transcribed.

        `task` is a new one of `new_task`, which the stream updates.
        """
        ...


class Sound(Protocol):
    """Generated audio, one channel."""

    @property
    def samples(self) -> NDArray[np.float32]:
        """float32 [n] within -1..1."""
        ...

    @property
    def rate(self) -> int:
        """Samples per second."""
        ...

    @property
    def seconds(self) -> float: ...

    @property
    def generations(self) -> list[str] | None: ...

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens of the text."""
        ...

    @property
    def tokens(self) -> int:
        """The number of tokens that the model generated."""
        ...

    def encode(self, format: str) -> bytes:
        """Encode as a file: "wav", "flac", "mp3", "opus", or "pcm" without a header.

        Raises RequestError for another format, Unsupported for one that cannot be written here.
        """
        ...

    def save(self, path: str | Path) -> None:
        """Write a file in the format of its suffix. Raises UsageError for an unknown suffix."""
        ...


class SpeechPipeline(Protocol):
    """The pipeline of the task "speak"."""

    @property
    def voices(self) -> list[str]:
        """The names of the model's voices."""
        ...

    def check_format(self, format: str) -> None:
        """Raise RequestError or Unsupported for an audio format that cannot be written."""
        ...

    async def speak(
        self,
        text: str,
        *,
        voice: str | None = None,
        seed: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        guidance: float | None = None,
        max_seconds: float | None = None,
        adapters: Sequence[AdapterRef] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> Sound:
        """Generate the speech of a text.

        None selects the model's default; the same seed gives the same speech. `progress` is called
        with (slices done, all slices). Raises RequestError for invalid text and options.
        """
        ...


@dataclass(frozen=True)
class ImageUsage:
    """Token counts of a request: of its prompt, of its initial image, and of each result."""

    text: int = 0
    image: int = 0
    output: int = 0


@dataclass(frozen=True)
class ImageProgress:
    """The progress of a request for images: `done` of `total` slices.

    `images` are previews, or at the end the results. `generations` are those of the adapters in
    use at the end, None before it and for a request without adapters.
    """

    done: int
    total: int
    images: list[Image] = field(default_factory=list)
    final: bool = False
    generations: list[str] | None = None
    usage: ImageUsage = ImageUsage()


class ImagePipeline(Protocol):
    """The pipeline of the task "draw".

    `image` is a PIL image to start from, or the bytes of a file. `options` belong to the pipeline.
    Its methods raise RequestError for invalid prompts, images and options.
    """

    async def draw(
        self,
        prompt: str,
        *,
        image: Image | bytes | None = None,
        adapters: Sequence[AdapterRef] = (),
        progress: Callable[[int, int, list[Image]], None] | None = None,
        **options: Any,
    ) -> list[Image]:
        """Generate images. `progress` is called with (slices done, all slices, previews)."""
        ...

    def stream(
        self,
        prompt: str,
        *,
        image: Image | bytes | None = None,
        adapters: Sequence[AdapterRef] = (),
        **options: Any,
    ) -> AsyncGenerator[ImageProgress, None]:
        """The progress of a request, the last one `final`; closing the generator stops it."""
        ...


TaskPipeline = (
    TextPipeline | VectorPipeline | TranscriptionPipeline | SpeechPipeline | ImagePipeline
)
"""A pipeline of one of the tasks that entry points have operations for."""
