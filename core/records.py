"""The records that plugins yield: frozen dataclasses of plain data.

A record refers to classes and functions by import string ("package.module:attribute"), so that
plugins can be listed and validated without importing torch. `resolve` imports such a string.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ostro.core.deprecated import RemovedInOstro1

if TYPE_CHECKING:
    import argparse


API = (0, 2)
"""Version of the plugin API."""


Import = str
"""An import string, "package.module:attribute"."""


def resolve(reference: Import) -> Any:
    """Import the object of an import string. Raises ImportError or AttributeError."""
    module, _, attribute = reference.partition(":")
    found: Any = import_module(module)
    for name in attribute.split("."):
        found = getattr(found, name)
    return found


@dataclass(frozen=True, kw_only=True)
class Record:
    """The base of all records. `replaces` overrides another plugin's record of the same name."""

    name: str
    replaces: bool = False


@dataclass(frozen=True, kw_only=True)
class Files:
    """A folder as input of `claims` functions: file names and parsed JSON; no file is opened."""

    root: Path
    names: tuple[str, ...]
    json: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TokenizerSource:
    """Where a tokenizer is read from: a model folder, one file, or the header of a container.

    `root` is the folder, `file` the name of the one file to read, None for the whole folder.
    `config` is the parsed tokenizer_config.json of the folder, empty without one. `metadata` is
    the header of a container, such as GGUF, that holds its own tokenizer.
    """

    root: Path
    file: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None

    @property
    def suffix(self) -> str:
        """Suffix of the one file to read, such as ".json"; empty for a folder and a header."""
        return Path(self.file).suffix if self.file and self.metadata is None else ""

    @property
    def tokenizer_class(self) -> str:
        """Class that the config names, without "Tokenizer" and "Fast"; empty without one."""
        return (
            (self.config.get("tokenizer_class") or "")
            .removesuffix("Fast")
            .removesuffix("Tokenizer")
        )

    def has(self, *names: str) -> bool:
        """Whether this is a folder with all of these files."""
        folder = self.file is None and self.metadata is None
        return folder and all((self.root / name).is_file() for name in names)


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """The description of a tensor in a container, without its bytes.

    `format` is the name of its format: "F32", "F16", "BF16", "I8", "F8_E4M3", "Q8_0", "Q4_K", ...
    `shape` is in torch's order (rows first) and counts elements, even if the bytes are packed.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    nbytes: int
    file: str = ""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A deliberate porting bug: the parity test must fail if it is applied to the model.

    `apply` modifies the loaded model. `std` is the standard deviation of the re-initialised weights
    for which the bug is visible (small for epsilons).
    """

    name: str
    apply: Callable[[Any], None]
    std: float | None = None


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """How the conformance kit tests an architecture; serving never reads it.

    tiny, wide   configs for tests
    reference    the class whose logits are correct by definition
    mutants      `mutants()` returns bugs that its parity test must detect
    examples     `examples(folder, config)` returns prompts with media for the parity test
    """

    tiny: Mapping[str, Any] | None = None
    wide: Mapping[str, Any] | None = None
    reference: Import | None = None
    mutants: Import | None = None
    examples: Import | None = None


