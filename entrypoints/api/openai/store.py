"""The stores of OpenAI's API: chat completions, responses and conversations."""

from __future__ import annotations

from ostro.entrypoints.api.openai.chat_store import StoredChats
from ostro.entrypoints.api.openai.responses.responses import Responses
from ostro.entrypoints.api.openai.responses.runner import ResponseRunner
from ostro.entrypoints.operations.executor import Acting
from ostro.entrypoints.operations.operations import Operations


def add_stores(operations: Operations, acting: Acting) -> None:
    """Add the stores to the documents of a server. acting: as in `ResponseRunner`."""
    documents = operations.documents
    responses = Responses(documents.state, operations)
    runner = ResponseRunner(responses, acting)
    responses.notify = runner.notify
    documents.add_runner(runner)
    for store in (StoredChats(documents.state), responses, responses.conversations):
        documents.add(store)
