"""The model and the adapters of a request: the same fields for all tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec


class AdapterChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An adapter, selected by name or by generation, and its scale."""

    name: str | None = None
    generation: str | None = None
    scale: float | None = None


class ModelTarget(msgspec.Struct, kw_only=True):
    """The target of a request: a model, and adapters, each as a name or an `AdapterChoice`.

    `model` may also be the name of an adapter, or "model:adapter". Fields in `accepted` have no
    effect; fields in `echoed` only appear in the response. Both map names to the reason. Names in
    `unsupported`, with a description each, are rejected. Fields in `extensions` extend the API that
    the request is named after.
    """

    accepted: ClassVar[Mapping[str, str]] = {"user": "no abuse detection that needs it"}
    echoed: ClassVar[Mapping[str, str]] = {}
    unsupported: ClassVar[Mapping[str, str]] = {}
    extensions: ClassVar[frozenset[str]] = frozenset(("adapter", "adapters"))

    model: str | None = None
    adapters: list[str | AdapterChoice] | None = None
    adapter: str | AdapterChoice | None = None
    user: str | None = None