@dataclass(frozen=True, kw_only=True)
class Architecture(Record):
    """A model family: its config, model class, weight names and inputs.

    Required are `name`, `api`, `config` and `model`; the other fields are

    classes      class names in a config.json's "architectures"
    gguf         names in a GGUF file's "general.architecture"
    claims       `claims(files, config)`, for folders without a class name
    names        `names(config)` returns the `Names` of its weights
    companions   `companions(folder)` returns references of further models, by component name
    gguf_config  `gguf_config(container)` returns a config.json for a GGUF file
    gguf_metadata  `gguf_metadata(config, raw)` returns the keys of a GGUF file that do not follow
                 from the fields of its config: without the architecture's prefix, None omits a key
    sensitive    patterns of linears that in-situ quantization gives more bits
    conformance  what the conformance kit tests it with
    mtp          `mtp(config)` returns the `MultiTokenHead` that its checkpoints may have
    mtp_names    `mtp_names(config)` returns the `Names` of a model with that head
    labels       names of the scores, for models whose config.json has no id2label
    score_template  Jinja source of the prompt whose scores are those of a pair of texts, rendered
                 with two messages of the roles "query" and "document"
    trunk        other plugins may import its model, as `ostro.trunks.<name>`
    """

    api: tuple[int, int]
    config: Import
    model: Import
    tasks: tuple[str, ...] = ("text", "embed")
    classes: tuple[str, ...] = ()
    gguf: tuple[str, ...] = ()
    claims: Callable[[Files, Mapping[str, Any]], bool] | None = None
    inputs: Import | None = None
    names: Import | None = None
    companions: Import | None = None
    gguf_config: Import | None = None
    gguf_metadata: Import | None = None
    sensitive: tuple[str, ...] = ()
    mtp: Import | None = None
    mtp_names: Import | None = None
    conformance: Conformance = Conformance()
    labels: tuple[str, ...] = ()
    score_template: str | None = None
    trunk: bool = False


def accept_moved(init: Callable[..., None]) -> Callable[..., None]:
    """Accept the fields of `Conformance` as deprecated keywords of `Architecture`.

    They are not fields, so `dataclasses.replace` passes on the new field alone.
    """

    @wraps(init)
    def accept(self: Architecture, *arguments: object, **given: Any) -> None:
        moved = {f.name: given.pop(f.name) for f in fields(Conformance) if f.name in given}
        if moved:
            names = ", ".join(f"{name}=..." for name in moved)
            warnings.warn(
                f"Architecture {given.get('name')!r}: {names} is deprecated: "
                f"use conformance=Conformance({names})",
                RemovedInOstro1,
                stacklevel=2,
            )
            given["conformance"] = replace(given.get("conformance", Conformance()), **moved)
        init(self, *arguments, **given)

    return accept


Architecture.__init__ = accept_moved(Architecture.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True, kw_only=True)
class Pipeline(Record):
    """Maps the requests of a task to engine requests, and engine outputs to answers.

    `pipeline` is a class; it is called with a `ServedModel` and an `AsyncEngine`.
    """

    task: str
    pipeline: Import


