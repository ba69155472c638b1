"""Read and validate the messages and prompts of requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import to_builtins

from ostro.errors import ContextLengthExceeded, RequestError, Unsupported
from ostro.pipelines import RESERVED_TEMPLATE_VARIABLES as RESERVED
from ostro.pipelines import (
    ChatRequest,
    ChatTemplate,
    ContentPart,
    Message,
    TemplateFeatures,
    split_media,
)
from ostro.pipelines import RequestMedium as Medium

MAX_MESSAGES = 10_000
MAX_BUDGET = 2**31
"""The largest number of tokens of reasoning."""
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
ADDRESSES = {
    "image_url": "image_url",
    "input_image": "image_url",
    "audio_url": "audio_url",
    "video_url": "video_url",
}
"""Types of content parts with a URL, and the field that contains it."""

EFFORT = "reasoning_effort"
"""The option of templates that states the effort of reasoning."""
SWITCHES = frozenset({"enable_thinking", "thinking"})
"""Options of templates that enable or disable reasoning."""
END = "ostro-end-of-the-prompt"
"""Marks the end of a final message that is continued, until the template has rendered it."""


def read_conversation(
    request: ChatRequest, limit: int | None = None
) -> tuple[list[Mapping[str, Any]], list[Medium]]:
    """The messages for the chat template, and their media in order.

    limit: on the tokens of the prompt; a message has one at least. Raises ContextLengthExceeded for
    more messages, and RequestError naming a malformed message.
    """
    given = request.messages
    messages = [Message(role="user", content=given)] if isinstance(given, str) else given
    if not 0 < len(messages) <= MAX_MESSAGES:
        raise RequestError(
            f"messages: got {len(messages)}, expected 1..{MAX_MESSAGES}", param="messages"
        )
    if limit is not None and len(messages) > limit:
        raise ContextLengthExceeded(
            f"the context is {limit} tokens and there are {len(messages)} messages; send fewer",
            param="messages",
        )
    for i, message in enumerate(messages):
        check_message(message, f"messages[{i}]")
    continued = bool(request.continue_final_message)
    if continued:
        check_continued(request, messages[-1])
    elif messages[-1].role == "assistant" and request.add_generation_prompt is not False:
        raise RequestError(
            "the last message has the role assistant; end with another role, or continue it with "
            "continue_final_message",
            param="messages",
        )
    turns = with_tools([plain(message) for message in messages])
    if continued:
        turns[-1]["content"] = marked(turns[-1]["content"])
    return split_media(turns)


def check_continued(request: ChatRequest, final: Message) -> None:
    """Raise RequestError unless the final message is one that can be continued."""
    name = "continue_final_message"
    if request.add_generation_prompt:
        raise RequestError(f"{name} excludes add_generation_prompt", param=name)
    parts = final.content if isinstance(final.content, list) else []
    ends_in_text = final.content is not None and (not parts or parts[-1].type == "text")
    if final.role != "assistant" or final.tool_calls or not ends_in_text:
        raise RequestError(
            f"{name} needs a final message of the role assistant that ends in text", param=name
        )


def marked(content: Any) -> Any:
    """A content with `END` after its text."""
    if isinstance(content, str):
        return content + END
    return [*content[:-1], {**content[-1], "text": content[-1]["text"] + END}]


def with_tools(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with functions as tools. Raises RequestError for a result without its call."""
    known: dict[str, str] = {}  # ids of calls, and of the newest call of each function's name
    for i, turn in enumerate(turns):
        where = f"messages[{i}]"
        if call := turn.pop("function_call", None):
            if turn.get("tool_calls"):
                raise RequestError(f"{where}: function_call excludes tool_calls", param=where)
            call = {"id": f"call{i:05}", "type": "function", "function": call}
            turn["tool_calls"] = [call]
            known[f"function {call['function']['name']}"] = call["id"]
        for call in turn.get("tool_calls") or ():
            known[str(call.get("id"))] = str(call.get("id"))
        if turn["role"] == "function":
            turn |= {"role": "tool", "tool_call_id": f"function {turn['name']}"}
        if turn["role"] == "tool":
            id = turn["tool_call_id"]
            if id not in known:
                raise RequestError(
                    f"{where}: no earlier message calls {id!r:.60}", param=f"{where}.tool_call_id"
                )
            turn["tool_call_id"] = known[id]
    return turns


def plain(message: Message) -> dict[str, Any]:
    """A message as plain data, without the fields that were not given. A refusal is its text."""
    fields = {name: x for name, x in to_builtins(message).items() if x is not None}
    fields.pop("annotations", None)
    if (refusal := fields.pop("refusal", None)) is not None and not message.content:
        fields["content"] = refusal
    if isinstance(message.content, list):
        fields["content"] = [
            {"type": "text", "text": part.text if part.type == "text" else part.refusal}
            if part.type in ("text", "refusal")
            else {name: x for name, x in to_builtins(part).items() if x is not None}
            for part in message.content
        ]
    return fields


def has_media(request: ChatRequest) -> bool:
    """Whether a message has parts other than text."""
    messages = request.messages if isinstance(request.messages, list) else []
    contents = [message.content for message in messages if isinstance(message.content, list)]
    return any(part.type != "text" for content in contents for part in content)


