"""Conversations, templates and a tokenizer of single bytes, for tests of chats."""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from ostro.core.chat import ChatTemplate
from ostro.core.errors import TemplateError
from ostro.core.tokenizer import Tokenizer

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
START, END = "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Messages = list[dict[str, Any]]
USER: Messages = [
    {"role": "user", "content": "Is 1 < 2 & <b>bold</b>?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Thanks!"},
]
SYSTEM: Messages = [{"role": "system", "content": "Be kind."}, *USER]
THOUGHT: Messages = [
    USER[0],
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."},
    USER[2],
]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'The weather, in °C or "words" <i>',
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Which?"}},
            "required": ["city"],
        },
    },
}
CALL = {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}
CALLED: Messages = [
    USER[0],
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "abcdefghi", "type": "function", "function": CALL}],
    },
    {"role": "tool", "tool_call_id": "abcdefghi", "name": "weather", "content": "sunny"},
    {"role": "user", "content": "Thanks!"},
]
CONVERSATIONS: dict[str, tuple[Messages, dict[str, Any]]] = {
    "system": (SYSTEM, {}),
    "user": (USER, {}),
    "user, closed": (USER, {"add_generation_prompt": False}),
    "tools": (SYSTEM, {"tools": [TOOL]}),
    "thought": (THOUGHT, {}),
    "thinking": (USER, {"enable_thinking": True, "thinking": True}),
    "not thinking": (USER, {"enable_thinking": False, "thinking": False}),
    "called": (CALLED, {"tools": [TOOL]}),
}


def attempt(template: ChatTemplate, messages: Messages, **how: Any) -> str | None:
    """Render a conversation; None if the template raises an error."""
    try:
        return template.render(messages, **how)
    except TemplateError:
        return None


def small(*controls: str, chat_template: Any = None) -> Tokenizer:
    """A tokenizer of single bytes and one merge, with control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {character: id for id, character in enumerate([*alphabet, "ab"])}
    backend = tokenizers.Tokenizer(models.BPE(ids, [("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in controls])
    backend.add_tokens([AddedToken("<think>", normalized=False)])
    return Tokenizer(backend, chat_template=chat_template)
