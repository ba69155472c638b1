"""Two turns with a tool in litellm: python agents_litellm.py MODEL BASE_URL PROMPT.

With the Python that has it. The tool makes a file in the working folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import litellm

TOOL = {
    "type": "function",
    "function": {
        "name": "make",
        "description": "Makes a file.",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        },
    },
}


def main() -> None:
    model, base, text = sys.argv[1:]
    messages: list[Any] = [{"role": "user", "content": text}]
    for _ in range(2):
        chunks = litellm.completion(
            model=model,
            api_base=base,
            api_key="none",
            messages=messages,
            tools=[TOOL],
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=4096,
        )
        message = litellm.stream_chunk_builder(list(chunks), messages=messages).choices[0].message
        # An empty text would become a text of litellm's own on some routes.
        messages.append(
            {**message.model_dump(exclude_none=True), "content": message.content or None}
        )
        for call in message.tool_calls or ():
            name = json.loads(call.function.arguments)["name"]
            Path(name).touch()
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"made {name}"})
    print(messages[-1]["content"])


if __name__ == "__main__":
    main()
