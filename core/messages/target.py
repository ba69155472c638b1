"""The model and the adapters of a request: the same fields for all tasks."""

from __future__ import annotations

import msgspec


class AdapterChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An adapter, selected by name or by generation, and its scale."""

    name: str | None = None
    generation: str | None = None
    scale: float | None = None


class ModelTarget(msgspec.Struct, kw_only=True):
    """The target of a request: a model, and adapters, each as a name or an `AdapterChoice`.

    `model` may also be the name of an adapter, or "model:adapter".
    """

    model: str | None = None
    adapters: list[str | AdapterChoice] | None = None
    adapter: str | AdapterChoice | None = None
