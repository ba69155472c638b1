"""Types of the objects that the import strings of records name, for type checkers.

A record names an object by an import string, which a type checker does not follow. An assignment
makes it check the object against its protocol::

    reader: AdapterReader = read_adapter

The targets that are not here are base classes: `nn.TokenModel`, `nn.EncoderModel` and
`nn.JobModel` for models, `Inputs` for media, `CacheKind` for cache kinds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from pathlib import Path

    import torch
    from starlette.requests import Request
    from starlette.responses import Response
    from torch import Tensor

    from ostro.core.adapters.weights import AdapterSource, AdapterWeights
    from ostro.core.config import ModelConfig
    from ostro.core.engine.processors import MaskProcessor, Processor
    from ostro.core.ipc.client import AsyncEngine
    from ostro.core.load.container import Container
    from ostro.core.load.names import Names
    from ostro.core.load.planning import Planned, PlanRequest
    from ostro.core.load.saving import Saving
    from ostro.core.nn.storage import Storage, Stored
    from ostro.core.output import OutputParser, Tool, ToolChoice
    from ostro.core.pipeline import ServedModel
    from ostro.core.records import TokenizerSource
    from ostro.core.store import DocumentStore
    from ostro.core.tokenizer import Tokenizer
    from ostro.core.tokenizer.vocabulary import Vocabulary


class ConfigClass(Protocol):
    """`Architecture.config`: a class of typed configs."""

    def from_hf(self, raw: Mapping[str, Any], *, allow: tuple[str, ...] = ()) -> ModelConfig:
        """The config of a parsed config.json. Keys in `allow` are accepted though unknown.

        Raises ConfigError for unknown keys and wrong types.
        """


class NamesFunction(Protocol):
    """`Architecture.names`: the names of the weights in the files of one config."""

    def __call__(self, config: Any, /) -> Names: ...


class ConfigReader(Protocol):
    """`Architecture.gguf_config`: a config.json from the header of a GGUF file."""

    def __call__(self, container: Container, /) -> Mapping[str, Any]: ...


class ConfigWriter(Protocol):
    """`Architecture.gguf_metadata`: keys of a GGUF file for a config; None omits a key."""

    def __call__(self, config: Any, raw: Mapping[str, Any], /) -> Mapping[str, Any]: ...


class StorageClass(Protocol):
    """`Quantizer.storage`: a class of storages."""

    def read(self, stored: Stored, /) -> Storage:
        """The storage of what a checkpoint holds for one part of a linear."""


class QuantizingStorageClass(StorageClass, Protocol):
    """`Quantizer.storage` of a quantizer that makes formats."""

    def quantize(
        self, weight: Tensor, format: str, dtype: torch.dtype, importance: Tensor | None = None, /
    ) -> Storage:
        """Quantize a float weight [..., n, k] to a format of the record's `makes`.

        dtype: that of the computation. importance [k] float32: weights of the errors by column.
        """


class FormatPlanner(Protocol):
    """`Planner.plan`: chooses the format of every weight."""

    def __call__(self, request: PlanRequest, /) -> Planned: ...


class CheckpointOpener(Protocol):
    """`Checkpoint.open`: opens a file or folder that the record claims; reads headers only."""

    def __call__(self, path: Path, /) -> Container: ...


class CheckpointWriter(Protocol):
    """`Checkpoint.write`: writes a model and returns its path.

    `progress` is called with the bytes done and the bytes in all.
    """

    def __call__(self, saving: Saving, progress: Callable[[int, int], None], /) -> Path: ...


class TokenizerLoader(Protocol):
    """`TokenizerFormat.load`: loads the tokenizer of a source that the record claims."""

    def __call__(self, source: TokenizerSource, /) -> Tokenizer: ...


class TokenizerWriter(Protocol):
    """`TokenizerFormat.write`: the keys of a container's header for a tokenizer.

    `source` is the folder that the tokenizer was loaded from, `keys` are the header's other keys.
    Raises TokenizerError for a tokenizer that the header cannot describe.
    """

    def __call__(
        self, tokenizer: Tokenizer, source: TokenizerSource, keys: Mapping[str, Any], /
    ) -> Mapping[str, Any]: ...


class AdapterReader(Protocol):
    """`Adapter.load`: reads the weights of an adapter folder that the record claims."""

    def __call__(self, source: AdapterSource, /) -> AdapterWeights: ...


class PipelineClass(Protocol):
    """`Pipeline.pipeline`: a class of pipelines, one for each served model.

    The routes of the task call its methods; that of text is an `ostro.pipelines.TextPipeline`.
    """

    def __call__(self, model: ServedModel, engine: AsyncEngine, /) -> object: ...


class LogitsProcessorClass(Protocol):
    """`LogitsProcessor.processor`: a class of processors, one for each engine."""

    def __call__(
        self, rows: int, vocabulary: Vocabulary, device: torch.device, /
    ) -> Processor | MaskProcessor: ...

    def check(self, value: Any, vocab: int, /) -> None:
        """Raise RequestError if a request may not have this value for the parameter."""


class OutputParserClass(Protocol):
    """`Parser.parser`: a class of parsers, one for each choice. See `OutputParser`."""

    reasoning: tuple[str, str] | None

    def __call__(
        self, prompt_end: str, tools: Sequence[Tool], controls: Collection[str] = (), /
    ) -> OutputParser: ...

    def grammar(
        self,
        tools: Sequence[Tool],
        choice: ToolChoice,
        parallel: bool,
        controls: Mapping[str, int] | None = None,
        /,
    ) -> str:
        """The grammar of an output, in llguidance's Lark."""


class StoreOpener(Protocol):
    """`Store.open`: opens the store at a location. Raises StoreError, and UsageError if unsafe."""

    def __call__(self, location: str, /) -> DocumentStore: ...


class Endpoint(Protocol):
    """`Route.endpoint`: an endpoint of Starlette."""

    def __call__(self, request: Request, /) -> Awaitable[Response]: ...


class CommandParser(Protocol):
    """`Command.parser`: declares the options of a command."""

    def __call__(self, parser: argparse.ArgumentParser, /) -> None: ...


class CommandRunner(Protocol):
    """`Command.run`: runs a command and returns the exit code."""

    def __call__(self, args: argparse.Namespace, /) -> int: ...
