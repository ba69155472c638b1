"""Errors of one process are raised by another one: same class, message, field and HTTP response."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ostro
from ostro import errors
from ostro.core.errors import InvalidTensor, OstroError, RequestError, StoreError, rebuild_error
from ostro.core.failure import described
from ostro.core.ipc.client import check_output
from ostro.core.messages.commands import Failed
from ostro.core.messages.outputs import JobOutput, TokenOutput
from ostro.entrypoints.http.workers.messages import Refused
from ostro.entrypoints.operations.requests.errors import error_content_of

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("core", "entrypoints", "plugins", "architectures", "quant", "adapters")


class OwnError(RequestError):
    """An error of a plugin, whose class and constructor another process does not know."""

    status, code = 418, "own"

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}", param="prompt")


def subclasses(cls: type[OstroError]) -> Iterator[type[OstroError]]:
    yield cls
    for below in cls.__subclasses__():
        yield from subclasses(below)


def classes() -> list[type[OstroError]]:
    """All classes of errors in ostro, and one of a plugin.

    Only the files that derive a class from an error are imported: all others take a minute.
    """
    derived = re.compile(rf"^class \w+\(({'|'.join(errors.__all__)})\):", re.MULTILINE)
    for file in (file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")):
        if derived.search(file.read_text()):
            parts = file.relative_to(ROOT).with_suffix("").parts
            import_module(".".join(["ostro", *parts]).removesuffix(".__init__"))
    here = [cls for cls in subclasses(OstroError) if cls.__module__.startswith("ostro.")]
    return [*dict.fromkeys(here), OwnError]


def sample(cls: type[OstroError]) -> OstroError:
    """An error with a text, a number or a class for each argument that has no default."""
    parameters = inspect.signature(cls).parameters.values()
    needed = [each for each in parameters if each.default is each.empty]
    texts = (f"the {each.name} of {cls.__name__}" for each in needed)
    values: dict[str, Any] = {"float": 1.5, "type": cls}
    return cls(*(values.get(each.annotation) or next(texts) for each in needed))


def test_every_class_crosses_a_process_border() -> None:
    known = classes()
    public = {cls for cls in vars(errors).values() if isinstance(cls, type)}
    assert public < {*known} and len(known) > len(public) + 5
    for cls in known:
        error = sample(cls)
        error.param = "messages"
        data = msgspec.msgpack.encode(Failed.of(error, "a"))
        failed = msgspec.msgpack.decode(data, type=Failed)
        rebuilt = failed.error()
        same = (str(error), "messages", cls.status, cls.code)
        assert (str(rebuilt), rebuilt.param, rebuilt.status, rebuilt.code) == same, cls
        nearest = next(base for base in cls.__mro__ if base in public)
        assert type(rebuilt) is nearest and failed.id == "a", cls
        refused = msgspec.msgpack.decode(msgspec.msgpack.encode(Refused.of(error)), type=Refused)
        assert (str(refused.error()), refused.error().status) == (str(error), cls.status), cls


@pytest.mark.parametrize("kind", [TokenOutput, JobOutput])
def test_the_error_of_an_output_is_raised(kind: type[TokenOutput | JobOutput]) -> None:
    for error in (InvalidTensor("expects inputs of width 8", "model.head"), OwnError("a", "b")):
        output = kind(id="a", finish="error", **described(error))
        data = msgspec.msgpack.encode(output)
        with pytest.raises(OstroError, match=str(error)) as raised:
            check_output(msgspec.msgpack.decode(data, type=kind))
        assert (raised.value.status, raised.value.code) == (error.status, error.code)
        assert raised.value.param == error.param


def test_the_folder_of_a_store_stays_in_its_process() -> None:
    error = Failed.of(StoreError("it is full", path="/srv/store"), "a").error()
    assert isinstance(error, StoreError) and "/srv" in str(error)
    assert "/srv" not in error_content_of(error).error.message


@pytest.mark.parametrize("kind", ["nearest", "Any", "", "Absent"])
def test_an_unknown_class_is_an_ostro_error(kind: str) -> None:
    assert type(rebuild_error(kind, "m")) is OstroError
    assert ostro.errors.OstroError is OstroError
