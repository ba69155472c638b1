"""What `import ostro` gives: load a model, then generate, stream, or look at its logits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import count
from operator import index
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

import msgspec

from ostro.core.chat import ChatTemplate, load_template, prompt_tokens
from ostro.core.engine.request import AdapterRef, Sampling, TokenLogprobs, TokenOutput, TokenRequest
from ostro.core.errors import OstroError, Overloaded, Unsupported, UsageError
from ostro.core.ipc.messages import AdapterInfo
from ostro.core.load.open import find, generation_defaults, open_container
from ostro.core.media import Inputs, Prompt
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import STARTER, Settings, resolve
from ostro.core.tokenizer import Tokenizer, load_tokenizer
from ostro.core.tokenizer.stop import Stop
from ostro.entrypoints.found import find as look
from ostro.entrypoints.found import suggested
from ostro.entrypoints.media import item_of, separate

if TYPE_CHECKING:
    from torch import Tensor

    from ostro.core.adapters.adapter import Mixture
    from ostro.core.adapters.registry import Registry
    from ostro.core.engine.engine import Engine
    from ostro.core.load.model import LoadedModel
    from ostro.entrypoints.tasks import Tasks

Adapters = Sequence[str] | Mapping[str, float]
"""Names of adapters, or how much of each."""

PAUSE = 0.002
"""Seconds between two looks at whether an adapter has been read."""

Asked = str | Sequence[int] | Sequence[Mapping[str, Any]] | Prompt
"""Text, messages ({"role": ..., "content": ...}) with media among their parts, or token ids."""


@dataclass(frozen=True)
class Piece:
    """One item of a stream: its new text (it may be empty), its token, and how it ended.

    The last item has `finish` and no token; `logprobs` are there if they were asked for.
    """

    text: str
    token: int | None = None
    finish: str | None = None
    logprobs: TokenLogprobs | None = None


class Text:
    """A loaded text model and its engine, in this process. Close it, or use it in a `with`."""

    def __init__(
        self,
        loaded: LoadedModel,
        engine: Engine,
        tokenizer: Tokenizer,
        *,
        template: Path | None = None,
        settings: Settings,
        plugins: PluginManager,
    ) -> None:
        self.loaded, self.engine, self.tokenizer = loaded, engine, tokenizer
        self.template_file, self.settings, self.plugins = template, settings, plugins
        self.name = settings.name or loaded.path.resolve().name
        self.ids = (f"python-{i}" for i in count())
        self.waiting: dict[str, deque[TokenOutput]] = {}
        self.closed = False

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template. Raises TemplateError where there is none."""
        return load_template(self.tokenizer, file=self.template_file)

    @property
    def explain(self) -> list[str]:
        """Who answered and which kernels were chosen, a line each."""
        return self.loaded.explain

    @property
    def suggested(self) -> dict[str, Any]:
        """The sampling that the model's own generation config suggests."""
        return suggested(generation_defaults(self.loaded.container))

    def requantize(self, quant: str | None = None, *, topology: str | None = None) -> list[str]:
        """Bring the weights to other formats, read again from the checkpoint; what was chosen.

        `quant` and `topology` as in `Settings`; neither gives back the checkpoint's own. Raises
        UsageError while a stream is open, and for formats that are not known.
        """
        self.check_open()
        if self.waiting:
            raise UsageError("an answer is being written; let it end, or close its stream, first")
        asked = replace(self.settings, quant=quant, topology=topology)
        from ostro.core.engine.build import renew
        from ostro.core.engine.calibration import open_probe
        from ostro.core.load.model import requantize

        requantize(self.loaded, asked, self.plugins, open_probe=open_probe)
        renew(self.engine, self.loaded, asked)
        return self.explain

    @property
    def registry(self) -> Registry:
        """The adapters of this model."""
        assert self.engine.registry is not None, f"{self.name} was built with one"
        return self.engine.registry

    def load_adapter(
        self, name: str, reference: str | Path, *, inplace: bool = False, pinned: bool = False
    ) -> AdapterInfo:
        """Read an adapter, show that it does something, and have a name go to it; what it is.

        `inplace` lets a name that is taken go to another adapter; what runs keeps the one it began
        with. Raises AdapterError.
        """
        self.check_open()
        told: list[OstroError | None] = []
        self.registry.load(name, str(reference), told.append, inplace=inplace, pinned=pinned)
        while not told:
            self.registry.poll()
            sleep(PAUSE)
        if told[0] is not None:
            raise told[0]
        return next(facts for facts in self.adapters if facts.name == name)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter; what runs with it goes on to its end. Raises AdapterNotFound."""
        self.registry.unload(name)

    @property
    def adapters(self) -> list[AdapterInfo]:
        """What is known of every adapter."""
        return self.registry.facts(norms=True)

    def mixture(self, adapters: Adapters, tokens: Sequence[int]) -> Mixture:
        """The adapters asked for, read if they were not; see `Registry.mixture`."""
        wanted = wanted_of(adapters)
        self.read(wanted)
        return self.registry.mixture(wanted, tokens)

    def read(self, wanted: Sequence[AdapterRef]) -> None:
        """Have adapters read that were not yet. Raises the AdapterError of one that cannot be."""
        told: list[OstroError | None] = []
        self.registry.ask(wanted, lambda: told.append(None), told.append)
        while not told:
            self.registry.poll()
            sleep(PAUSE)
        if told[0] is not None:
            raise told[0]

    def generate(self, x: Asked, *, adapters: Adapters = (), **sampling: Any) -> str:
        """The answer to a prompt, whole. `sampling` are the fields of `Sampling`; `adapters` are
        names, or scales by name: {"sql": 0.5, "style": 0.7}.
        """
        return "".join(piece.text for piece in self.stream(x, adapters=adapters, **sampling))

    def stream(self, x: Asked, *, adapters: Adapters = (), **sampling: Any) -> Generator[Piece]:
        """The answer, one item per token. Leaving the loop early aborts the request.

        Several streams may run at once, in one thread.
        """
        self.check_open()
        rules, prompt = rules_of(sampling), self.prompt(x, adapters=adapters)
        mixture = self.mixture(adapters, prompt.tokens)
        request = TokenRequest(
            id=next(self.ids),
            tokens=prompt.tokens,
            sampling=rules,
            items=prompt.items,
            positions=prompt.positions,
        )
        words = self.tokenizer.detokenizer(prompt=prompt.tokens)
        stop, said = Stop(rules.stop), 0
        self.engine.submit(request, mixture)
        self.waiting[request.id] = deque()
        try:
            for output in self.outputs(request.id):
                for i, token in enumerate(output.tokens):
                    said += 1
                    text = words.add([token])
                    if said > rules.min_tokens:
                        text = stop.add(text)
                    noted = output.logprobs[i] if output.logprobs else None
                    yield Piece(text, token, logprobs=noted)
                if stop.found is not None or output.finish is not None:
                    rest = stop.add(words.finish()) + stop.rest()
                    yield Piece(rest, finish="stop" if stop.found else output.finish)
                    return
        finally:
            del self.waiting[request.id]
            self.engine.abort(request.id)

    def outputs(self, id: str) -> Iterator[TokenOutput]:
        """Turn the loop and yield what comes of one request; that of others waits."""
        mine = self.waiting[id]
        while True:
            while mine:
                yield mine.popleft()
            self.check_open()
            for output in self.engine.step():
                if output.id in self.waiting:
                    self.waiting[output.id].append(output)

    def encode(self, x: Asked, *, tools: Sequence[Any] | None = None, **options: Any) -> list[int]:
        """The prompt's token ids; messages go through the model's chat template."""
        return self.prompt(x, tools=tools, **options).tokens

    def prompt(
        self,
        x: Asked,
        *,
        tools: Sequence[Any] | None = None,
        adapters: Adapters = (),
        **options: Any,
    ) -> Prompt:
        """The prompt's token ids, with the media of its messages in their places. Messages go
        through the chat template of the one adapter asked for, where it brings one.

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
        turns, media = separate(items)
        if media and self.inputs is None:
            raise Unsupported(f"{self.name} takes text only, no {media[0].kind}", param="messages")
        template = self.template_under(adapters)
        tokens = prompt_tokens(template, self.tokenizer, turns, tools, kwargs=options)
        if self.inputs is None or not media:
            return Prompt(tokens=tokens)
        return self.inputs.place(tokens, [item_of(given, self.inputs) for given in media])

    def template_under(self, adapters: Adapters) -> ChatTemplate:
        """The chat template of the one adapter asked for, or the model's own."""
        wanted = wanted_of(adapters)
        if len(wanted) != 1 or not wanted[0].scale:
            return self.template
        self.read(wanted)
        generation = self.registry.find(wanted[0].name).generation
        own = self.registry.store[generation or ""].template
        if own is None:
            return self.template
        return ChatTemplate(own, tokens=self.tokenizer.special_tokens)

    @cached_property
    def inputs(self) -> Inputs | None:
        """What makes items of media; None where the model takes none."""
        named = self.loaded.architecture.inputs
        return None if named is None else resolve(named)(self.loaded.raw_config, self.loaded.path)

    def logits(self, x: Asked, *, adapters: Adapters = ()) -> Tensor:
        """Logits [T, vocab] float32 of every position of a prompt, under `adapters`."""
        self.check_open()
        prompt = self.prompt(x, adapters=adapters)
        nothing = Sampling(max_tokens=0, prompt_logprobs=0)
        self.engine.check(TokenRequest(id="logits", tokens=prompt.tokens, sampling=nothing))
        from ostro.core.engine.engine import media_under

        mixture, adapter_pool = (
            self.mixture(adapters, prompt.tokens),
            self.registry.loader.adapter_pool,
        )
        held = adapter_pool.hold(mixture)
        if held is None:
            raise Overloaded("there is no room on the device for these adapters now")
        try:
            return self.engine.runner.logits(
                prompt.tokens,
                items=media_under(prompt.items, mixture),
                positions=prompt.positions,
                held=held,
            )
        finally:
            adapter_pool.let_go(held)

    def close(self) -> None:
        """Stop the engine and let go of the files. Closing twice is closing once."""
        self.closed = True
        self.registry.close()
        self.engine.close()
        self.loaded.container.close()

    def check_open(self) -> None:
        """Raise UsageError after `close`."""
        if self.closed:
            raise UsageError(f"{self.name} is closed; load it again")

    def __enter__(self) -> Text:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def wanted_of(adapters: Adapters) -> tuple[AdapterRef, ...]:
    """Adapters as a request names them. Raises UsageError for what is neither name nor scale."""
    pairs = adapters.items() if isinstance(adapters, Mapping) else [(a, 1.0) for a in adapters]
    if isinstance(adapters, str):
        raise UsageError(f"adapters={adapters!r}: write [{adapters!r}], or a scale for each name")
    try:
        return tuple(AdapterRef(name=str(name), scale=float(scale)) for name, scale in pairs)
    except (TypeError, ValueError):
        raise UsageError(f"adapters={adapters!r:.100}: write names, or a scale by name") from None


