"""The base of the bodies of requests to a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ostro.core.messages.target import ModelTarget

TARGET = ModelTarget.__struct_fields__


class ModelBody(ModelTarget, kw_only=True):
    """A body that names a model, and says what becomes of its fields.

    Fields in `accepted` have no effect; fields in `echoed` only appear in the response. Both map
    names to the reason. Names in `unsupported`, with a description each, are rejected. Fields in
    `extensions` extend the API that the request is named after.
    """

    accepted: ClassVar[Mapping[str, str]] = {"user": "no abuse detection that needs it"}
    echoed: ClassVar[Mapping[str, str]] = {}
    unsupported: ClassVar[Mapping[str, str]] = {}
    extensions: ClassVar[frozenset[str]] = frozenset(("adapter", "adapters"))

    user: str | None = None

    @property
    def target(self) -> dict[str, Any]:
        """The fields that select the model and the adapters, for the request of an operation."""
        return {name: getattr(self, name) for name in TARGET}
