"""OpenAI's routes for models."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from ostro.core.routes import Route
from ostro.entrypoints.api.openai.types import unless_none
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.models.models import ModelEntry
from ostro.entrypoints.operations.operations import Operations


class Model(msgspec.Struct, kw_only=True):
    """A model. `max_model_len` is the context length; `root` and `parent` are the model of an
    adapter. The names are vLLM's.
    """

    id: str
    created: int
    max_model_len: int | None
    state: str
    object: Literal["model"] = "model"
    owned_by: str = "ostro"
    root: str | UnsetType = UNSET
    parent: str | UnsetType = UNSET
    adapter_generation: str | UnsetType = UNSET


class ModelListRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The list of models has no parameters."""


class ModelList(msgspec.Struct, kw_only=True):
    """The models, followed by their adapters."""

    data: list[Model]
    object: Literal["list"] = "list"


async def list_models(
    operations: Operations, caller: Caller, request: ModelListRequest
) -> ModelList:
    """List the models, followed by their adapters."""
    return ModelList(data=[card(entry) for entry in await operations.models(caller)])


async def get_model(operations: Operations, caller: Caller, request: None, *, id: str) -> Model:
    """Describe a model or an adapter."""
    return card(operations.model(id, caller))


def card(entry: ModelEntry) -> Model:
    return Model(
        id=entry.id,
        created=entry.created,
        max_model_len=entry.context,
        root=unless_none(entry.parent),
        parent=unless_none(entry.parent),
        adapter_generation=unless_none(entry.generation),
        state=entry.state,
    )


ROUTES: tuple[Route, ...] = (
    Route(
        name="GET /v1/models",
        handler=list_models,
        request=ModelListRequest,
        response=ModelList,
        error_statuses=(400,),
    ),
    Route(
        name="GET /v1/models/{id:path}",
        handler=get_model,
        response=Model,
        error_statuses=(404,),
    ),
)
