"""What `import ostro` offers: load a model, then generate, stream, embed, look at its logits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, fields
from functools import cached_property
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec
from msgspec.structs import replace

from ostro.core.engine.request import AdapterRef, TokenLogprobs, TokenOutput
from ostro.core.errors import UsageError
from ostro.core.ipc.local import LocalClient, LocalEngine
from ostro.core.ipc.messages import AdapterInfo, Requantize
from ostro.core.media import Inputs, Prompt
from ostro.core.media.parts import split_media
from ostro.core.pipeline import Continuation, ServedModel, TextPipeline
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import STARTER, Settings, resolve
from ostro.core.tokenizer import Tokenizer
from ostro.entrypoints.media import make_item
from ostro.entrypoints.open import find_model, make_pipelines, open_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from ostro.core.adapters.adapter import Mixture
    from ostro.core.adapters.registry import Registry
    from ostro.core.engine.engine import Engine
    from ostro.core.load.model import LoadedModel

T = TypeVar("T")

Adapters = Sequence[str] | Mapping[str, float]
"""Names of adapters, or their scales by name."""

PromptLike = str | Sequence[int] | Sequence[Mapping[str, Any]] | Prompt
"""Text, messages ({"role": ..., "content": ...}) with media among their parts, or token ids."""

Progress = Callable[[int, int], None]
"""Receives the bytes of weights read so far, and in all."""


@dataclass(frozen=True)
class Piece:
    """One item of a stream: its new text (it may be empty), its token, and how the choice ended.

    Text that may begin a stop string comes later than its tokens. The last item of choice `index`
    has `finish` and no token; `logprobs` are those of the token, if requested.
    """

    text: str
    token: int | None = None
    finish: str | None = None
    logprobs: TokenLogprobs | None = None
    index: int = 0


class LocalModel:
    """A loaded model and its engine, in this process. Close it, or use it in a `with`.

    What it does depends on the model: `generate` and `stream` text, or `embed`, `rerank`,
    `classify`, `transcribe`, `speak`, `draw`. Each raises UsageError where the model does something
    else. One thread at a time may use it.
    """

    def __init__(
        self, model: ServedModel, plugins: PluginManager, progress: Progress | None = None
    ) -> None:
        """Load the weights of a model that was found. Raises an OstroError that says what fails."""
        from ostro.core.engine.start import open_engine

        def report(what: str, done: int, total: int) -> None:
            if progress is not None and what == "reading weights":
                progress(done, total)

        engine, _ = open_engine([model.load], plugins, report, warm=False)
        self.plugins, self.settings, self.name = plugins, model.settings, model.name
        self.models, self.local, self.closed = engine, LocalEngine(engine), False
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.lock, self.model = threading.Lock(), model
        try:
            self.model = model.ready(engine.first.facts)
            self.pipelines = make_pipelines(self.model, LocalClient(self.local), plugins)
        except BaseException:
            self.close()
            raise

    @property
    def tasks(self) -> tuple[str, ...]:
        """What it does, the default first."""
        return tuple(self.pipelines)

    @property
    def path(self) -> Path:
        """Where its files are."""
        return self.model.path

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer. Raises CheckpointError where the model's files hold none."""
        return self.model.require_tokenizer()

    @property
    def loaded(self) -> LoadedModel:
        """The model with its weights."""
        loaded = self.models.first.loaded
        assert loaded is not None, "`open_engine` sets it"
        return loaded

    @property
    def engine(self) -> Engine:
        """The engine that generates tokens. Raises UsageError where the model generates none."""
        engine = self.models.first.tokens
        if engine is None:
            raise UsageError(f"{self.name} does {', '.join(self.tasks)}; it generates no tokens")
        return engine

    @property
    def registry(self) -> Registry:
        """The adapters of this model."""
        registry = self.models.first.registry
        assert registry is not None, "`open_engine` makes one"
        return registry

    @property
    def explain(self) -> list[str]:
        """Selected plugins and kernels, one line each."""
        return self.loaded.explain

    @property
    def suggested(self) -> dict[str, Any]:
        """The sampling that the model's generation config suggests, which holds by default."""
        return dict(self.model.sampling)

    @overload
    def generate(
        self, x: PromptLike, *, adapters: Adapters = (), n: None = None, **sampling: Any
    ) -> str: ...

    @overload
    def generate(
        self, x: PromptLike, *, adapters: Adapters = (), n: int, **sampling: Any
    ) -> list[str]: ...

    def generate(
        self, x: PromptLike, *, adapters: Adapters = (), n: int | None = None, **sampling: Any
    ) -> str | list[str]:
        """The answer to a prompt; with `n`, that many answers. See `stream` for the arguments."""
        given = sampling if n is None else {**sampling, "n": n}
        texts: dict[int, list[str]] = {}
        for piece in self.stream(x, adapters=adapters, **given):
            texts.setdefault(piece.index, []).append(piece.text)
        answers = ["".join(texts[index]) for index in sorted(texts)]
        return answers[0] if n is None else answers

    def stream(
        self, x: PromptLike, *, adapters: Adapters = (), **sampling: Any
    ) -> Generator[Piece]:
        """The answer to a prompt as it is generated, one item per token.

        `sampling` are fields of `Sampling`; for the others the model's suggestion holds
        (`suggested`), then neutral defaults, as over HTTP. `adapters` are names, or scales by name:
        {"sql": 0.5, "style": 0.7}. Leaving the loop early aborts the request. Several streams may
        be open at once. Raises UsageError, RequestError or AdapterError.
        """
        text = self.text
        rules = text.sampling(sampling)
        if rules.prompt_logprobs is not None:
            raise UsageError("prompt_logprobs: use logits(), which covers every position")
        prompt = self.prompt(x, adapters=adapters)
        continued = text.prepare(prompt, rules, adapters=wanted_of(adapters))
        ended: set[int] = set()
        with closing(self.local.generate(continued.request)) as outputs:
            for output in outputs:
                if output.index in ended:
                    continue
                for piece in pieces_of(continued, output):
                    if piece.finish is not None:
                        ended.add(piece.index)
                        if output.finish is None:  # a stop string, which the engine does not know
                            self.engine.abort(output.id, output.index)
                    yield piece
                if continued.done:
                    return

    def encode(
        self, x: PromptLike, *, tools: Sequence[Any] | None = None, **options: Any
    ) -> list[int]:
        """Token ids of a prompt; messages go through the model's chat template."""
        return self.prompt(x, tools=tools, **options).tokens

    def prompt(
        self,
        x: PromptLike,
        *,
        tools: Sequence[Any] | None = None,
        adapters: Adapters = (),
        **options: Any,
    ) -> Prompt:
        """Token ids of a prompt, with the media of its messages. `options` are those of the chat
        template: the model's, or that of the only adapter if it has one.

        Raises Unsupported for media that the model does not take.
        """
        if isinstance(x, Prompt):
            return x
        if isinstance(x, str):
            return Prompt(tokens=self.tokenizer.encode(x))
        try:
            items: list[Any] = list(x)
            if not items or not isinstance(items[0], Mapping):
                return Prompt(tokens=[index(token) for token in items])
        except TypeError as error:
            raise UsageError(f"a prompt is text, messages or token ids: {error}") from None
        messages, media = split_media(items)
        self.text.check_media(media)
        template = self.template_of(wanted_of(adapters))
        tokens = self.text.encode_chat(messages, tools=tools, options=options, template=template)
        if not media:
            return Prompt(tokens=tokens)
        assert self.inputs is not None, "`check_media` refuses media where a model takes none"
        return self.inputs.place(tokens, [make_item(medium, self.inputs) for medium in media])

    def logits(self, x: PromptLike, *, adapters: Adapters = ()) -> Tensor:
        """Logits [T, vocab] float32 of every position of a prompt, under `adapters`."""
        self.check_open()
        prompt = self.prompt(x, adapters=adapters)
        return self.engine.logits(prompt, self.mixture(adapters, prompt.tokens))

    @property
    def text(self) -> TextPipeline:
        """The text pipeline. Raises UsageError where the model is closed or makes no text."""
        pipeline: TextPipeline = self.pipeline("text")
        return pipeline

    @cached_property
    def inputs(self) -> Inputs | None:
        """Turns media into items of prompts; None where the model takes none."""
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
        """One vector per text: [n, d] float32.

        `prompt` names one of the model's prompts, which is put before every text; `dimensions`
        keeps the first ones and normalises again (Matryoshka); `adapters` are names, or scales by
        name. Raises UsageError, RequestError or AdapterError.
        """
        import torch

        pipeline, wanted = self.pipeline("embed"), wanted_of(adapters)
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        work = pipeline.embed(texts, prompt=prompt, dimensions=dimensions, adapters=wanted)
        return torch.tensor(self.wait(work)[0])

    def rerank(self, query: str, documents: Sequence[str], *, adapters: Adapters = ()) -> list[Any]:
        """The documents by how well they answer the query, the best first: `index` and `score`."""
        pipeline, wanted = self.pipeline("rerank"), wanted_of(adapters)
        return list(self.wait(pipeline.rerank(query, documents, adapters=wanted))[0])

    def classify(
        self, inputs: str | Sequence[str], *, adapters: Adapters = ()
    ) -> list[dict[str, float]]:
        """The probability of every label, per text."""
        pipeline, wanted = self.pipeline("classify"), wanted_of(adapters)
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        return list(self.wait(pipeline.classify(texts, adapters=wanted))[0])

    def transcribe(self, audio: Any, *, adapters: Adapters = (), **options: Any) -> Any:
        """A transcript with `text`, `language` and `segments` of a file, the bytes of one, or
        samples float32 [n] at 16 kHz. `options` are the pipeline's.
        """
        pipeline, wanted = self.pipeline("transcribe"), wanted_of(adapters)
        return self.wait(pipeline.transcribe(audio, adapters=wanted, **options))

    def speak(self, text: str, *, adapters: Adapters = (), **options: Any) -> Any:
        """Speech of a text: `samples` float32 [n] at `rate`, with `save(path)`."""
        pipeline, wanted = self.pipeline("speak"), wanted_of(adapters)
        return self.wait(pipeline.speak(text, adapters=wanted, **options))

    def draw(
        self,
        prompt: str,
        *,
        adapters: Adapters = (),
        progress: Callable[[int, int, list[Any]], None] | None = None,
        **options: Any,
    ) -> Any:
        """PIL images of a prompt. `progress` receives (steps done, in all, previews)."""
        options["adapters"] = wanted_of(adapters)
        return self.wait(self.pipeline("draw").draw(prompt, progress=progress, **options))

    def pipeline(self, task: str) -> Any:
        """The pipeline of a task. Raises UsageError where the model is closed or has none."""
        self.check_open()
        if task not in self.pipelines:
            raise UsageError(f"{self.name} does {', '.join(self.tasks)}, not {task}")
        return self.pipelines[task]

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run what a pipeline does; the engine is stepped meanwhile."""
        with self.lock:
            return outside_loop(lambda: self.runner.run(work))

    def load_adapter(
        self, name: str, reference: str | Path, *, inplace: bool = False, pinned: bool = False
    ) -> AdapterInfo:
        """Read an adapter, check that it has an effect, and give it a name.

        `inplace` lets a name in use refer to another adapter; running requests keep theirs. Raises
        AdapterError.
        """
        self.check_open()
        fields = {"name": name, "reference": str(reference), "inplace": inplace, "pinned": pinned}
        self.local.adapt("load", **fields)
        return next(facts for facts in self.adapters if facts.name == name)

    def unload_adapter(self, name: str) -> None:
        """Remove an adapter; running requests keep it. Raises AdapterNotFound."""
        self.check_open()
        self.local.adapt("unload", name=name)

    @property
    def adapters(self) -> list[AdapterInfo]:
        """All adapters with their norms."""
        return self.registry.facts(norms=True)

    def mixture(self, adapters: Adapters, tokens: Sequence[int]) -> Mixture:
        """The mixture of some adapters, which are read if necessary; see `Registry.mixture`."""
        wanted = wanted_of(adapters)
        for each in wanted:
            self.read_adapter(each.name)
        return self.registry.mixture(wanted, tokens)

    def read_adapter(self, name: str) -> None:
        """Read an adapter if it has not been read. Raises AdapterError."""
        alias = self.registry.aliases.get(name)
        if alias is None or alias.generation not in self.registry.store:
            self.local.adapt("read", name=name)

    def template_of(self, wanted: Sequence[AdapterRef]) -> str | None:
        """The source of the chat template of the only adapter, if it has one."""
        if len(wanted) != 1 or not wanted[0].scale:
            return None
        self.read_adapter(wanted[0].name)
        generation = self.registry.find(wanted[0].name).generation
        return self.registry.store[generation or ""].template

    def requantize(self, quant: str | None = None, *, topology: str | None = None) -> list[str]:
        """Read the weights again from the checkpoint in other formats; gives `explain`.

        `quant` and `topology` as in `Settings`; without both, the checkpoint's own formats. Raises
        UsageError while a stream is open, and for unknown formats.
        """
        self.check_open()
        if self.local.received:
            raise UsageError("a stream is open; read it to its end, or close it, first")
        asked = Requantize(id="", model=self.name, quant=quant, topology=topology)
        return self.models.requantize(asked, lambda *news: None)

    def close(self) -> None:
        """Stop the engine and close the files. Closing again does nothing."""
        if self.closed:
            return
        self.closed = True
        self.local.close(UsageError(f"{self.name} is closed; load it again"))
        self.loaded.container.close()
        self.model.close()
        outside_loop(self.runner.close)

    def check_open(self) -> None:
        """Raise UsageError after `close`."""
        if self.closed:
            raise UsageError(f"{self.name} is closed; load it again")

    def __enter__(self) -> LocalModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def pieces_of(continued: Continuation, output: TokenOutput) -> list[Piece]:
    """The items of a stream for an output: one per token, and one where its choice ends."""
    pieces, index = list[Piece](), output.index
    for i, token in enumerate(output.tokens):
        logprobs = None if output.logprobs is None else output.logprobs[i : i + 1]
        deltas = continued.add(replace(output, tokens=[token], logprobs=logprobs, finish=None))
        text = "".join(delta.text for delta in deltas)
        pieces.append(Piece(text, token, logprobs=logprobs[0] if logprobs else None, index=index))
        if deltas and deltas[-1].finish is not None:
            return [*pieces, Piece("", finish=deltas[-1].finish, index=index)]
    if output.finish is not None:
        deltas = continued.add(replace(output, tokens=[], logprobs=None))
        text = "".join(delta.text for delta in deltas)
        finish = deltas[-1].finish if deltas else output.finish
        pieces.append(Piece(text, finish=finish, index=index))
    return pieces


def outside_loop(work: Callable[[], T]) -> T:
    """Run what runs an event loop: in a thread where this one runs a loop, as notebooks do."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1, "ostro") as thread:
        return thread.submit(work).result()


