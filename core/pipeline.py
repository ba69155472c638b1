"""What entry points and pipelines agree on: a served model, requests, and answers as plain data.

A pipeline turns requests of one task into engine work, and engine outputs into answers. What a
request says about its model and its adapters (`ModelTarget`) is the same for all tasks; everything
else in it belongs to the pipeline. This module imports neither torch nor weights.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import msgspec

from ostro.core.chat import ChatTemplate
from ostro.core.engine.request import (
    AdapterRef,
    Finish,
    Sampling,
    TokenLogprobs,
    TokenOutput,
    TokenRequest,
)
from ostro.core.errors import CheckpointError, RequestError, Unsupported, nearest
from ostro.core.ipc.messages import ModelInfo, ModelSpec
from ostro.core.media import Prompt
from ostro.core.media.parts import Medium
from ostro.core.media.worker import MediaWorker
from ostro.core.records import Architecture, Settings
from ostro.core.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ostro.core.ipc.client import AsyncEngine


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """A model on this machine as pipelines and entry points see it.

    `name` is what requests and the engine call it, `raw_config` its parsed config.json (of a GGUF
    file, its header), `sampling` the fields of `Sampling` that its generation config suggests.
    `context` and `vocab` are in tokens; the engine determines them, so they are 0 until `ready`.
    """

    settings: Settings
    path: Path
    name: str
    architecture: Architecture
    raw_config: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Tokenizer | None = None
    template: ChatTemplate | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    context: int = 0
    vocab: int = 0

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks it serves, the default one first.

        These are --task, or all tasks of its architecture. A sentence-transformers folder embeds
        and makes no text.
        """
        tasks = self.architecture.tasks
        if self.settings.task is not None:
            return (self.settings.task,)
        if "embed" in tasks and (self.path / "modules.json").is_file():
            return ("embed", *(task for task in tasks if task not in ("embed", "text")))
        return tasks

    @property
    def load(self) -> ModelSpec:
        """The message that makes an engine load it."""
        settings = replace(self.settings, reference=str(self.path), name=self.name, revision=None)
        return ModelSpec(settings, sorted(self.tokenizer.eos_ids) if self.tokenizer else [])

    def ready(self, facts: ModelInfo) -> ServedModel:
        """The same model with what its engine determined.

        Raises TokenizerError where the tokenizer has more tokens than the model.
        """
        if self.tokenizer is not None and facts.vocab:
            self.tokenizer.check(facts.vocab)
        return replace(self, context=facts.context, vocab=facts.vocab)

    def require_tokenizer(self) -> Tokenizer:
        """Its tokenizer. Raises CheckpointError where the model's files hold none."""
        if self.tokenizer is None:
            raise CheckpointError(
                f"{self.name} has no tokenizer.json; download it from where the model came from"
            )
        return self.tokenizer

    @cached_property
    def media_worker(self) -> MediaWorker | None:
        """The process that prepares its media; it starts with the first one. None where the model
        takes no media.
        """
        inputs = self.architecture.inputs
        return None if inputs is None else MediaWorker(inputs, self.raw_config, self.path)

    def close(self) -> None:
        """Stop the process that prepares media; requests that wait for it fail."""
        if "media_worker" in self.__dict__ and self.media_worker is not None:
            self.media_worker.close()


class AdapterChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An adapter by its name or its generation, and its scale."""

    name: str | None = None
    generation: str | None = None
    scale: float | None = None


class ModelTarget(msgspec.Struct, kw_only=True):
    """The target of a request: a model, and the adapters that apply to it, each by name or in full.

    `model` may name an adapter as well, alone or after its model and a colon. Fields in `ignored`
    are accepted and change nothing; a field in `unsupported` is refused with what it asks for.
    """

    ignored: ClassVar[frozenset[str]] = frozenset(
        ("metadata", "safety_identifier", "service_tier", "store", "user")
    )
    unsupported: ClassVar[Mapping[str, str]] = {}

    model: str | None = None
    adapters: list[str | AdapterChoice] | None = None
    adapter: str | AdapterChoice | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream reports beside the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class TextRequest(ModelTarget, kw_only=True):
    """The fields of a text request that entry points read; the others belong to the pipeline."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_logprobs: int | None = None


R = TypeVar("R", bound=msgspec.Struct)


