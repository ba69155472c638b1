"""The records that plugins yield: plain, frozen, light.

A record names heavy things by import string ("package.module:attribute"), so that a plugin can be
listed, checked and refused without importing torch. `resolve` follows such a string.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

API = (0, 2)
"""Version of the plugin contract. It becomes (1, 0) once adapters and grammars have used it."""

STARTER = "starter"
"""The reference of the model that comes with ostro, used where none is given."""

Import = str
"""An import string, "package.module:attribute"."""


def resolve(reference: Import) -> Any:
    """Import what an import string names.

    Raises ImportError or AttributeError as Python does: a broken plugin must say why itself.
    """
    module, _, attribute = reference.partition(":")
    found: Any = import_module(module)
    for name in attribute.split("."):
        found = getattr(found, name)
    return found


@dataclass(frozen=True, kw_only=True)
class Record:
    """What every record carries: its name, and whether it takes the place of another's."""

    name: str
    replaces: bool = False


@dataclass(frozen=True, kw_only=True)
class Files:
    """What a folder holds, as `claims` functions see it: names and parsed JSON, nothing opened."""

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
    """A tensor as its container describes it, unread.

    `format` is the name of its bytes: "F32", "F16", "BF16", "I8", "F8_E4M3", "Q8_0", "Q4_K"...
    `shape` is in torch's order (rows first), in elements, also where the bytes are packed.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    nbytes: int
    file: str = ""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A deliberate porting bug: the parity test must turn red when it is applied to our model.

    `apply` takes the built model, after loading, and spoils it. `std` is the spread of the
    re-initialised weights under which the bug shows (small for epsilons).
    """

    name: str
    apply: Callable[[Any], None]
    std: float | None = None


@dataclass(frozen=True, kw_only=True)
class Architecture(Record):
    """A model family: its config, its modules, its names and inputs.

    Only `name`, `api`, `config` and `model` must be given. `classes` are the names in a
    config.json's "architectures"; `gguf` those of "general.architecture". `claims(files, config)`
    decides where a folder names no class. `names(config)` gives the name spaces of its weights,
    `companions(folder)` the references of models that it is made of besides, by the name of a part,
    `gguf_config(container)` a config.json from a GGUF file. `sensitive` are patterns of linears
    that in-situ quantization promotes. `tiny` and `wide` are configs for tests, `reference` the
    class whose logits are the truth, `mutants()` the bugs its parity test must notice,
    `examples(folder, config)` prompts with media to compare them on.
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
    sensitive: tuple[str, ...] = ()
    tiny: Mapping[str, Any] | None = None
    wide: Mapping[str, Any] | None = None
    reference: Import | None = None
    mutants: Import | None = None
    examples: Import | None = None
    trunk: bool = False


@dataclass(frozen=True, kw_only=True)
class Pipeline(Record):
    """From a task's request to engine work and back.

    `pipeline` is a class; it is called with a `ServedModel` and an `AsyncEngine`.
    """

    task: str
    pipeline: Import


@dataclass(frozen=True, kw_only=True)
class Cache(Record):
    """A cache kind: what a layer remembers of a sequence. `kind` is a `CacheKind` class."""

    kind: Import


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format that float weights can be brought to: `--quant NAME`.

    `bits` a weight takes, scales included. Rows must be of whole `block`s; where they are not, the
    format called `instead` is taken, or the weight stays as it is. `sensitive` names the format of
    embeddings, heads and what else an architecture calls sensitive. `importance` says that it
    weighs errors by the importance of columns where that is given.
    """

    name: str
    bits: float
    block: int = 1
    instead: str | None = None
    sensitive: str | None = None
    importance: bool = False