def wanted_of(adapters: Adapters) -> tuple[AdapterRef, ...]:
    """Adapters as a request names them. Raises UsageError for what is neither name nor scale."""
    pairs = adapters.items() if isinstance(adapters, Mapping) else [(a, 1.0) for a in adapters]
    if isinstance(adapters, str):
        raise UsageError(f"adapters={adapters!r}: write [{adapters!r}], or a scale for each name")
    try:
        return tuple(AdapterRef(name=str(name), scale=float(scale)) for name, scale in pairs)
    except (TypeError, ValueError):
        raise UsageError(f"adapters={adapters!r:.100}: write names, or a scale by name") from None


def load(
    reference: str | Path | None = None,
    *,
    dtype: Any = "auto",
    device: str = "auto",
    quant: str | None = None,
    plugins: Sequence[str | Path] = (),
    **settings: Any,
) -> LocalModel:
    """Load a model: a folder, a .gguf file, "org/name[@revision][:selector]", or the starter.

    `settings` are further fields of `Settings` (task, context, max_seqs, memory, kv_dtype,
    offline...). Raises an OstroError that says what is wrong and what to do.
    """
    asked = settings_of(
        {
            "reference": STARTER if reference is None else str(reference),
            "dtype": str(dtype).removeprefix("torch."),
            "device": str(device),
            "quant": quant,
            **settings,
        }
    )
    return open_model(asked, plugins)