def parse(body: Mapping[str, Any], kind: type[R]) -> R:
    """Read a request from parsed JSON. A field that is null counts as absent.

    `kind` may have `ignored` and `unsupported` fields, as `ModelTarget` has.

    Raises RequestError naming an unknown or mistyped field, so that a misspelled one is not dropped
    silently, and Unsupported for a field that asks for what is not implemented.
    """
    known = kind.__struct_fields__
    ignored: frozenset[str] = getattr(kind, "ignored", frozenset())
    unsupported: Mapping[str, str] = getattr(kind, "unsupported", {})
    for name, value in body.items():
        if name in known or name in ignored or value is None:
            continue
        if name in unsupported:
            raise Unsupported(
                f"{name}: there is no support for {unsupported[name]} yet", param=name
            )
        near = nearest(name, known, n=1)
        raise RequestError(f"unknown field {name[:80]!r}{near}", param=name[:80])
    try:
        given = {name: body[name] for name in known if body.get(name) is not None}
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        field = where.strip("`").lstrip(".")
        if not field and (missing := what.partition("required field `")[2]):
            field = missing.strip("`")
        raise RequestError(f"{field}: {what}" if field else what, param=field or None) from None


class Usage(msgspec.Struct, kw_only=True):
    """Tokens that a request has taken so far; `cached` of its prompt came from the prefix cache."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0


class TextDelta(msgspec.Struct, kw_only=True):
    """The next piece of one choice of the answer.

    Where logprobs were requested, `tokens` are those whose text starts in this piece, `logprobs`
    theirs (None for a prompt's first token), and `offsets` where each starts, in characters from
    the beginning of the choice. `stopped_by` is the stop string or token id that ended the choice.
    """

    index: int = 0
    text: str = ""
    tokens: list[int] = []
    logprobs: list[TokenLogprobs | None] | None = None
    offsets: list[int] = []
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish: Finish | None = None
    stopped_by: str | int | None = None


class Continuation(Protocol):
    """One prompt and its choices: token outputs of the engine go in, text deltas come out.

    It is synchronous and does no I/O: the caller sends `request` to an engine and passes every
    output to `add`. `done` is true once all choices have ended. Only this side knows stop strings:
    where a delta has `finish` and its output has none, the caller aborts that choice.
    """

    request: TokenRequest

    @property
    def done(self) -> bool: ...

    def add(self, output: TokenOutput) -> list[TextDelta]: ...


class Answer(Protocol):
    """An answer in progress: iterate its deltas once; closing it early aborts its requests.

    `choices` counts the choices of all prompts. `generations` are those of the adapters that the
    engine applied; None where the request names no adapters.
    """

    usage: Usage
    choices: int
    generations: list[str] | None

    def __aiter__(self) -> AsyncIterator[TextDelta]: ...

    async def aclose(self) -> None: ...


class TextPipeline(Protocol):
    """The pipeline of the task "text".

    `chat_request` and `completion_request` are the types of its requests, for `parse`. `adapters`
    are what a request asks for; `template` is the source of a chat template that replaces the
    model's own. The synchronous methods are pure, and serve entry points that drive an engine
    themselves.
    """

    chat_request: ClassVar[type[TextRequest]]
    completion_request: ClassVar[type[TextRequest]]
    name: str
    context: int

    def __init__(self, model: ServedModel, engine: AsyncEngine) -> None: ...

    async def chat(
        self, request: Any, *, adapters: Sequence[AdapterRef] = (), template: str | None = None
    ) -> Answer: ...

    async def complete(self, request: Any, *, adapters: Sequence[AdapterRef] = ()) -> Answer: ...

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
    ) -> list[int]:
        """Token ids of a conversation, rendered with the chat template and its `options`."""
        ...

    def check_media(self, media: Sequence[Medium]) -> None:
        """Raise Unsupported for media that the model does not take."""
        ...

    def sampling(self, values: Mapping[str, Any]) -> Sampling:
        """Sampling from fields of `Sampling`; what the model suggests holds for the others."""
        ...

    def prepare(
        self, prompt: Prompt, sampling: Sampling, *, adapters: Sequence[AdapterRef] = ()
    ) -> Continuation:
        """The continuation of one prompt; `max_tokens` is cut to what the context has room for."""
        ...

    def token_text(self, token: int) -> str:
        """The text of one token, special tokens included."""
        ...
