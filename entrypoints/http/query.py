"""Reads requests from query strings."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request

from ostro.entrypoints.http.fields import parse_fields

R = TypeVar("R", bound=msgspec.Struct)

BETA = ("beta", "true")


def parse_query(request: Request, kind: type[R]) -> R:
    """Return the request in a query string. Raises as `parse_fields`.

    The namespaces `beta` of the vendors' clients add `beta=true` to the queries of the same routes.
    """
    fields = [field for field in request.query_params.multi_items() if field != BETA]
    return parse_fields(fields, kind, "parameter")
