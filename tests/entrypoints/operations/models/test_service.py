"""Admission of requests to models: by name, or by their task."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ostro.core.errors import NotFound, Unsupported
from ostro.core.messages.commands import AdapterInfo
from ostro.core.messages.target import ModelTarget
from ostro.entrypoints.operations.access.caller import Caller, Forbidden
from ostro.entrypoints.operations.models.service import Service


@pytest.fixture
def service() -> Service:
    """Two chat models, of which the first embeds too, and three models of other tasks."""
    engine: Any = SimpleNamespace(admit=lambda: None)
    service = Service(engine, "chat", "other", "vectors", "more", "judge")
    service.models["chat"] = {"text": "text of chat", "embed": "vectors of chat"}
    service.models["other"] = {"text": "text of other"}
    service.models["vectors"] = {"embed": "vectors of vectors"}
    service.models["more"] = {"embed": "vectors of more"}
    service.models["judge"] = {"classify": "labels", "rerank": "ranks"}
    return service


@pytest.mark.parametrize(
    ("target", "task", "model"),
    [
        ({}, "text", "chat"),
        ({}, "embed", "vectors"),
        ({"model": "default"}, "embed", "vectors"),
        ({"model": "chat"}, "embed", "chat"),
        ({"model": "more"}, "embed", "more"),
        ({"adapter": "sql"}, "embed", "chat"),
        ({}, "rerank", "judge"),
        ({"adapter": "sql"}, "rerank", "judge"),
    ],
)
def test_the_model_of_a_request(
    service: Service, target: dict[str, Any], task: str, model: str
) -> None:
    admitted = asyncio.run(service.admit(ModelTarget(**target), task))
    assert (admitted.model, admitted.pipeline) == (model, service.models[model][task])


def test_a_task_that_the_model_does_not_support(service: Service) -> None:
    with pytest.raises(Unsupported, match="other supports text, not embed; use chat, vectors"):
        asyncio.run(service.admit(ModelTarget(model="other"), "embed"))
    with pytest.raises(Unsupported, match="chat supports text, embed, not speak"):
        asyncio.run(service.admit(ModelTarget(), "speak"))


@pytest.mark.parametrize(
    ("target", "asked"),
    [({}, "default"), ({"model": "default"}, "default"), ({"model": "fast"}, "fast")],
)
def test_a_refusal_names_what_was_asked_for(
    service: Service, target: dict[str, Any], asked: str
) -> None:
    """Errors do not name models that the key may not use."""
    service.aliases["fast"] = "chat"
    limited = Caller(models=frozenset({"judge"}))
    with pytest.raises(Forbidden) as refused:
        asyncio.run(service.admit(ModelTarget(**target), "text", limited))
    assert str(refused.value) == f"this API key may not use the model {asked!r}"


def test_the_model_of_an_adapter_is_not_told(service: Service) -> None:
    service.adapters.known["other"] = {"sql": AdapterInfo(name="sql", reference="sql")}
    limited = Caller(models=frozenset({"judge"}))
    with pytest.raises(Forbidden) as refused:
        asyncio.run(service.admit(ModelTarget(model="sql"), "text", limited))
    assert str(refused.value) == "this API key may not use the model 'sql'"


@pytest.mark.parametrize(
    ("name", "model", "adapters"),
    [
        ("other:latest", "other", []),
        ("fast:latest", "other", []),
        ("default:latest", "chat", []),
        ("sql:latest", "other", ["sql"]),
        ("other:sql:latest", "other", ["sql"]),
        ("more:latest", "more", ["latest"]),
        ("latest", "more", ["latest"]),
        ("tagged:latest", "tagged:latest", []),
        ("tagged:latest:latest", "tagged:latest", []),
        ("dotted:latest", "other", ["dotted:latest"]),
    ],
)
def test_the_tag_latest_stands_for_no_tag(
    service: Service, name: str, model: str, adapters: list[str]
) -> None:
    service.aliases["fast"] = "other"
    service.names = (*service.names, "tagged:latest")
    for each in service.names:
        service.models[each] = {"text": f"text of {each}"}
    for owner, adapter in (("other", "sql"), ("other", "dotted:latest"), ("more", "latest")):
        known = service.adapters.known.setdefault(owner, {})
        known[adapter] = AdapterInfo(name=adapter, reference=adapter)
    admitted = asyncio.run(service.admit(ModelTarget(model=name)))
    assert admitted.model == model
    assert [adapter.name for adapter in admitted.adapters] == adapters


@pytest.mark.parametrize("name", ["none:latest", ":latest", "latest:latest"])
def test_the_tag_latest_of_an_unknown_name(service: Service, name: str) -> None:
    with pytest.raises(NotFound, match=f"model '{name}' not found; available: 'chat'"):
        service.locate(name)
    assert service.locate("chat:sql") == ("chat", "sql")
    service.resolves = True
    assert service.locate("chat:latest") == ("chat", None)


def test_the_task_of_a_request_that_several_tasks_can_answer(service: Service) -> None:
    tasks = ("rerank", "embed")
    assert service.task_of(ModelTarget(), tasks) == "rerank"
    assert service.task_of(ModelTarget(model="chat"), tasks) == "embed"
    assert service.task_of(ModelTarget(model="judge"), tasks) == "rerank"
    assert service.task_of(ModelTarget(model="other"), tasks) == "rerank"


def test_the_error_for_an_unknown_name_is_bounded(service: Service) -> None:
    adapters = [AdapterInfo(name=f"a{i}", reference="sql") for i in range(200)]
    service.adapters.known["other"] = {info.name: info for info in adapters}
    message = str(service.unknown("a177"))
    assert "available: 'a177', 'a77', 'a17', 'chat', 'other', " in message
    assert message.endswith("'a10' and 186 more, which GET /v1/models lists")
