"""Launch parameters of Triton kernels: tile sizes, warps and stages, as measured on a GPU.

A kernel's wrapper computes parameters from shapes and passes them through `launch_parameters`.
`ostro tune --kernels` measures the alternatives for the calls of a model and writes the fastest to
a file for the GPU, which later processes read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch

from ostro.core.env import CACHE
from ostro.core.paths import atomic_path

log = logging.getLogger(__name__)

P = TypeVar("P", bound="tuple[Any, ...]")

Key: TypeAlias = "tuple[Any, ...]"
"""What a choice depends on: strings, numbers, and tuples of them."""

Lookup: TypeAlias = "Callable[[str, Key, Any, Callable[[], Iterable[Any]]], Any]"
"""A function with the arguments and the result of `launch_parameters`."""

OVERRIDE: ContextVar[Lookup | None] = ContextVar("OVERRIDE", default=None)


def launch_parameters(op: str, key: Key, default: P, candidates: Callable[[], Iterable[P]]) -> P:
    """The launch parameters of a call: those measured for its key on this GPU, or the default.

    `key` has what the fastest parameters depend on, such as shapes, dtypes and a class of rows
    (`row_class`): strings, numbers, and tuples of them. Parameters are NamedTuples of numbers.
    `candidates` returns the alternatives to measure, of which some may not compile; it is called
    only while kernels are tuned, and to check what a file has. A deterministic kernel does not call
    this function: its results must not depend on measurements.
    """
    if (override := OVERRIDE.get()) is not None:
        return override(op, key, default, candidates)
    # A current GPU is known once a tensor is on one; asking earlier would create a context.
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    table = measured(device)
    if not table or (op, key) not in table:
        return default
    return find(table, op, key, default, candidates)


def row_class(rows: int) -> int:
    """The class of a number of rows: the next power of two, at most 1024."""
    return min(1024, 1 << max(rows - 1, 0).bit_length())


@contextmanager
def override_lookup(lookup: Lookup) -> Iterator[None]:
    """Within the context, `launch_parameters` returns what `lookup` does, in this thread."""
    token = OVERRIDE.set(lookup)
    try:
        yield
    finally:
        OVERRIDE.reset(token)


def find(
    table: dict[tuple[str, Key], Any],
    op: str,
    key: Key,
    default: P,
    candidates: Callable[[], Iterable[P]],
) -> P:
    """The parameters of a table's entry; the default if it is not a candidate.

    Another version may have written the file, whose kernels took other parameters.
    """
    entry = table[op, key]
    if isinstance(entry, list):  # as read from the file
        known = {tuple(plain(each)): each for each in (default, *candidates())}
        if tuple(entry) not in known:
            del table[op, key]
            return default
        entry = table[op, key] = known[tuple(entry)]
    return entry


def plain(parameters: tuple[Any, ...]) -> list[Any]:
    """Parameters as a list for JSON: the name of their type and the numbers."""
    return [type(parameters).__name__, *parameters]


@cache
def measured(device: int | None) -> dict[tuple[str, Key], Any]:
    """The parameters in the file of a GPU by operation and key; empty without a GPU or a file."""
    if device is None:
        return {}
    return read(file_of(torch.cuda.get_device_name(device)))


def file_of(gpu: str) -> Path:
    """The file of the GPU of that name ("NVIDIA H200")."""
    name = "".join(c if c.isalnum() else "_" for c in gpu.lower())
    return CACHE.read() / "kernels" / f"{name}.json"


def read(file: Path) -> dict[tuple[str, Key], Any]:
    """The parameters in a file; none if it is missing or damaged, with a warning.

    Those that another version of Triton was measured with are not used: it compiles other code.
    """
    try:
        content = json.loads(file.read_text("utf-8"))
        if content["triton"] != triton_version():
            log.info("%s was measured with another version of Triton and is not used", file)
            return {}
        return {
            (each["op"], nested(each["key"])): list(each["parameters"])
            for each in content["kernels"]
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning(
            "%s is not used: %s: %s; remove it, or write it again with `ostro tune --kernels`",
            file,
            type(error).__name__,
            error,
        )
        return {}


def triton_version() -> str:
    import triton  # here: programs on the CPU import this module, and Triton takes 0.4 s

    return str(triton.__version__)


def nested(value: Any) -> Any:
    """A value of JSON with tuples in the place of lists."""
    return tuple(map(nested, value)) if isinstance(value, list) else value


def write(file: Path, gpu: str, chosen: Mapping[tuple[str, Key], tuple[Any, ...]]) -> None:
    """Write chosen parameters to the file of a GPU, beside those of other calls in it.

    Raises OSError or CheckpointError if the file cannot be written.
    """
    merged = {**read(file), **{place: plain(chosen[place]) for place in chosen}}
    entries = [
        {"op": op, "key": key, "parameters": parameters}
        for (op, key), parameters in sorted(merged.items(), key=repr)
    ]
    # One line per entry, so that files can be compared.
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    file.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps({"gpu": gpu, "triton": triton_version()}).removesuffix("}")
    text = f'{head}, "kernels": [\n{lines}\n]}}\n'
    with atomic_path(file) as path:
        path.write_text(text, "utf-8")
