"""Units and names of fields of ranking requests, without a model."""

from __future__ import annotations

from typing import Any

import pytest

from ostro.core.errors import RequestError
from ostro.plugins.apis.ranking.routes import either, search_units
from ostro.plugins.apis.ranking.schema import ScoreBody


@pytest.mark.parametrize(("documents", "units"), [(1, 1), (99, 1), (100, 1), (101, 2), (1000, 10)])
def test_each_hundred_documents_that_are_begun_are_a_unit(documents: int, units: int) -> None:
    assert search_units(documents) == units


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"text_1": "a"}, ("text_1", ["a"])),
        ({"queries": ["a", "b"]}, ("queries", ["a", "b"])),
        ({}, "got none"),
        ({"text_1": "a", "queries": ["b"]}, "got both"),
    ],
)
def test_one_name_of_a_field_is_given(
    fields: dict[str, Any], found: tuple[str, list[str]] | str
) -> None:
    body = ScoreBody(**fields)
    if isinstance(found, tuple):
        assert either(body, "text_1", "queries") == found
    else:
        with pytest.raises(RequestError, match=found):
            either(body, "text_1", "queries")
