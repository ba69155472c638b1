"""The interface between entry points and pipelines: the served model, requests and answers.

A pipeline maps the requests of one task (`core/messages`) to engine requests, and engine outputs to
answers. This module does not import torch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from ostro.core.chat import ChatTemplate
from ostro.core.errors import CheckpointError, PluginError, RequestError, Unsupported, nearest
from ostro.core.media.worker import MediaWorker
from ostro.core.messages.arrays import Array
from ostro.core.messages.commands import ModelInfo, ModelSpec
from ostro.core.messages.outputs import TokenOutput
from ostro.core.messages.prompt import Prompt
from ostro.core.messages.requests import AdapterRef, TokenRequest
from ostro.core.messages.text import Event, Usage
from ostro.core.messages.text_requests import ChatRequest, CompletionRequest, MediaPart
from ostro.core.records import Architecture, Parser
from ostro.core.settings import Settings
from ostro.core.tokenizer import Tokenizer
from ostro.core.tool_support import ToolSupport

if TYPE_CHECKING:
    from ostro.core.ipc.client import AsyncEngine


@dataclass(frozen=True)
class SamplingDefaults:
    """The default sampling parameters of a model.

    values   by the names of the fields of `Sampling`; a request replaces each of them
    sources  the origin of each value: "generation_config.json", "GGUF general.sampling", "fallback"
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def override(self, values: Mapping[str, Any], source: str) -> SamplingDefaults:
        """The defaults with these values from another source."""
        sources = {**self.sources, **dict.fromkeys(values, source)}
        return SamplingDefaults({**self.values, **values}, sources)

    def __str__(self) -> str:
        """One line, such as "temperature 0.6, top_p 0.9 (generation_config.json)".

        Limits on the candidates are left out at temperature 0, where they have no effect.
        """
        greedy = self.values.get("temperature") == 0
        hidden = ("top_k", "top_p", "min_p", "typical_p") if greedy else ()
        groups = dict[str, list[str]]()
        for name, value in self.values.items():
            if name not in hidden:
                number = f"{value:g}" if isinstance(value, float) else str(value)
                groups.setdefault(self.sources[name], []).append(f"{name} {number}")
        each = [f"{', '.join(values)} ({source})" for source, values in groups.items()]
        return "; ".join(each) or "temperature 1, all tokens"