def check_message(message: Message, where: str) -> None:
    """Raise RequestError unless a text model can take this message."""
    if message.role not in ROLES:
        raise RequestError(
            f"{where}: unknown role {message.role!r:.40}; expected one of {', '.join(ROLES)}",
            param=f"{where}.role",
        )
    if message.role == "tool" and not message.tool_call_id:
        raise RequestError(
            f"{where}: a tool message needs tool_call_id", param=f"{where}.tool_call_id"
        )
    if message.role == "function" and not message.name:
        raise RequestError(f"{where}: a function message needs name", param=f"{where}.name")
    if message.role != "assistant":
        for name in ("tool_calls", "function_call", "reasoning", "reasoning_content", "refusal"):
            if getattr(message, name):
                raise RequestError(
                    f"{where}: {name} belongs to the role assistant", param=f"{where}.{name}"
                )
    if message.audio is not None:
        raise Unsupported(f"{where}: audio answers are not supported", param=f"{where}.audio")
    if message.refusal and message.content:
        raise RequestError(f"{where}: refusal excludes content", param=f"{where}.refusal")
    where = f"{where}.content"
    called = message.tool_calls or message.function_call or message.refusal
    if message.content is None and not called:
        raise RequestError(f"{where} is missing", param=where)
    if isinstance(message.content, list):
        if not message.content and not called:
            raise RequestError(f"{where} is an empty list", param=where)
        for part in message.content:
            check_part(part, where)


def check_part(part: ContentPart, where: str) -> None:
    """Raise RequestError unless a part is text, or a medium with a URL or data."""
    if part.type in ("text", "refusal"):
        good = getattr(part, part.type) is not None
    elif part.type == "input_audio":
        good = isinstance((part.input_audio or {}).get("data"), str)
    else:
        value = getattr(part, ADDRESSES.get(part.type, ""), None)
        good = isinstance(value.get("url") if isinstance(value, dict) else value, str)
    if not good:
        raise RequestError(
            f"{where}: unknown or empty content part of type {part.type!r:.40}; expected text, "
            "refusal, image_url, input_audio, audio_url, video_url or file",
            param=where,
        )


def options_of(request: ChatRequest, template: ChatTemplate | None) -> dict[str, Any]:
    """The template's options; the template refuses unknown ones.

    Raises RequestError for names that a request may not set, Unsupported for an effort that the
    template cannot honour.
    """
    options = dict(request.chat_template_kwargs or {})
    if taken := RESERVED & options.keys():
        raise RequestError(
            f"{min(taken)!r} is set by the server and is not a chat template option",
            param="chat_template_kwargs",
        )
    if request.reasoning_effort is not None and template is not None:
        options = {**effort_options(request.reasoning_effort, template.features), **options}
    return options


def effort_options(effort: str, features: TemplateFeatures) -> dict[str, Any]:
    """The template's options for an effort.

    A template that only enables or disables reasoning gets that for "none" and the other efforts.
    Raises Unsupported for an effort if the template does neither. "none" is then a budget: see
    `budget_of`.
    """
    switches = sorted(SWITCHES & features.variables)
    if EFFORT in features.variables and (effort != "none" or knows_none(features)):
        return {EFFORT: effort}
    if switches or effort == "none":
        return dict.fromkeys(switches, effort != "none")
    raise Unsupported(
        f"{EFFORT}: the chat template of this model reads neither an effort nor "
        f"{' or '.join(sorted(SWITCHES))}; leave it out",
        param=EFFORT,
    )


def knows_none(features: TemplateFeatures) -> bool:
    """Whether a template that reads the effort knows "none", and has no switch."""
    return "none" in features.constants and not SWITCHES & features.variables


def budget_of(request: ChatRequest, template: ChatTemplate | None, reasons: bool) -> int | None:
    """The most tokens of reasoning; None without a limit.

    The effort "none" ends reasoning at once where the template cannot disable it. `reasons`: the
    template has markers of reasoning. Raises RequestError for a number out of range.
    """
    if (budget := request.thinking_budget) is not None and not 0 <= budget <= MAX_BUDGET:
        raise RequestError(
            f"thinking_budget={budget} is not within 0..{MAX_BUDGET}", param="thinking_budget"
        )
    if budget is not None or request.reasoning_effort != "none":
        return budget
    if template is None or not reasons or effort_options("none", template.features):
        return None
    return 0


def prompts_of(prompt: str | Sequence[str | int | list[int]]) -> list[str | list[int]]:
    """The prompts of a completion, each text or token ids. Raises RequestError for a mixture."""
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(isinstance(item, int) for item in prompt):
        return [[item for item in prompt if isinstance(item, int)]]
    texts = [item for item in prompt if isinstance(item, str)]
    lists = [item for item in prompt if isinstance(item, list)]
    if not prompt or len(prompt) not in (len(texts), len(lists)):
        raise RequestError(
            "expected text, a list of texts, token ids, or a list of lists of token ids as prompt",
            param="prompt",
        )
    return [*texts, *lists]


@contextmanager
def naming_messages() -> Iterator[None]:
    """Let errors of the prompt of a chat name the field `messages`. Also a decorator."""
    try:
        yield
    except RequestError as error:
        if error.param == "prompt":
            error.param = "messages"
        raise
