"""The catalogue of models: one row per class that ostro or transformers' causal classes have.

Its sources are the records of the plugins, the outcomes of the sweep beside the transformers
backend (`sweep.json`), and transformers' tables of classes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any

from ostro.core.errors import ModelNotFound, nearest
from ostro.core.load.transformers_backend import BODY as BACKEND
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, resolve

NATIVE, BODY, REFUSED, UNTESTED = "native", "body", "refused", "untested"
"""Backends of a row: a plugin, the transformers backend, neither, and a class whose reference does
not run.
"""

MEDIA = ("image", "video", "audio")
PREFIX = "transformers:"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A class of the catalogue.

    modality      what prompts contain
    backend       NATIVE, BODY, REFUSED or UNTESTED
    formats       weight formats tried: "all", "floats", or ""
    adapters      whether adapters are tried
    reference     the class whose logits are correct by definition
    since         the version of ostro that first had it
    why           the reason of REFUSED and UNTESTED
    """

    cls: str
    architecture: str
    model_type: str
    modality: Sequence[str]
    gguf: Sequence[str]
    tasks: Sequence[str]
    backend: str
    formats: str = ""
    adapters: bool = False
    reference: str = ""
    since: str = ""
    why: str = ""

    def plain(self) -> dict[str, Any]:
        """The row as JSON data; `cls` is called "class"."""
        data = asdict(self)
        return {"class": data.pop("cls")} | data


def catalogue(plugins: PluginManager) -> list[Row]:
    """All rows, sorted by class."""
    records = plugins.collect("architectures")
    found = [row for record in records.values() for row in native(record)]
    known = {row.cls for row in found}
    if BACKEND in records:
        found += [row for name, row in bodies(records[BACKEND]) if name not in known]
    return sorted(found, key=lambda row: (row.cls.lower(), row.architecture))


def native(record: Architecture) -> Iterator[Row]:
    """A row per class of a record; one without a class if it reads GGUF files only."""
    if record.name == BACKEND:
        return
    reference = record.conformance.reference or ""
    for name in record.classes or (("",) if record.gguf else ()):
        cls = name or reference.removeprefix(PREFIX)
        tested = record.conformance.tiny is not None and bool(reference)
        yield Row(
            cls=name,
            architecture=record.name,
            model_type=model_type(cls) or model_type(reference.removeprefix(PREFIX)),
            modality=modality(record),
            gguf=record.gguf,
            tasks=record.tasks,
            backend=BODY if record.model.startswith(PREFIX) else NATIVE,
            formats="" if not tested else "floats" if record.conformance.wide is None else "all",
            adapters=tested,
            reference=reference,
            since=since(record.name),
        )


def bodies(backend: Architecture) -> Iterator[tuple[str, Row]]:
    """(class, row) of every causal class of transformers, from the sweep."""
    results = {"right": BODY, "refused": REFUSED, "wrong": REFUSED, "no reference": UNTESTED}
    for name, outcome in sweep(backend)["classes"].items():
        right = outcome["result"] == "right"
        yield (
            name,
            Row(
                cls=name,
                architecture=BACKEND,
                model_type=outcome["model_type"],
                modality=("text",),
                gguf=(),
                tasks=backend.tasks if right else (),
                backend=results[outcome["result"]],
                formats="floats" if right else "",
                reference=f"{PREFIX}{name}",
                since=outcome.get("since", ""),
                why=outcome.get("why", ""),
            ),
        )