def rules_of(values: Mapping[str, Any]) -> Sampling:
    """Sampling from keyword arguments. Raises UsageError for a name or a type that is wrong."""
    known = Sampling.__struct_fields__
    if unknown := values.keys() - set(known):
        raise UsageError(
            f"no sampling parameter {', '.join(sorted(unknown))}; there are {', '.join(known)}"
        )
    if isinstance(values.get("stop"), str):
        values = {**values, "stop": (values["stop"],)}
    try:
        rules = msgspec.convert(values, Sampling, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"sampling: {error}") from None
    if rules.n != 1:
        raise UsageError(f"n={rules.n}: a call gives one answer; call again for another")
    if rules.prompt_logprobs is not None:
        raise UsageError("prompt_logprobs are not given here; logits() has those of every position")
    return rules


def load(
    reference: str | Path | None = None,
    *,
    dtype: Any = "auto",
    device: str = "auto",
    quant: str | None = None,
    plugins: Sequence[str | Path] = (),
    **settings: Any,
) -> Text | Tasks:
    """Load a model: a folder, a .gguf file, "org/name[@revision][:selector]", or the starter.

    What it gives generates text (`Text`), or does another task (`Tasks`: vectors, transcripts,
    speech, pictures), as the model was made for, or as `task` says.

    `settings` are further fields of `Settings` (context, max_seqs, memory, kv_dtype, offline...).
    Raises an OstroError that says what is wrong and what to do.
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
    """Settings from keyword arguments. Raises UsageError for a name or a type that is wrong."""
    known = [field.name for field in fields(Settings)]
    if unknown := values.keys() - set(known):
        raise UsageError(f"no setting {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    plain = {name: str(x) if isinstance(x, Path) else x for name, x in values.items()}
    try:
        return msgspec.convert(plain, Settings)
    except msgspec.ValidationError as error:
        raise UsageError(f"settings: {error}") from None


def load_text(
    settings: Settings,
    plugins: Sequence[str | Path] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Text:
    """Load the text model that the settings name. `progress` is told (bytes done, bytes in all)."""
    model = open_model(settings, plugins, progress)
    if isinstance(model, Text):
        return model
    model.close()
    raise UsageError(f"{model.name} makes no text: it does {', '.join(model.tasks)}")


def open_model(
    settings: Settings,
    plugins: Sequence[str | Path] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Text | Tasks:
    """Load what the settings say, for the task they name or the model was made for."""
    from ostro.core.engine.build import build_engine, make_ready, set_threads
    from ostro.core.engine.calibration import open_probe
    from ostro.core.load.model import load_model

    manager = PluginManager()
    manager.load(settings, plugins)
    if settings.dummy_weights is None:
        found = look(settings, manager)
        if found.tasks[0] != "text":
            from ostro.entrypoints.tasks import Tasks

            return Tasks(found, manager, progress)
    set_threads(settings.threads)
    path = find(settings, manager)
    loaded = load_model(path, settings, manager, progress, open_probe=open_probe)
    words = open_tokenizer(Path(settings.tokenizer) if settings.tokenizer else path, manager)
    words.check(int(loaded.config.vocab_size))
    engine = build_engine(loaded, settings, manager, words.eos_ids)
    manager.hook.ostro_model_loaded(model=loaded)
    make_ready(engine, loaded)
    template = Path(settings.chat_template) if settings.chat_template else None
    return Text(loaded, engine, words, template=template, settings=settings, plugins=manager)


def tokenizer(reference: str | Path, **settings: Any) -> Tokenizer:
    """A tokenizer alone: of a model, a folder, a tokenizer.json or a .gguf file."""
    manager, asked = PluginManager(), settings_of({"reference": str(reference), **settings})
    manager.load(asked)
    path = Path(reference)
    return open_tokenizer(path if path.exists() else manager.locate(str(reference), asked), manager)


def open_tokenizer(path: Path, plugins: PluginManager) -> Tokenizer:
    """The tokenizer at a local path; a GGUF's lies in its header."""
    if path.suffix != ".gguf":
        return load_tokenizer(path)
    container = open_container(path, plugins)
    try:
        return load_tokenizer(path, metadata=container.metadata)
    finally:
        container.close()
