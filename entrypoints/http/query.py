"""Reads requests from query strings."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request

from ostro.entrypoints.http.fields import parse_fields

R = TypeVar("R", bound=msgspec.Struct)


def parse_query(request: Request, kind: type[R]) -> R:
    """Return the request in a query string. Raises as `parse_fields`."""
    return parse_fields(request.query_params.multi_items(), kind, "parameter")