def sweep(backend: Architecture) -> Mapping[str, Any]:
    """The outcomes of the sweep, from the data beside the plugin of the backend."""
    package = backend.config.partition(":")[0].rpartition(".")[0]
    text = (files(package) / "sweep.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def modality(record: Architecture) -> tuple[str, ...]:
    """Text, and the media that the inputs of a record make items of."""
    if record.inputs is None:
        return ("text",)
    from ostro.core.media.inputs import Inputs

    cls = resolve(record.inputs)
    media = [each for each in MEDIA if getattr(cls, each, None) is not getattr(Inputs, each)]
    return ("text", *media)


def since(architecture: str) -> str:
    """The version that first had an architecture."""
    import ostro

    listed = json.loads((files(__package__) / "releases.json").read_text("utf-8"))
    return next((v for v, names in listed.items() if architecture in names), ostro.__version__)


def model_type(cls: str) -> str:
    """The model_type of a class of transformers; "" if it has none."""
    return next(iter(model_types().get(cls, ())), "")


@cache
def model_types() -> Mapping[str, list[str]]:
    """The model_types of each class in transformers' tables, the likeliest first."""
    from transformers.models.auto import modeling_auto

    found: dict[str, list[str]] = {}
    for table, entries in vars(modeling_auto).items():
        if not table.endswith("_MAPPING_NAMES"):
            continue
        for kind, names in entries.items():
            for name in [names] if isinstance(names, str) else names:
                found.setdefault(name, []).append(kind)
    return {
        name: sorted(dict.fromkeys(kinds), key=lambda kind: not similar(name, kind))
        for name, kinds in found.items()
    }


def similar(cls: str, kind: str) -> bool:
    """Whether the name of a class begins with a model_type."""
    return cls.lower().startswith(kind.replace("_", "").removesuffix("text"))


def search(rows: Sequence[Row], pattern: str) -> list[Row]:
    """The rows whose class, architecture, model_type or GGUF name contains or matches `pattern`.

    Raises ModelNotFound if there are none, with the nearest names and what the class needs.
    """
    low = pattern.lower()
    found = [row for row in rows if any(matches(each.lower(), low) for each in names(row))]
    if found:
        return found
    near = nearest(pattern, sorted({each for row in rows for each in names(row)}))
    kinds = model_types().get(pattern)
    needs = "it needs a plugin (`ostro plugin new NAME`) or a release of transformers that has it"
    if kinds:
        needs = (
            f"transformers has the class (model_type {kinds[0]}), but not as a causal language "
            f"model; it needs a plugin: ostro plugin new NAME --from {PREFIX}{pattern}"
        )
    raise ModelNotFound(f"no class, model_type or GGUF name matches {pattern!r}{near}; {needs}")


def names(row: Row) -> list[str]:
    """The names by which a row is found."""
    return [each for each in (row.cls, row.architecture, row.model_type, *row.gguf) if each]


def matches(name: str, pattern: str) -> bool:
    return pattern in name or fnmatchcase(name, pattern)


HEAD = """# Models

Generated by `ostro models --into docs/models.md`; a test compares this page with the records.
`ostro models PATTERN` searches it, and `ostro models --json` prints its data.

The first table has the classes that run. *native* is a plugin of its own; *body* is the class of
transformers with ostro's linears, experts, caches and attention, slower than a plugin and without
GGUF names. *formats* are the weight formats that tests try on a tiny model of the class; a format
that is not tried is not refused. *adapters* says whether tests put adapters on each of its linears.
The logits of a native class are compared with *reference*, those of a body with the class itself,
by the sweep. *since* is the first version with the plugin, or with the body in its sweep. A row
without a class reads GGUF files only.

"""
TITLES = (
    "class", "model_type", "modality", "GGUF", "tasks", "backend", "formats", "adapters",
    "reference", "since",
)  # fmt: skip
REFUSALS = """
## Causal classes of transformers that do not run

*untested* classes have no tiny model that transformers itself runs.

"""


def page(rows: Sequence[Row]) -> str:
    """The page of the catalogue in Markdown."""
    running = [row for row in rows if row.backend in (NATIVE, BODY)]
    counts = ", ".join(f"{sum(r.backend == b for r in rows)} {b}" for b in (NATIVE, BODY))
    lines = [f"{len(running)} rows: {counts}.\n", line(TITLES), line(["---"] * len(TITLES))]
    lines += [line(cells(row)) for row in running]
    refused = [line(("class", "model_type", "", "reason")), line(["---"] * 4)]
    refused += [
        line((row.cls, row.model_type, row.backend, row.why))
        for row in rows
        if row.backend in (REFUSED, UNTESTED)
    ]
    return HEAD + "\n".join(lines) + "\n" + REFUSALS + "\n".join(refused) + "\n"


def cells(row: Row) -> list[str]:
    """The cells of a row that runs, in the order of TITLES."""
    return [
        row.cls or f"({row.architecture})",
        row.model_type,
        ", ".join(row.modality),
        ", ".join(row.gguf),
        ", ".join(row.tasks),
        row.backend,
        row.formats,
        "yes" if row.adapters else "",
        row.reference.removeprefix(PREFIX),
        row.since,
    ]


def line(row: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