@dataclass(frozen=True, kw_only=True)
class Quantizer(Record):
    """A weight format: how stored tensors become a `Storage`.

    `claims(tensors, settings)` looks at what a checkpoint holds for one part of a linear, by
    suffix ("weight", "qweight", "scales"...), and at its quantization config; it must be light.
    `storage` is a class with `read(stored) -> Storage`. `makes` are the formats that its
    `quantize(weight, format, dtype, importance=None) -> Storage` makes of a float weight.
    """

    claims: Callable[[Mapping[str, TensorInfo], Mapping[str, Any]], bool]
    storage: Import
    makes: tuple[Format, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Planner(Record):
    """Chooses a format for every weight where `--quant` names no format, but a budget.

    `claims(text)` looks at what `--quant` says ("4.5bpw"); it must be light. `plan` is a function
    that makes a `Planned` of a `PlanRequest` (`core.load.planning`). `usage` describes what it
    claims, for messages: "a size (6GB)".
    """

    claims: Callable[[str], bool]
    plan: Import
    usage: str


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Record):
    """A container of named tensors: safetensors, GGUF, UQFF.

    `claims(path)` looks at a file or folder, light. `open` is a callable `open(path)` giving a
    `core.load.Container`: names with `TensorInfo`, lazy reads, metadata. `write(saving, told)`
    writes a model in such a container (`core.load.saving`) and gives the path.
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
    """

    claims: Callable[[TokenizerSource], bool]
    load: Import
    usage: str


@dataclass(frozen=True, kw_only=True)
class Adapter(Record):
    """An adapter kind. `claims(files, config)` looks at a folder and its adapter_config.json;
    `load(source)` reads it: an `AdapterSource` into `AdapterWeights`.
    """

    claims: Callable[[Files, Mapping[str, Any]], bool]
    load: Import


@dataclass(frozen=True, kw_only=True)
class LogitsProcessor(Record):
    """A step between logits and the drawn token, run for the whole batch, lowest `order` first.

    `name` is the request parameter that asks for it; `processor` a class with
    `update(added, removed, moved)` and `apply(logits, rows, last_ids)`; `host_ids` says that it
    needs the drawn ids on the host, so its rows skip a step.
    """

    processor: Import
    order: int = 0
    host_ids: bool = False


@dataclass(frozen=True, kw_only=True)
class Parser(Record):
    """Finds tool calls or reasoning in generated text. `matches(template)` looks at a template."""

    matches: Callable[[str], bool]
    parser: Import


@dataclass(frozen=True, kw_only=True)
class Route(Record):
    """An HTTP route: `name` is "METHOD /path", `endpoint` an ASGI endpoint (async function)."""

    endpoint: Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Command(Record):
    """A subcommand: `parser(argparse_parser)` declares its options, `run(args) -> int` works."""

    help: str
    parser: Import
    run: Import


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of one model, final before hooks run. Plain data that crosses processes."""

    reference: str | None = None
    arch: str | None = None
    task: str | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    placement: str | None = None
    quant: str | None = None
    topology: str | None = None
    importance: str | None = None
    threads: int | None = None
    context: int | None = None
    max_seqs: int = 32
    memory: str | None = None
    kv_dtype: str = "auto"
    revision: str | None = None
    token_source: str | None = None
    offline: bool = False
    name: str | None = None
    adapters: Sequence[str] = ()
    adapter_folder: str | None = None
    adapter_root: str | None = None
    adapter_resolvers: bool = False
    adapter_slots: int = 32
    adapter_memory: str | None = None
    max_adapters: int = 1024
    max_adapter_rank: int = 256
    deterministic: bool = False
    exact: bool = False
    replay: bool = False
    allow_config: Sequence[str] = ()
    dummy_weights: str | None = None
    explain: bool = False


KINDS: Mapping[str, type[Record]] = {
    "architectures": Architecture,
    "pipelines": Pipeline,
    "caches": Cache,
    "quantizers": Quantizer,
    "planners": Planner,
    "checkpoints": Checkpoint,
    "tokenizers": TokenizerFormat,
    "adapters": Adapter,
    "logits_processors": LogitsProcessor,
    "parsers": Parser,
    "routes": Route,
    "commands": Command,
}
"""Declaration hooks (without their prefix) and the record each of them yields."""