@dataclass(frozen=True, kw_only=True)
class Cache(Record):
    """A cache kind: the state of a layer per sequence. `kind` is a `CacheKind` class."""

    kind: Import


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format to which float weights can be quantized: `--quant NAME`.

    bits        bits per weight, including scales
    block       rows must be a multiple of it
    instead     the format for other rows; None: they are not quantized
    sensitive   the format of embeddings, heads and weights that an architecture calls sensitive
    importance  whether `quantize` uses the importance of columns
    """

    name: str
    bits: float
    block: int = 1
    instead: str | None = None
    sensitive: str | None = None
    importance: bool = False


@dataclass(frozen=True, kw_only=True)
class Quantizer(Record):
    """A weight format: reads the tensors of a weight as a `Storage`.

    `claims(tensors, settings)` gets the tensors of one part of a linear, by suffix ("weight",
    "qweight", "scales", ...), and the checkpoint's quantization config; it must be fast. `storage`
    is a class with `read(stored) -> Storage`. `makes` are the formats of its
    `quantize(weight, format, dtype, importance=None) -> Storage`.
    """

    claims: Callable[[Mapping[str, TensorInfo], Mapping[str, Any]], bool]
    storage: Import
    makes: tuple[Format, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Planner(Record):
    """Chooses the format of every weight if `--quant` is a budget instead of a format.

    `claims(text)` gets the value of `--quant` ("4.5bpw"); it must be fast. `plan` is a function
    from a `PlanRequest` to `PlannedFormats` (`core.load.planning`). `usage` describes those values,
    for messages: "a size (6GB)".
    """

    claims: Callable[[str], bool]
    plan: Import
    usage: str


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Record):
    """A container of named tensors: safetensors, GGUF, UQFF.

    `claims(path)` gets a file or folder and must be fast. `open(path)` returns a `Container`: names
    with `TensorInfo`, lazy reads, metadata. `write(saving, progress)` writes a model in this
    container (`core.load.saving`) and returns the path.
    """

    claims: Callable[[Path], bool]
    open: Import
    suffixes: tuple[str, ...] = ()
    write: Import | None = None


@dataclass(frozen=True, kw_only=True)
class TokenizerFormat(Record):
    """A file format of tokenizers: tokenizer.json, a SentencePiece model, a GGUF header.

    `claims(source)` looks at a `TokenizerSource`; it must be light. `load(source)` returns a
    `Tokenizer` (`ostro.pipelines`); `build_tokenizer` there adds what the configs of a model folder
    state. `usage` names the files, for messages: "vocab.json with merges.txt".
    `write(tokenizer, source, keys)` returns the keys of a container's header for a tokenizer.
    """

    claims: Callable[[TokenizerSource], bool]
    load: Import
    usage: str
    write: Import | None = None


@dataclass(frozen=True, kw_only=True)
class Adapter(Record):
    """An adapter kind. `claims(files, config)` gets a folder and its adapter_config.json;
    `load(source)` reads an `AdapterSource` as `AdapterWeights`.
    """

    claims: Callable[[Files, Mapping[str, Any]], bool]
    load: Import


@dataclass(frozen=True, kw_only=True)
class LogitsProcessor(Record):
    """A step between logits and sampling, applied to the whole batch, lowest `order` first.

    `name` is its key in the request field `logits_processors`. `processor` is a class with
    `update(added, removed, moved)` and `apply(logits, rows, last_ids)`. With `host_ids` it gets the
    sampled ids as a list. With `mask` it has `fill(requests, masks)` in place of `apply`: it
    excludes tokens by bits, on the host, while the device computes the logits.
    """

    processor: Import
    order: int = 0
    host_ids: bool = False
    mask: bool = False


@dataclass(frozen=True, kw_only=True)
class Speculator(Record):
    """A source of proposed tokens for `--speculate NAME`; `proposer` is a class with `propose`."""

    proposer: Import


@dataclass(frozen=True, kw_only=True)
class Parser(Record):
    """Parses reasoning and tool calls in the output of a chat.

    `matches(source)` gets the source of the chat template that renders the request; it must be
    fast. `parser` is a class of `OutputParser`. Of several parsers that match a template, the one
    with the highest `precedence` is used; it is below 0 for markers that templates of other
    notations contain, too.
    """

    matches: Callable[[str], bool]
    parser: Import
    precedence: int = 0


@dataclass(frozen=True, kw_only=True)
class Store(Record):
    """A store of documents, such as responses and files, for `ostro serve --store LOCATION`.

    `claims(location)` gets the value of `--store`; it must be fast. `open(location)` returns a
    `DocumentStore`. `usage` describes those values, for messages: "a folder".
    """

    claims: Callable[[str], bool]
    open: Import
    usage: str


@dataclass(frozen=True, kw_only=True)
class Alias(Record):
    """A short name of a model, which the plugin's `ostro_locate` resolves.

    `reference` is a hub reference. `sha256` is the hash of its file, "" if it names none or it is
    unknown. `about` is a line for lists.
    """

    reference: str
    licence: str
    about: str
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Command(Record):
    """A subcommand: `parser(argparse_parser)` adds options, `run(args)` returns the exit code."""

    help: str
    parser: Import
    run: Import


class CommandParser(Protocol):
    """`Command.parser`: declares the options of a command."""

    def __call__(self, parser: argparse.ArgumentParser, /) -> None: ...


class CommandRunner(Protocol):
    """`Command.run`: runs a command and returns the exit code."""

    def __call__(self, args: argparse.Namespace, /) -> int: ...
