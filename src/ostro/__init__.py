"""A model zoo made of plugins, and the engine that serves it.

The public surface of the plugin API is what this module exports, the names in `__all__` of
`ostro.caches`, `checkpoints`, `config`, `errors`, `http`, `nn`, `ops`, `pipelines` and `testing`,
and `ostro.trunks`; docs/api.md lists them. Names are imported on first use, so that `import ostro`
is light.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from functools import reduce
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if os.path.isfile(os.path.join(os.path.dirname(__file__), "core")):
    raise ImportError(
        "this checkout of ostro has files where symbolic links belong (git's core.symlinks is "
        "false): run `git config core.symlinks true && git checkout -- src`, or install ostro "
        "without -e"
    )

if TYPE_CHECKING:
    from ostro import architectures as trunks
    from ostro import caches, checkpoints, config, errors, http, nn, ops, pipelines, testing
    from ostro.core.adapters.weights import (
        AdapterReader,
        AdapterSource,
        AdapterWeights,
        LowRank,
        Mixer,
    )
    from ostro.core.cache import CacheKind, CacheSpec
    from ostro.core.config import ConfigClass
    from ostro.core.engine.processors import LogitsProcessorClass
    from ostro.core.hooks import hookimpl
    from ostro.core.load.container import CheckpointOpener, ConfigReader, Container
    from ostro.core.load.experts import ExpertNames, RowPart
    from ostro.core.load.multi_token import multi_token_names
    from ostro.core.load.names import Add, HeadRows, Names, NamesFunction, Pair, Unpermute
    from ostro.core.load.planning import FormatPlanner
    from ostro.core.load.saving import CheckpointWriter, ConfigWriter
    from ostro.core.media.inputs import Inputs
    from ostro.core.messages.arrays import Array
    from ostro.core.messages.prompt import Item, Prompt, content_key
    from ostro.core.messages.requests import JobRequest
    from ostro.core.nn.storage import QuantizingStorageClass, Storage, StorageClass, Stored
    from ostro.core.ops.choose import Fused, Kernel
    from ostro.core.output import OutputParserClass
    from ostro.core.pipeline import PipelineClass
    from ostro.core.records import (
        Adapter,
        Alias,
        Architecture,
        Cache,
        Checkpoint,
        Command,
        CommandParser,
        CommandRunner,
        Conformance,
        Files,
        Format,
        LogitsProcessor,
        Mutant,
        Parser,
        Pipeline,
        Planner,
        Quantizer,
        Record,
        Speculator,
        Store,
        TensorInfo,
        TokenizerFormat,
        TokenizerSource,
        resolve,
    )
    from ostro.core.routes import Endpoint, Route
    from ostro.core.settings import HubReference, Settings
    from ostro.core.step import Features, Medium, Slice, Step
    from ostro.core.store import (
        BlobWriter,
        Document,
        DocumentStore,
        StoreOpener,
        StoreUsage,
        new_id,
    )
    from ostro.core.tokenizer.tokenizer import TokenizerLoader, TokenizerWriter
    from ostro.entrypoints.python.load import load, tokenizer
    from ostro.entrypoints.python.model import LocalModel

_MODULES = (
    "caches",
    "checkpoints",
    "config",
    "errors",
    "http",
    "nn",
    "ops",
    "pipelines",
    "testing",
)
_NAMES = {
    "ostro.core.adapters.weights": "AdapterReader AdapterSource AdapterWeights LowRank Mixer",
    "ostro.core.cache": "CacheKind CacheSpec",
    "ostro.core.config": "ConfigClass",
    "ostro.core.engine.processors": "LogitsProcessorClass",
    "ostro.core.hooks": "hookimpl",
    "ostro.core.load.container": "CheckpointOpener ConfigReader Container",
    "ostro.core.load.experts": "ExpertNames RowPart",
    "ostro.core.load.multi_token": "multi_token_names",
    "ostro.core.load.names": "Add HeadRows Names NamesFunction Pair Unpermute",
    "ostro.core.load.planning": "FormatPlanner",
    "ostro.core.load.saving": "CheckpointWriter ConfigWriter",
    "ostro.core.media.inputs": "Inputs",
    "ostro.core.messages.arrays": "Array",
    "ostro.core.messages.prompt": "Item Prompt content_key",
    "ostro.core.messages.requests": "JobRequest",
    "ostro.core.nn.storage": "QuantizingStorageClass Storage StorageClass Stored",
    "ostro.core.ops.choose": "Fused Kernel",
    "ostro.core.output": "OutputParserClass",
    "ostro.core.pipeline": "PipelineClass",
    "ostro.core.records": "Adapter Alias Architecture Cache Checkpoint Command CommandParser "
    "CommandRunner Conformance Files Format LogitsProcessor Mutant Parser Pipeline Planner "
    "Quantizer Record Speculator Store TensorInfo TokenizerFormat TokenizerSource resolve",
    "ostro.core.routes": "Endpoint Route",
    "ostro.core.settings": "HubReference Settings",
    "ostro.core.step": "Features Medium Slice Step",
    "ostro.core.store": "BlobWriter Document DocumentStore StoreOpener StoreUsage new_id",
    "ostro.core.tokenizer.tokenizer": "TokenizerLoader TokenizerWriter",
    "ostro.entrypoints.python.model": "LocalModel",
    "ostro.entrypoints.python.load": "load tokenizer",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

DEPRECATED = {
    **{
        name: f"trunks.planes.{name}" for name in ("Packed", "Planes", "pack_codes", "unpack_codes")
    },
    "Model": "nn.TokenModel",
    "Part": "RowPart",
    "native": "ops.native",
}
"""Exports of API (0, 1) that still work and warn, and their replacements."""

__all__ = [
    "Adapter",
    "AdapterReader",
    "AdapterSource",
    "AdapterWeights",
    "Add",
    "Alias",
    "Architecture",
    "Array",
    "BlobWriter",
    "Cache",
    "CacheKind",
    "CacheSpec",
    "Checkpoint",
    "CheckpointOpener",
    "CheckpointWriter",
    "Command",
    "CommandParser",
    "CommandRunner",
    "ConfigClass",
    "ConfigReader",
    "ConfigWriter",
    "Conformance",
    "Container",
    "Document",
    "DocumentStore",
    "Endpoint",
    "ExpertNames",
    "Features",
    "Files",
    "Format",
    "FormatPlanner",
    "Fused",
    "HeadRows",
    "HubReference",
    "Inputs",
    "Item",
    "JobRequest",
    "Kernel",
    "LocalModel",
    "LogitsProcessor",
    "LogitsProcessorClass",
    "LowRank",
    "Medium",
    "Mixer",
    "Mutant",
    "Names",
    "NamesFunction",
    "OutputParserClass",
    "Pair",
    "Parser",
    "Pipeline",
    "PipelineClass",
    "Planner",
    "Prompt",
    "Quantizer",
    "QuantizingStorageClass",
    "Record",
    "Route",
    "RowPart",
    "Settings",
    "Slice",
    "Speculator",
    "Step",
    "Storage",
    "StorageClass",
    "Store",
    "StoreOpener",
    "StoreUsage",
    "Stored",
    "TensorInfo",
    "TokenizerFormat",
    "TokenizerLoader",
    "TokenizerSource",
    "TokenizerWriter",
    "Unpermute",
    "caches",
    "checkpoints",
    "config",
    "content_key",
    "errors",
    "hookimpl",
    "http",
    "load",
    "multi_token_names",
    "new_id",
    "nn",
    "ops",
    "pipelines",
    "resolve",
    "testing",
    "tokenizer",
    "trunks",
]


def __getattr__(name: str) -> Any:
    if name == "trunks":
        return sys.modules["ostro.trunks"]
    if name in DEPRECATED:
        return _deprecated(name)
    if name in _MODULES:
        found: Any = import_module(f"ostro.{name}")
    elif name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'ostro' has no attribute {name!r}")
    globals()[name] = found
    return found


def _deprecated(name: str) -> Any:
    from ostro.core.deprecated import RemovedInOstro1

    use = DEPRECATED[name]
    warnings.warn(f"ostro.{name} is deprecated: use ostro.{use}", RemovedInOstro1, stacklevel=3)
    return reduce(getattr, use.split("."), sys.modules["ostro"])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Trunks(ModuleType):
    """The built-in plugins that others may build on: `from ostro.trunks import llama, planes`."""

    def __getattr__(self, name: str) -> ModuleType:
        from ostro.core.plugins.trunks import trunk_module

        for room in () if name.startswith("_") else ("architectures", "quant"):
            if find_spec(package := f"ostro.{room}.{name}"):
                if module := trunk_module(import_module(package)):
                    return import_module(module)
        raise AttributeError(f"ostro.trunks has no {name!r}: no plugin, or none to build on")


class _TrunkFinder:
    """Finds `ostro.trunks.<name>`, which is the module of a built-in plugin."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, trunk = name.rpartition(".")
        if package != "ostro.trunks" or not hasattr(sys.modules[package], trunk):
            return None
        # No `importlib.abc.Loader`, whose import takes as long as that of ostro.
        loader: Any = _TrunkLoader(getattr(sys.modules[package], trunk))
        return ModuleSpec(name, loader)


class _TrunkLoader:
    """Loads a module that is loaded by another name already, and leaves it as it is."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has replaced it


sys.modules["ostro.trunks"] = _Trunks("ostro.trunks", _Trunks.__doc__)
sys.modules["ostro.trunks"].__path__ = []  # a package: `from ostro.trunks.llama import Model`
sys.meta_path.append(_TrunkFinder)
