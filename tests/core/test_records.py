"""Records: the deprecated arguments of an architecture."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest

from ostro.core.deprecated import RemovedInOstro1
from ostro.core.records import Architecture, Conformance

REQUIRED: Mapping[str, Any] = {"name": "x", "api": (0, 2), "config": "a:b", "model": "a:b"}
OLD: Mapping[str, Any] = {
    "tiny": {"hidden_size": 8},
    "wide": {"hidden_size": 256},
    "reference": "a:Reference",
    "mutants": "a:mutants",
    "examples": "a:examples",
}
NEW = Architecture(**REQUIRED, conformance=Conformance(**OLD))


def test_every_field_of_conformance_was_one_of_the_architecture() -> None:
    assert [field.name for field in fields(Conformance)] == list(OLD)


def test_the_old_arguments_of_an_architecture_work_and_warn() -> None:
    said = (
        r"^Architecture 'x': tiny=\.\.\., .*examples=\.\.\. is deprecated: "
        r"use conformance=Conformance\(tiny=\.\.\., .*examples=\.\.\.\)$"
    )
    with pytest.warns(RemovedInOstro1, match=said) as found:
        old = Architecture(**REQUIRED, **OLD)
    assert old == NEW and len(found) == 1 and found[0].filename == __file__


@pytest.mark.parametrize("name", OLD)
def test_one_old_argument_changes_one_field(name: str) -> None:
    arguments: Mapping[str, Any] = {name: None}
    with pytest.warns(RemovedInOstro1, match=f"use conformance=Conformance\\({name}=") as found:
        changed = replace(NEW, **arguments)
    assert changed == replace(NEW, conformance=replace(NEW.conformance, **arguments))
    assert len(found) == 1


def test_a_copy_of_a_record_with_old_arguments_keeps_them_and_does_not_warn() -> None:
    with pytest.warns(RemovedInOstro1):
        old = Architecture(**REQUIRED, **OLD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy = replace(old, name="y")
    assert copy == replace(NEW, name="y")


def test_unknown_and_missing_arguments_are_errors() -> None:
    arguments: Mapping[str, Any] = {**REQUIRED, "tinny": {}}
    with pytest.raises(TypeError, match="tinny"):
        Architecture(**arguments)
    with pytest.raises(TypeError, match=r"Architecture.* missing 3 required"):
        Architecture(name="x")  # type: ignore[call-arg]
