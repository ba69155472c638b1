"""Responses of the starter model: the text of chat completions, and hits of the prefix cache."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from tiny.server import serving

from ostro.core.settings import STARTER, Settings

EXACT: dict[str, Any] = {"dtype": "float32", "deterministic": True, "threads": 1}


@pytest.mark.slow
def test_ten_turns_are_those_of_chat_completions_and_hit_the_prefix_cache() -> None:
    settings = Settings(reference=STARTER, adapters=("pirate=starter/pirate",), **EXACT)
    greedy: Any = {"temperature": 0.0}
    with (
        serving(settings) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
    ):
        for model in ("starter", "pirate"):
            messages: list[Any] = []
            previous: str | None = None
            for turn in range(10):
                text = f"What is {turn} plus {turn}?"
                messages.append({"role": "user", "content": text})
                found = client.responses.create(
                    model=model,
                    input=text,
                    previous_response_id=previous,
                    max_output_tokens=16,
                    **greedy,
                )
                assert found.usage is not None
                if turn == 9:  # the first turns are shorter than a block of the cache
                    assert found.usage.input_tokens_details.cached_tokens > 0
                if turn in (0, 9):
                    chat = client.chat.completions.create(
                        model=model, messages=messages, max_tokens=16, **greedy
                    )
                    assert found.output_text == chat.choices[0].message.content
                    assert found.usage.input_tokens == chat.usage.prompt_tokens  # type: ignore[union-attr]
                messages.append({"role": "assistant", "content": found.output_text})
                previous = found.id