@dataclass(frozen=True, kw_only=True)
class CheckpointSummary:
    """What the headers of a model's files state.

    format        the container: "safetensors", "gguf", ...
    nbytes        the bytes of all tensors
    quantization  that of most weights, at load or in the files: "Q4_K", "gptq", "BF16"
    parameters    their number; None if it does not follow from the shapes of packed tensors
    digest        64 hexadecimal digits, the same for the same files in the same formats; it
                  depends on the headers, sizes and modification times of files, not on all bytes
    sizes         those of the model, by the keys of GGUF files without the architecture:
                  "embedding_length", "block_count", "attention.head_count", ...
    """

    format: str
    nbytes: int
    quantization: str
    parameters: int | None
    digest: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """A model on this machine, for pipelines and entry points.

    name            the model name in requests
    raw_config      the parsed config.json; of a GGUF file, the config in its header if the
                    pipelines need it, else empty
    sampling        the values of sampling parameters that requests do not state
    checkpoint      what the headers of its files state
    parsers         the parsers of generated text, by name
    processors      the names of the logits processors
    context, vocab  in tokens; the engine determines them, so they are 0 until `ready`
    """

    settings: Settings
    path: Path
    name: str
    architecture: Architecture
    raw_config: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Tokenizer | None = None
    template: ChatTemplate | None = None
    sampling: SamplingDefaults = SamplingDefaults()
    checkpoint: CheckpointSummary | None = None
    parsers: Mapping[str, Parser] = field(default_factory=dict)
    processors: frozenset[str] = frozenset()
    context: int = 0
    vocab: int = 0

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks of the model, the default one first.

        These are --task, or all tasks of its architecture. A sentence-transformers folder supports
        embeddings but not text.
        """
        tasks = self.architecture.tasks
        if self.settings.task is not None:
            return (self.settings.task,)
        if "embed" in tasks and (self.path / "modules.json").is_file():
            return ("embed", *(task for task in tasks if task not in ("embed", "text")))
        return tasks

    @property
    def load(self) -> ModelSpec:
        """The message to the engine to load it."""
        settings = replace(self.settings, reference=str(self.path), name=self.name, revision=None)
        return ModelSpec(settings, sorted(self.tokenizer.eos_ids) if self.tokenizer else [])

    def ready(self, facts: ModelInfo) -> ServedModel:
        """The model with the values that the engine determined.

        Raises TokenizerError if the tokenizer has more tokens than the model.
        """
        if self.tokenizer is not None and facts.vocab:
            self.tokenizer.check(facts.vocab)
        return replace(self, context=facts.context, vocab=facts.vocab)

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises CheckpointError if the model's files contain none."""
        if self.tokenizer is None:
            raise CheckpointError(
                f"{self.name} has no tokenizer.json; download it from the model's repository"
            )
        return self.tokenizer

    def job_array(
        self, arrays: Mapping[str, Array], name: str, dtype: str, shape: Sequence[int | None]
    ) -> Array:
        """An array of the result of a job of the model. Raises PluginError for a wrong one.

        dtype: that of `Array`. shape: None is any size.
        """
        array = arrays.get(name)
        if array is not None and (array.dtype, len(array.shape)) == (dtype, len(shape)):
            if all(size in (None, own) for size, own in zip(shape, array.shape, strict=True)):
                return array
        found = "no array" if array is None else f"{[*array.shape]} {array.dtype}"
        sizes = ", ".join("n" if size is None else str(size) for size in shape)
        raise PluginError(
            f"architecture {self.architecture.name} ({self.architecture.model}): a job returned "
            f"{found} as {name!r}, expected [{sizes}] {dtype}; its arrays: "
            f"{', '.join(arrays) or 'none'}"
        )

    @cached_property
    def media_worker(self) -> MediaWorker | None:
        """The process that prepares media, started on first use; None without media support."""
        inputs = self.architecture.inputs
        return None if inputs is None else MediaWorker(inputs, self.raw_config, self.path)

    def close(self) -> None:
        """Stop the process that prepares media; waiting requests fail."""
        if "media_worker" in self.__dict__ and self.media_worker is not None:
            self.media_worker.close()


R = TypeVar("R", bound=msgspec.Struct)


