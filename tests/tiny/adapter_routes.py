"""Requests to the routes of adapters."""

from __future__ import annotations

from typing import Any

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
LOAD, UNLOAD, LIST = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/lora_adapters"
GENERATION = "0123456789abcdef" * 4


def load(server: Any, name: str, path: str | None = None, **more: Any) -> Any:
    answer = server.post(LOAD, lora_name=name, lora_path=path or name, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: Any, status: int, code: str, param: str | None = None) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == code and (param is None or error["param"] == param), error
    return str(error["message"])


def last(server: Any) -> list[tuple[str, float]]:
    """The adapters that the engine was asked for last."""
    return [(each.name, each.scale) for each in server.echo.seen[-1].adapters]
