"""The list of models: those of the server, followed by their adapters."""

from __future__ import annotations

from dataclasses import dataclass

from ostro.core.messages.commands import ModelInfo
from ostro.core.pipeline import ServedModel
from ostro.entrypoints.operations.access.caller import ANYONE, Caller
from ostro.entrypoints.operations.models.service import Service


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """A model, or an adapter with the model `parent`.

    created is in seconds since 1970, context in tokens, None while the model is loading. generation
    is that of an adapter's weights. served has the config, the chat template and the files of the
    model, or of the adapter's; None while it is loading. state is "loaded", "loading", "unloaded"
    or "failed".
    """

    id: str
    created: int
    context: int | None
    parent: str | None = None
    generation: str | None = None
    served: ServedModel | None = None
    state: str = "loaded"


async def list_models(service: Service, caller: Caller = ANYONE) -> list[ModelEntry]:
    """Return the models and adapters that a caller may use."""
    if service.resolves and service.ready:  # requests may have registered adapters
        await service.refresh_adapters()
    models = [model_entry(service, name) for name in filter(caller.may_use, service.names)]
    adapters = service.adapter_ids(caller).items()
    return [*models, *(adapter_entry(service, *adapter, id) for id, adapter in adapters)]


def find_model(service: Service, id: str, caller: Caller = ANYONE) -> ModelEntry:
    """Return the model or the adapter of an id. Raises NotFound if the caller cannot use it."""
    model, adapter = service.locate(id, caller)
    hidden = not caller.may_use(model)
    if adapter is None and not hidden:
        return model_entry(service, model)
    if hidden or adapter is None or adapter not in service.adapters.of(model):
        raise service.unknown(id, caller)
    if not caller.may_apply(adapter):
        raise service.unknown(id, caller)
    return adapter_entry(service, model, adapter, id)


def model_entry(service: Service, name: str) -> ModelEntry:
    info = service.engine.info
    served = service.served.get(name)
    fallback = ModelInfo(context=served.context) if served is not None else None
    facts = None if info is None else info.models.get(name, fallback)
    context = None if facts is None else facts.context
    state = service.state(name)
    return ModelEntry(id=name, created=service.started, context=context, served=served, state=state)


def adapter_entry(service: Service, model: str, name: str, id: str) -> ModelEntry:
    entry = model_entry(service, model)
    return ModelEntry(
        id=id,
        created=entry.created,
        context=entry.context,
        parent=model,
        generation=service.adapters.of(model)[name].generation or None,
        served=entry.served,
        state=entry.state,
    )