def settings_of(values: Mapping[str, Any]) -> Settings:
    """Settings from keyword arguments. Raises UsageError for an unknown name or a wrong type."""
    known = [field.name for field in fields(Settings)]
    if unknown := values.keys() - set(known):
        raise UsageError(f"no setting {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    plain = {name: str(x) if isinstance(x, Path) else x for name, x in values.items()}
    try:
        return msgspec.convert(plain, Settings)
    except msgspec.ValidationError as error:
        raise UsageError(f"settings: {error}") from None


def load_text(
    settings: Settings, plugins: Sequence[str | Path] = (), progress: Progress | None = None
) -> LocalModel:
    """Load the text model of the settings. Raises UsageError for a model that makes no text."""
    model = open_model(settings, plugins, progress)
    if "text" in model.tasks:
        return model
    model.close()
    raise UsageError(f"{model.name} makes no text: it does {', '.join(model.tasks)}")


def open_model(
    settings: Settings, plugins: Sequence[str | Path] = (), progress: Progress | None = None
) -> LocalModel:
    """Load the model of the settings, for the task that they name or all that it does."""
    manager = PluginManager()
    manager.load(settings, plugins)
    return LocalModel(find_model(settings, manager), manager, progress)


def tokenizer(reference: str | Path, **settings: Any) -> Tokenizer:
    """A tokenizer alone: of a model, a folder, a tokenizer.json or a .gguf file."""
    manager, asked = PluginManager(), settings_of({"reference": str(reference), **settings})
    manager.load(asked)
    path = Path(reference)
    return open_tokenizer(path if path.exists() else manager.locate(str(reference), asked), manager)