def parse_request(
    body: Mapping[str, Any],
    kind: type[R],
    *,
    strict: bool = True,
    ignore: Callable[[str], bool] | None = None,
) -> R:
    """Convert parsed JSON to a request. A field that is null counts as absent.

    Unless `strict`, a text is accepted for a number or a boolean, as in a form. ignore: as in
    `check_fields`. Raises RequestError for an unknown or mistyped field, and Unsupported as
    `check_fields`.
    """
    given = {name: value for name, value in body.items() if value is not None}
    check_fields(given, kind, ignore)
    if ignore is not None:
        given = {name: given[name] for name in given if name in kind.__struct_encode_fields__}
    try:
        return msgspec.convert(given, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise mistyped(error) from None


def check_fields(
    names: Iterable[str],
    kind: type[msgspec.Struct],
    ignore: Callable[[str], bool] | None = None,
    path: str = "",
) -> None:
    """Raise RequestError for names of unknown fields, so that misspelled ones are not ignored.

    `kind` may have `unsupported`: a description, and a hint after "; ", by name. Raises Unsupported
    for these fields. ignore: returns whether an unknown field, by its path, is no error. path: that
    of the object in the request, "" for the request itself.
    """
    known = kind.__struct_encode_fields__
    unsupported: Mapping[str, str] = getattr(kind, "unsupported", {})
    for name in names:
        place = f"{path}.{name[:80]}".lstrip(".")
        if name in unsupported:
            what, semicolon, hint = unsupported[name].partition(";")
            message = f"{place}: {what} is not supported{semicolon}{hint}"
            raise Unsupported(message, param=place)
        if name not in known and not (ignore is not None and ignore(place)):
            near = nearest(name, known, n=1)
            raise RequestError(f"unknown field {place!r}{near}", param=place)


def mistyped(error: msgspec.ValidationError, parent: str = "") -> RequestError:
    """The error for a field that is missing, unknown or has a wrong type; it names the field.

    parent: the name of the field that was converted, if not a whole body.
    """
    what, _, where = str(error).partition(" - at `")
    field = (parent + where.removeprefix("key` in `").strip("`$")).lstrip(".")
    if missing := what.partition("missing required field `")[2]:
        field = f"{field}.{missing.strip('`')}".lstrip(".")
        return RequestError(f"the field {field} is missing", param=field)
    if unknown := what.partition("contains unknown field `")[2]:
        field = f"{field}.{unknown.strip('`')[:80]}".lstrip(".")
        return RequestError(f"unknown field {field!r}", param=field)
    return RequestError(f"{field}: {what}" if field else what, param=field or None)


class InsertMedia(Protocol):
    """Replaces the placeholders of media in the tokens of a prompt."""

    def __call__(
        self,
        tokens: Sequence[int],
        media: Sequence[MediaPart],
        check: Callable[[int], object] = ...,
    ) -> Prompt:
        """Return the prompt with its media.

        check: raises an error for a prompt of too many tokens; called before media are decoded with
        the number that the prompt has at least.
        """
        ...


class Continuation(Protocol):
    """One prompt and its choices: converts token outputs of the engine to events.

    It is synchronous and does no I/O: the caller sends `request` to an engine and passes every
    output to `add`. `done` is true once all choices have ended. The engine does not check stop
    strings: if a choice has ended and its output has no `finish`, the caller must abort it. `usage`
    counts the tokens so far.
    """

    request: TokenRequest
    usage: Usage

    @property
    def done(self) -> bool: ...

    def add(self, output: TokenOutput) -> list[Event]: ...


class Answer(Protocol):
    """An answer in progress: iterate its events once; closing it early aborts its requests.

    `choices` is the number of choices of all prompts. `generations` are the generations of the
    applied adapters; None for a request without adapters.
    """

    usage: Usage
    choices: int
    generations: list[str] | None

    def __aiter__(self) -> AsyncIterator[Event]: ...

    async def aclose(self) -> None: ...


ReadFile = Callable[[str, int], Awaitable[tuple[str, bytes]]]
"""Returns the name and the content of an uploaded file by its id; the limit is in bytes."""


class TextPipeline(Protocol):
    """The pipeline of the task "text".

    `adapters` are those of the request; `template` is the source of a chat template that replaces
    the model's own. `prepare_chat` and `prepare_completion` are synchronous: Python, whose engine
    is in the same process, calls them.
    """

    model: ServedModel
    name: str
    context: int

    def __init__(self, model: ServedModel, engine: AsyncEngine) -> None: ...

    async def chat(
        self,
        request: ChatRequest,
        *,
        adapters: Sequence[AdapterRef] = (),
        template: str | None = None,
    ) -> Answer: ...

    async def complete(
        self,
        request: CompletionRequest,
        *,
        adapters: Sequence[AdapterRef] = (),
        default_max_tokens: int | None = None,
    ) -> Answer: ...

    async def attach_files(self, request: ChatRequest, read: ReadFile) -> ChatRequest:
        """The request with the contents of its files in their places."""
        ...

    async def tokenize(
        self, request: ChatRequest, *, template: str | None = None, limit: int | None = None
    ) -> list[int]:
        """Token ids of the prompt, its media included; at most `limit`."""
        ...

    async def render(self, request: ChatRequest, *, template: str | None = None) -> str:
        """The prompt as text, with a placeholder for each medium."""
        ...

    def prepare_chat(
        self,
        request: ChatRequest,
        insert_media: InsertMedia,
        *,
        adapters: Sequence[AdapterRef] = (),
        template: str | None = None,
    ) -> Continuation:
        """The continuation of a conversation; `insert_media` places its media in the prompt."""
        ...

    def prepare_completion(
        self,
        request: CompletionRequest,
        *,
        adapters: Sequence[AdapterRef] = (),
        default_max_tokens: int | None = None,
    ) -> Sequence[Continuation]:
        """The continuations of the prompts of a request."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token in a text, the name of a control token."""
        ...

    def tool_support(self) -> ToolSupport:
        """What the model offers for tool calls; the server calls it once, in a thread."""
        ...


class PipelineClass(Protocol):
    """`Pipeline.pipeline`: a class of pipelines, one for each served model.

    The routes of the task call its methods; that of text is an `ostro.pipelines.TextPipeline`.
    """

    def __call__(self, model: ServedModel, engine: AsyncEngine, /) -> object: ...
