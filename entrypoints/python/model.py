"""The model object of the Python API: generate, stream, embed, transcribe, draw, load adapters."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ostro.core.errors import UsageError
from ostro.core.media.inputs import Inputs
from ostro.core.messages.commands import AdapterInfo, LoadAdapter, ReadAdapter, UnloadAdapter
from ostro.core.messages.prompt import Prompt
from ostro.core.messages.requests import AdapterRef
from ostro.core.messages.text_requests import (
    ChatRequest,
    CompletionRequest,
    MediaPart,
    Message,
)
from ostro.core.pipeline import Continuation, SamplingDefaults, ServedModel, TextPipeline
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.core.settings import ProgressCallback
from ostro.core.tasks import Ranked, Sound, Transcript
from ostro.core.tokenizer import Tokenizer
from ostro.entrypoints.open import make_pipelines
from ostro.entrypoints.operations.tasks.text import CompletionChoice
from ostro.entrypoints.python.answer import LocalAnswer
from ostro.entrypoints.python.engine import LocalClient, LocalEngine
from ostro.entrypoints.python.media import make_item
from ostro.entrypoints.python.pipelines import LocalPipelines
from ostro.entrypoints.python.requests import (
    PromptLike,
    chat_request,
    make_request,
    refuse_upload,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from PIL.Image import Image
    from torch import Tensor

    from ostro.core.adapters.adapter import Mixture
    from ostro.core.adapters.registry import Registry
    from ostro.core.engine.engine import Engine
    from ostro.core.load.model import LoadedModel

T = TypeVar("T")

Adapters = Sequence[str] | Mapping[str, float]
"""Names of adapters, or their scales by name."""

REPORTED = (
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "logprobs",
    "prompt_logprobs",
    "return_token_ids",
)
"""Arguments that add calls, log probabilities or token ids to an answer."""


class LocalModel(LocalPipelines):
    """A loaded model and its engine in this process. Close it, or use it in a `with`.

    Methods by task: `generate` and `stream` text, `embed`, `rerank`, `classify`, `transcribe`,
    `speak`, `draw`. Each raises UsageError if the model does not support the task. Only one thread
    at a time may use it.
    """

    def __init__(
        self, model: ServedModel, plugins: PluginManager, progress: ProgressCallback | None = None
    ) -> None:
        """Load the weights of a model. Raises an OstroError if they cannot be loaded."""
        from ostro.core.engine.startup.start import open_engine

        report = progress or (lambda what, done, total: None)
        engine, _ = open_engine([model.load], plugins, report, warm=False)
        self.plugins, self.settings, self.name = plugins, model.settings, model.name
        self.models, self.local, self.closed = engine, LocalEngine(engine), False
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.lock, self.model = threading.Lock(), model
        try:
            self.model = model.ready(engine.first.info)
            self.pipelines = make_pipelines(self.model, LocalClient(self.local), plugins)
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> Path:
        """The path of the model's files."""
        return self.model.path

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises CheckpointError if the model's files contain none."""
        return self.model.require_tokenizer()

    @property
    def loaded(self) -> LoadedModel:
        """The model with its weights."""
        loaded = self.models.first.loaded
        assert loaded is not None, "`open_engine` sets it"
        return loaded

    @property
    def engine(self) -> Engine:
        """The engine. Raises UsageError if the model generates no tokens."""
        engine = self.models.first.tokens
        if engine is None:
            raise UsageError(f"{self.name} supports {', '.join(self.tasks)}; it has no text engine")
        return engine

    @property
    def registry(self) -> Registry:
        """The registry of this model's adapters."""
        registry = self.models.first.registry
        assert registry is not None, "`open_engine` makes one"
        return registry

    @property
    def explain(self) -> list[str]:
        """Selected plugins and kernels, and the sampling defaults of text, one line each."""
        text = "text" in self.tasks
        return [*self.loaded.explain, *([f"sampling: {self.sampling_defaults}"] if text else [])]

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """The sampling parameters of requests that state none, and the source of each.

        `str` of it is one line for people.
        """
        return self.model.sampling

    @overload
    def generate(
        self, x: PromptLike, *, adapters: Adapters = (), n: None = None, **arguments: Any
    ) -> str: ...

    @overload
    def generate(
        self, x: PromptLike, *, adapters: Adapters = (), n: int, **arguments: Any
    ) -> list[str]: ...

    def generate(
        self, x: PromptLike, *, adapters: Adapters = (), n: int | None = None, **arguments: Any
    ) -> str | list[str]:
        """Generate the answer to a prompt, or with `n` a list of n. See `stream` for arguments.

        The answer to messages is its text, without reasoning; `chat` returns both, and calls.
        Raises UsageError for arguments of `REPORTED`, and what `stream` raises.
        """
        for name in REPORTED:
            if arguments.get(name) is not None:
                raise UsageError(f"{name}: generate() returns text alone; use stream() or chat()")
        answer = self.stream(x, adapters=adapters, n=n, **arguments)
        texts = [choice.text for choice in answer.collect()]
        return texts[0] if n is None else texts

    def stream(self, x: PromptLike, *, adapters: Adapters = (), **arguments: Any) -> LocalAnswer:
        """Return the answer to a prompt, whose events can be read while it is generated.

        Messages are a chat, as over HTTP; text and token ids are continued. `arguments` are fields
        of `ostro.pipelines.ChatRequest` or `CompletionRequest`, with `tools`, `tool_choice` and
        `response_format` as in OpenAI's API; missing ones have the values of `sampling_defaults`.
        The text satisfies `schema` (a JSON schema, a pydantic model or a type), or matches `regex`,
        `choice`, or a grammar: `lark`, `gbnf`, `yacc`, `structural_tag`. `adapters` are names, or
        scales by name: {"sql": 0.5, "style": 0.7}.
        Raises UsageError, RequestError or AdapterError.
        """
        request, refs = make_request(x, arguments), adapter_refs(adapters)
        return LocalAnswer(self.local, self.prepare(request, refs))

    def chat(
        self,
        messages: str | Sequence[Mapping[str, Any] | Message],
        *,
        adapters: Adapters = (),
        **arguments: Any,
    ) -> CompletionChoice:
        """Answer a conversation. The answer has `text`, `reasoning` and `tool_calls`.

        A text is one message of the user. `arguments` are those of `stream`, without n: also
        `tools`, `tool_choice`, `parallel_tool_calls`, `thinking_budget`, `reasoning_effort`, and
        `chat_template_kwargs`, variables of the chat template such as {"enable_thinking": False}.
        A grammar enforces the choice of tools and the parameters of strict ones. Raises what
        `stream` raises.
        """
        if arguments.get("n") not in (None, 1):
            raise UsageError("n: chat() returns one answer; call it again for another")
        request, refs = chat_request(messages, arguments), adapter_refs(adapters)
        return LocalAnswer(self.local, self.prepare(request, refs)).collect()[0]

    def encode(self, x: PromptLike, *, adapters: Adapters = (), **arguments: Any) -> list[int]:
        """Return the token ids of a prompt. See `prompt` for arguments."""
        return self.prompt(x, adapters=adapters, **arguments).tokens

    def prompt(self, x: PromptLike, *, adapters: Adapters = (), **arguments: Any) -> Prompt:
        """Return the token ids of a prompt, with the media of its messages.

        Control tokens in a text become their ids, unless `parse_special` is False; those in
        messages are text. The prompt is that of `stream` with the same `arguments`, of which most
        have no effect on it. Messages are rendered with the model's chat template, or that of the
        only adapter if it has one. Raises Unsupported for media that the model does not support,
        and what `stream` raises.
        """
        request = make_request(x, arguments)
        if isinstance(request, CompletionRequest) and not request.suffix:
            [prompt] = request.prompts
            if isinstance(prompt, str):  # of any length
                special = request.parse_special is not False
                prompt = self.tokenizer.encode(prompt, parse_special=special)
            return prompt if isinstance(prompt, Prompt) else Prompt(tokens=prompt)
        made = self.prepare(request, adapter_refs(adapters)).request
        return Prompt(tokens=list(made.tokens), items=made.items, positions=made.positions)

    def prepare(
        self, request: ChatRequest | CompletionRequest, adapters: Sequence[AdapterRef]
    ) -> Continuation:
        """Return the continuation of a prompt. Raises RequestError and Unsupported."""
        text = self.text
        if isinstance(request, CompletionRequest):
            [continuation] = text.prepare_completion(request, adapters=adapters)
            return continuation
        request = self.wait(text.attach_files(request, refuse_upload))
        template = self.template_of(adapters)
        return text.prepare_chat(request, self.insert_media, adapters=adapters, template=template)

    def insert_media(
        self,
        tokens: Sequence[int],
        media: Sequence[MediaPart],
        check: Callable[[int], object] = lambda length: None,
    ) -> Prompt:
        """Return a prompt with its media. See `ostro.pipelines.InsertMedia`."""
        assert self.inputs is not None, "the pipeline refuses media of text-only models"
        check(len(tokens))  # a placeholder becomes one token at least
        items = [make_item(medium, self.inputs) for medium in media]
        return self.inputs.expand_placeholders(tokens, items)

    def logits(self, x: PromptLike, *, adapters: Adapters = ()) -> Tensor:
        """Return logits [T, vocab] float32 of every position of a prompt."""
        self.check_open()
        prompt = self.prompt(x, adapters=adapters)
        return self.engine.logits(prompt, self.mixture(adapters, prompt.tokens))

    @property
    def text(self) -> TextPipeline:
        """The text pipeline. Raises UsageError if the model is closed or generates no text."""
        return self.pipeline("text")

    @cached_property
    def inputs(self) -> Inputs | None:
        """Converts media to items of prompts; None if the model supports no media."""
        named = self.model.architecture.inputs
        return None if named is None else resolve(named)(self.model.raw_config, self.model.path)

    def embed(
        self,
        inputs: str | Sequence[str],
        *,
        prompt: str | None = None,
        dimensions: int | None = None,
        adapters: Adapters = (),
    ) -> Tensor:
        """Return one embedding per text: [n, d] float32.

        `prompt` names a prompt of the model's config to prepend to every text. `dimensions`
        truncates and re-normalises (Matryoshka). `adapters` are names, or scales by name. Raises
        UsageError, RequestError or AdapterError.
        """
        import torch

        pipeline, refs = self.pipeline("embed"), adapter_refs(adapters)
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        work = pipeline.embed(texts, prompt=prompt, dimensions=dimensions, adapters=refs)
        return torch.tensor(self.wait(work).answer)

    def rerank(
        self, query: str, documents: Sequence[str], *, adapters: Adapters = ()
    ) -> list[Ranked]:
        """Return `index` and `score` of the documents, the most relevant to the query first."""
        pipeline, refs = self.pipeline("rerank"), adapter_refs(adapters)
        return list(self.wait(pipeline.rerank(query, documents, adapters=refs)).answer)

    def classify(
        self, inputs: str | Sequence[str], *, adapters: Adapters = ()
    ) -> list[dict[str, float]]:
        """Return the probability of every label, per text."""
        pipeline, refs = self.pipeline("classify"), adapter_refs(adapters)
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        return list(self.wait(pipeline.classify(texts, adapters=refs)).answer)

    def transcribe(
        self,
        audio: str | Path | bytes | ArrayLike,
        *,
        adapters: Adapters = (),
        **options: Any,
    ) -> Transcript:
        """Transcribe a file, the bytes of one, or samples float32 [n] at 16 kHz.

        Returns a transcript with `text`, `language` and `segments`. `options` are the pipeline's.
        """
        pipeline, refs = self.pipeline("transcribe"), adapter_refs(adapters)
        return self.wait(pipeline.transcribe(audio, adapters=refs, **options))

    def speak(self, text: str, *, adapters: Adapters = (), **options: Any) -> Sound:
        """Synthesize speech: `samples` float32 [n] at `rate`, with `save(path)`."""
        pipeline, refs = self.pipeline("speak"), adapter_refs(adapters)
        return self.wait(pipeline.speak(text, adapters=refs, **options))

    def draw(
        self,
        prompt: str,
        *,
        adapters: Adapters = (),
        progress: Callable[[int, int, list[Image]], None] | None = None,
        **options: Any,
    ) -> list[Image]:
        """Generate PIL images. `progress` receives (completed steps, total steps, previews)."""
        options["adapters"] = adapter_refs(adapters)
        return self.wait(self.pipeline("draw").draw(prompt, progress=progress, **options))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a pipeline's coroutine to its end; it steps the engine while it waits."""
        with self.lock:
            return outside_loop(lambda: self.runner.run(work))

    def load_adapter(
        self, name: str, reference: str | Path, *, inplace: bool = False, pinned: bool = False
    ) -> AdapterInfo:
        """Load an adapter, check that it has an effect, and register it under a name.

        `inplace` replaces the adapter of a name in use; running requests keep the old one. Raises
        AdapterError.
        """
        self.check_open()
        command = LoadAdapter(name=name, reference=str(reference), inplace=inplace, pinned=pinned)
        self.local.adapt(command)
        return next(info for info in self.adapters if info.name == name)

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter. Running requests keep it. Raises AdapterNotFound."""
        self.check_open()
        self.local.adapt(UnloadAdapter(name=name))

    @property
    def adapters(self) -> list[AdapterInfo]:
        """All adapters, with their norms."""
        return self.registry.infos(norms=True)

    def mixture(self, adapters: Adapters, tokens: Sequence[int]) -> Mixture:
        """Return the mixture of adapters, loading them if necessary; see `Registry.mixture`."""
        refs = adapter_refs(adapters)
        for each in refs:
            self.read_adapter(each.name)
        return self.registry.mixture(refs, tokens)

    def read_adapter(self, name: str) -> None:
        """Load an adapter if it is not loaded. Raises AdapterError."""
        alias = self.registry.aliases.get(name)
        if alias is None or alias.generation not in self.registry.store.adapters:
            self.local.adapt(ReadAdapter(name=name))

    def has_template(self, adapters: Adapters = ()) -> bool:
        """Return whether a chat template formats messages: the model's, or the only adapter's.

        A model without one is a base model, which continues text.
        """
        adapted = self.template_of(adapter_refs(adapters))
        return self.model.template is not None or adapted is not None

    def template_of(self, refs: Sequence[AdapterRef]) -> str | None:
        """Return the chat template of the only adapter, None if it has none."""
        if len(refs) != 1 or not refs[0].scale:
            return None
        self.read_adapter(refs[0].name)
        generation = self.registry.find(refs[0].name).generation
        return self.registry.store.adapters[generation or ""].template

    def requantize(self, quant: str | None = None, *, topology: str | None = None) -> list[str]:
        """Reload the weights from the checkpoint in other formats. Return its lines of `explain`.

        `quant` and `topology` are as in `Settings`; without both, use the checkpoint's formats.
        Raises UsageError while a stream is open, and for unknown formats.
        """
        from ostro.core.engine.startup.start import change_formats

        self.check_open()
        if self.local.received:
            raise UsageError("a stream is open; exhaust or close it first")
        return change_formats(self.models.first, self.plugins, quant, topology, lambda *step: None)

    def close(self) -> None:
        """Stop the engine and close the files. A second call has no effect."""
        if self.closed:
            return
        self.closed = True
        self.local.close(UsageError(f"{self.name} is closed; load it again"))
        self.loaded.container.close()
        self.model.close()
        outside_loop(self.runner.close)

    def __enter__(self) -> LocalModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def outside_loop(work: Callable[[], T]) -> T:
    """Call `work`, which runs an event loop; in a new thread if this one already runs a loop.

    Notebooks run their cells inside an event loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1, "ostro") as thread:
        return thread.submit(work).result()


def adapter_refs(adapters: Adapters) -> tuple[AdapterRef, ...]:
    """Convert adapters to those of a request. Raises UsageError for malformed ones."""
    pairs = adapters.items() if isinstance(adapters, Mapping) else [(a, 1.0) for a in adapters]
    if isinstance(adapters, str):
        raise UsageError(f"adapters={adapters!r}: expected [{adapters!r}], or a scale by name")
    try:
        return tuple(AdapterRef(name=str(name), scale=float(scale)) for name, scale in pairs)
    except (TypeError, ValueError):
        message = f"adapters={adapters!r:.100}: expected names, or a scale by name"
        raise UsageError(message) from None
