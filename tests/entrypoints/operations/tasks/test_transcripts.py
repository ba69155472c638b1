"""The events of a transcript."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ostro.core.tasks import Segment
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.tasks.media import TranscriptionRequest


def segment(text: str) -> Segment:
    return Segment(
        id=0,
        seek=0,
        start=0,
        end=1,
        text=text,
        tokens=[1],
        temperature=0,
        avg_logprob=0,
        compression_ratio=1,
        no_speech_prob=0,
    )


def operations_of(texts: Sequence[str]) -> Operations:
    """Operations of a model that hears these segments in any audio."""

    async def stream(audio: bytes, task: Any) -> AsyncGenerator[Segment, None]:
        for text in texts:
            yield segment(text)

    async def admit(*_: Any) -> Any:
        return SimpleNamespace(pipeline=pipeline, adapters=())

    task = SimpleNamespace(language="en", audio_tokens=1, prompt=[], generations=None)
    pipeline = SimpleNamespace(stream=stream, new_task=lambda *_: task)
    service: Any = SimpleNamespace(admit=admit)
    return Operations(service)


@pytest.mark.parametrize(
    ("texts", "pieces"),
    [
        ([" Hello.", " Bye. "], ["Hello.", " Bye."]),
        ([" One ", "two\n", " ", "three "], ["One", " two", "", "\n three"]),
        ([" ", " a"], ["", "a"]),
        (["  "], [""]),
        ([], []),
    ],
)
def test_the_pieces_of_a_transcript_are_its_text(texts: list[str], pieces: list[str]) -> None:
    async def main() -> list[Any]:
        request = TranscriptionRequest()
        events = await operations_of(texts).transcript_events(request, b"")
        return [event async for event in events]

    *parts, final = asyncio.run(main())
    assert [part.text for part in parts] == pieces
    assert final.text == "".join(pieces) == "".join(texts).strip()
    assert final.final and final.output_tokens == len(texts)
