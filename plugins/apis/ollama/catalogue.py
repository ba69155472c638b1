"""Describes the served models as Ollama lists them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from ostro import Inputs, resolve
from ostro.http import ModelEntry
from ostro.pipelines import ServedModel
from ostro.plugins.apis.ollama.answers import timestamp
from ostro.plugins.apis.ollama.options import SAMPLING
from ostro.plugins.apis.ollama.schema import (
    OllamaDetails,
    OllamaModel,
    OllamaModelInfo,
    OllamaRunningModel,
)
from ostro.plugins.apis.ollama.templates import reasons, takes_tools

OPTIONS = {field: name for name, field in SAMPLING.items()}
"""Options by the fields of chat requests."""


def model_of(entry: ModelEntry) -> OllamaModel:
    """Return the entry of a list of models."""
    return OllamaModel(**common(entry), modified_at=modified(entry))


def running_model_of(entry: ModelEntry) -> OllamaRunningModel:
    """Return the entry of a list of loaded models."""
    return OllamaRunningModel(**common(entry), context_length=entry.context or 0)


def common(entry: ModelEntry) -> dict[str, Any]:
    """Return the fields that the entries of both lists share."""
    files = None if entry.served is None else entry.served.checkpoint
    return {
        "name": entry.id,
        "model": entry.id,
        "size": 0 if files is None else files.nbytes,
        "digest": digest_of(entry),
        "details": details_of(entry),
    }


def digest_of(entry: ModelEntry) -> str:
    """Return 64 hexadecimal digits: those of an adapter's weights, or of the files of a model.

    An adapter whose weights have not been read yet has those of its name and its model, and a model
    without known files those of its name.
    """
    if entry.generation:
        return entry.generation
    checkpoint = None if entry.served is None else entry.served.checkpoint
    files = "" if checkpoint is None else checkpoint.digest
    if files and entry.parent is None:
        return files
    names = "\n".join((files, entry.parent or "", entry.id))
    return hashlib.sha256(names.encode()).hexdigest()


def modified(entry: ModelEntry) -> str:
    """Return the time at which the server started."""
    return timestamp(entry.created * 10**9)


def details_of(entry: ModelEntry) -> OllamaDetails:
    """Return what the files of a model contain; empty while it is loading."""
    served = entry.served
    if served is None:
        return OllamaDetails(parent_model=entry.parent or "")
    family, files = served.architecture.name, served.checkpoint
    details = OllamaDetails(parent_model=entry.parent or "", family=family, families=[family])
    if files is not None:
        details.format, details.quantization_level = files.format, files.quantization
        details.parameter_size = size_of(files.parameters)
    return details


def size_of(parameters: int | None) -> str:
    """Return a number of parameters as Ollama writes it: "8.0B"; empty if it is unknown."""
    if not parameters:
        return ""
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= limit:
            return f"{parameters / limit:.1f}{unit}"
    return str(parameters)


def info_of(entry: ModelEntry) -> OllamaModelInfo:
    """Return the description of a model."""
    served = entry.served
    template = None if served is None else served.template
    values = {} if served is None else served.sampling.values
    parameters = [
        f"{OPTIONS[field]} {value:g}" for field, value in values.items() if field in OPTIONS
    ]
    origin = [f"FROM {entry.parent or entry.id}"] + (
        [f"ADAPTER {entry.id}"] if entry.parent else []
    )
    return OllamaModelInfo(
        modelfile="\n".join(origin + [f"PARAMETER {each}" for each in parameters]) + "\n",
        parameters="\n".join(parameters),
        template="" if template is None else template.source,
        details=details_of(entry),
        model_info={} if served is None else facts_of(served, entry),
        capabilities=[] if served is None else list(capabilities_of(served)),
        modified_at=modified(entry),
    )


def facts_of(served: ServedModel, entry: ModelEntry) -> dict[str, str | int]:
    """Return the sizes of a model, under the keys of GGUF files."""
    family, files = served.architecture.name, served.checkpoint
    facts: dict[str, str | int] = {"general.architecture": family, "general.basename": entry.id}
    if files is not None and files.parameters:
        facts["general.parameter_count"] = files.parameters
    if entry.context:
        facts[f"{family}.context_length"] = entry.context
    if files is not None:
        facts |= {f"{family}.{key}": size for key, size in files.sizes.items()}
    if served.vocab:
        facts.setdefault(f"{family}.vocab_size", served.vocab)
    return facts


def capabilities_of(served: ServedModel) -> Iterator[str]:
    """Yield what a model can do, in Ollama's words."""
    template = served.template
    if "text" in served.tasks:
        yield "completion"
        if takes_images(served):
            yield "vision"
        if template is not None and takes_tools(template):
            yield "tools"
        if template is not None and reasons(template):
            yield "thinking"
    if "embed" in served.tasks:
        yield "embedding"


def takes_images(served: ServedModel) -> bool:
    """Whether messages may contain images."""
    inputs = served.architecture.inputs
    return inputs is not None and resolve(inputs).image is not Inputs.image
