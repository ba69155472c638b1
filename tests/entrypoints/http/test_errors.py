"""Error objects in the form of OpenAI's API."""

from __future__ import annotations

import msgspec
import pytest

from ostro.core.errors import ConfigError, EngineDied, RequestError
from ostro.entrypoints.http.errors import respond_to
from ostro.entrypoints.operations.access.quotas import RateLimited
from ostro.entrypoints.operations.requests.errors import error_content, error_content_of


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("cannot identify <_io.BytesIO object at 0x7f4e2a0a1710>", "<_io.BytesIO object>"),
        ("<function f at 0xDEADBEEF> and <g at 0x1>", "<function f> and <g>"),
        ("look at 0 and at 0xyz", "look at 0 and at 0xyz"),
    ],
)
def test_heap_addresses_are_removed(message: str, shown: str) -> None:
    assert error_content(400, message, None).error.message.endswith(shown)
    assert error_content_of(RequestError(message)).error.message.endswith(shown)


def test_the_cause_of_an_engine_death_is_hidden() -> None:
    error = msgspec.to_builtins(error_content_of(EngineDied("killed by SIGKILL")))["error"]
    assert "SIGKILL" not in error["message"] and error["type"] == "server_error"


def test_types_follow_the_status() -> None:
    assert error_content(401, "m", "c").error.type == "authentication_error"
    assert msgspec.to_builtins(error_content(404, "m", "c", "p").error) == {
        "message": "m",
        "type": "invalid_request_error",
        "param": "p",
        "code": "c",
    }
    assert error_content_of(ConfigError("m", param="p")).error.param == "p"


@pytest.mark.parametrize(
    ("seconds", "header"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (1.2, "2"), (59.01, "60")]
)
def test_a_retry_is_not_too_early(seconds: float, header: str) -> None:
    assert respond_to(RateLimited("wait", seconds)).headers["retry-after"] == header
