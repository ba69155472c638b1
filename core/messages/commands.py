"""Messages between an engine and its client: its start, commands and their results, progress."""

from __future__ import annotations

import msgspec

from ostro.core.errors import EngineDied, Fact, OstroError, describe_error, rebuild_error
from ostro.core.messages.outputs import Output, Stats
from ostro.core.messages.requests import DEFAULT_MODEL, Request
from ostro.core.settings import Settings


class ModelSpec(msgspec.Struct):
    """A model to load. `eos_ids` are its tokenizer's, which the engine process reads only for
    logits processors.
    """

    settings: Settings
    eos_ids: list[int] = []


class StartEngine(msgspec.Struct, kw_only=True, tag=True):
    """The first message to an engine process: the models to load, and the plugin registry of the
    client, which its own must equal. `settings` are those of the process: threads and plugins.
    """

    settings: Settings
    models: list[ModelSpec]
    plugin_paths: list[str]
    registry: dict[str, str]


class Progress(msgspec.Struct, tag=True):
    """Progress of loading: `done` of `total` units of `what` (0 of 0 if unknown).

    `model` is the one that a command loads; empty while the engine starts.
    """

    what: str
    done: int = 0
    total: int = 0
    model: str = ""


class ModelInfo(msgspec.Struct, kw_only=True):
    """Context length and vocabulary size of a model, and its end tokens; 0 for models without
    tokens.
    """

    context: int = 0
    vocab: int = 0
    eos_ids: list[int] = []


class Ready(msgspec.Struct, kw_only=True, tag=True):
    """The engine is loaded and warmed up. `models` are by name, the default one first; `explain`
    are the lines of `--explain`, `digest` is that of the plugins.
    """

    models: dict[str, ModelInfo]
    explain: list[str] = []
    digest: str = ""

    @property
    def first(self) -> ModelInfo:
        return next(iter(self.models.values()))


class Failed(msgspec.Struct, kw_only=True, tag=True):
    """An error of the engine, which the client raises; `id` is its request or command, if any.

    The other fields are those of `describe_error`.
    """

    kind: str
    message: str
    param: str | None = None
    status: int | None = None
    code: str | None = None
    facts: dict[str, Fact] | None = None
    id: str | None = None

    @classmethod
    def of(cls, error: BaseException, id: str | None = None) -> Failed:
        """Describe an error; one that is no OstroError has its type's name in the message."""
        if isinstance(error, OstroError):
            return cls(**describe_error(error), id=id)
        return cls(kind="", message=f"{type(error).__name__}: {error}", id=id)

    def error(self) -> OstroError:
        """The error to raise."""
        # An unknown error of a request concerns only the request; any other ended the engine.
        unknown = EngineDied if self.id is None else OstroError
        kind = self.kind or unknown.__name__
        return rebuild_error(kind, self.message, self.param, self.status, self.code, self.facts)


class Abort(msgspec.Struct, tag=True):
    """Abort a request, or the choice `index` of it."""

    id: str
    index: int | None = None


class GetStats(msgspec.Struct, tag=True):
    """Request `Stats`."""


class EngineCommand(msgspec.Struct, kw_only=True, tag=True):
    """A command, with the `id` of its result, which the client sets."""

    id: str = ""
    model: str = DEFAULT_MODEL


class LoadModel(EngineCommand, kw_only=True):
    """Load a model while others serve; one of the same name is replaced and ends its requests.

    Without `spec` the files of that model are read again.
    """

    model: str
    spec: ModelSpec | None = None


class UnloadModel(EngineCommand, kw_only=True):
    """Unload a model; the result follows once its requests have ended and the memory is free."""

    model: str


class RequantizeModel(EngineCommand, kw_only=True):
    """Load a model in other formats beside the old one, which ends its requests.

    `quant` and `topology` as in `Settings`; without both, the checkpoint's own formats.
    """

    quant: str | None = None
    topology: str | None = None


ModelCommand = LoadModel | UnloadModel | RequantizeModel


class ModelResult(msgspec.Struct, tag=True):
    """The result of the command `id`: all models of the engine, and the lines of `--explain` of the
    model that was loaded.
    """

    id: str
    models: dict[str, ModelInfo]
    explain: list[str] = []


class LoadAdapter(EngineCommand, kw_only=True):
    """Read an adapter and register it; see `Registry.load`."""

    name: str
    reference: str
    inplace: bool = False
    expected: str | None = None
    pinned: bool = False


class UnloadAdapter(EngineCommand, kw_only=True):
    """Unload an adapter; see `Registry.unload`."""

    name: str
    expected: str | None = None


class ReadAdapter(EngineCommand, kw_only=True):
    """Read a registered adapter unless it has been read."""

    name: str


class RegisterAdapter(EngineCommand, kw_only=True):
    """Register an adapter, which is read when it is first requested; see `Registry.register`."""

    name: str
    reference: str
    generation: str | None = None
    pinned: bool = False


class ListAdapters(EngineCommand):
    """List the adapters of a model."""


AdapterCommand = LoadAdapter | UnloadAdapter | ReadAdapter | RegisterAdapter | ListAdapters


class AdapterInfo(msgspec.Struct, kw_only=True):
    """A registered adapter; the fields below `loaded` are set once it has been read.

    `requests` counts the requests by this name, `running` the sequences that use its generation.
    `resident`: it is on the device. `effect` is how much it changes the model's outputs, None if
    unknown. `norms` are the norms of its changes by weight, for Python only: they are many.
    """

    name: str
    reference: str
    generation: str = ""
    pinned: bool = False
    requests: int = 0
    running: int = 0
    loaded: bool = False
    resident: bool = False
    kind: str = ""
    rank: int = 0
    base: str = ""
    nbytes: int = 0
    effect: float | None = None
    modules: int = 0
    norms: dict[str, float] = {}
    invocation: list[int] = []
    template: str | None = None


class AdapterResult(msgspec.Struct, tag=True):
    """The result of the command `id`: all adapters of the model."""

    id: str
    adapters: list[AdapterInfo]


class Close(msgspec.Struct, tag=True):
    """Abort all requests and end the engine."""


class Held(msgspec.Struct, tag=True):
    """A call has held the loop of the engine for long, or "" when the loop goes on."""

    message: str


class Outputs(msgspec.Struct, tag=True):
    """The outputs of one pass of the engine's loop."""

    outputs: list[Output]


ToEngine = StartEngine | Request | Abort | GetStats | ModelCommand | AdapterCommand | Close
FromEngine = Progress | Ready | Failed | Outputs | Stats | Held | ModelResult | AdapterResult
