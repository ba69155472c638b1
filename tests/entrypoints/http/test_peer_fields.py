"""Fields of other servers on /v1/chat/completions, one by one, and docs/peer-fields.md."""

from __future__ import annotations

from typing import Any

import pytest
from echo.model import TEMPLATE
from echo.server import Running, Start

from .peer_fields import FIELDS, PAGE, class_of, page

ALL = {name: value for fields in FIELDS.values() for name, value in fields.items()}


@pytest.fixture(scope="module")
def server(start: Start) -> Running:
    """A server as `ostro serve` starts it."""
    return start(template=TEMPLATE, strict_fields=False)


@pytest.fixture(scope="module")
def strict(start: Start) -> Running:
    """A server with `--strict-fields`."""
    return start(template=TEMPLATE)


def test_the_page_is_up_to_date() -> None:
    expected = page().rstrip() + "\n"
    assert PAGE.read_text() == expected, "run: python tests/entrypoints/http/peer_fields.py"
    assert {class_of(name) for name in ALL} == {"honoured", "accepted", "rejected", "ignored"}


@pytest.mark.parametrize(("name", "value"), ALL.items(), ids=[*ALL])
def test_a_field_has_its_class(server: Running, strict: Running, name: str, value: Any) -> None:
    kind, seen = class_of(name), len(server.echo.seen)
    answer = server.chat(**{name: value})
    refused = strict.chat(**{name: value})
    if kind == "rejected":
        for response in (answer, refused):
            assert response.status_code == 400 and response.json()["error"]["param"] == name
        return
    assert answer.status_code == 200, answer.text
    assert answer.headers.get("x-ostro-ignored") == (name if kind == "ignored" else None)
    assert refused.status_code == (400 if kind == "ignored" else 200), refused.text
    server.chat()
    one, other = server.echo.seen[seen:]
    same = (one.tokens, one.sampling) == (other.tokens, other.sampling)
    assert same or kind == "honoured"


def test_documents_are_those_of_the_template(start: Start) -> None:
    server = start(
        template="{% for d in documents %}{{ d.title }}{% endfor %}{{ messages[0].content }}"
    )
    for fields in (
        {"documents": [{"title": "one"}]},
        {"chat_template_kwargs": {"documents": [{"title": "one"}]}},
        {
            "documents": [{"title": "two"}],
            "chat_template_kwargs": {"documents": [{"title": "one"}]},
        },
    ):
        assert server.chat(**fields).status_code == 200
        assert bytes(t for t in server.echo.seen[-1].tokens if t < 256).startswith(b"onehi")
