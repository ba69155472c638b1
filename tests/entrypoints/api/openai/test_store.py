"""The stores of OpenAI's API, as the documents of a server have them."""

from __future__ import annotations

from typing import Any

import pytest
from echo.server import Running, Start, make_state

from ostro.entrypoints.api.openai.chat_store import StoredChats
from ostro.entrypoints.api.openai.responses.conversations import Conversations
from ostro.entrypoints.api.openai.responses.responses import Responses
from ostro.entrypoints.api.openai.responses.runner import ResponseRunner


@pytest.fixture
def documents(start: Start) -> Any:
    running: Running = start(state=make_state("memory"))
    return running.app.state.operations.documents


def test_a_new_response_in_the_background_wakes_its_runner(documents: Any) -> None:
    """Else it would wait until the runner looks for jobs by itself."""
    [runner] = [each for each in documents.runners if isinstance(each, ResponseRunner)]
    assert documents.get(Responses).notify == runner.notify


def test_all_stores_share_the_state_of_the_server(documents: Any) -> None:
    assert documents.get(StoredChats).state is documents.state
    assert documents.get(Conversations) is documents.get(Responses).conversations
    assert documents.get(Conversations).state is documents.state
