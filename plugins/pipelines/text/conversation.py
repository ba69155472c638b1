"""Read and validate the messages and prompts of requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ostro.errors import ContextLengthExceeded, RequestError, Unsupported
from ostro.pipelines import (
    RESERVED_TEMPLATE_VARIABLES,
    ChatRequest,
    ChatTemplate,
    ContentPart,
    MediaPart,
    Message,
    TemplateFeatures,
    TextPart,
    ToolCall,
    check_count,
)

MAX_MESSAGES = 10_000
MAX_BUDGET = 2**31
"""The largest number of tokens of reasoning."""
ROLES = ("system", "developer", "user", "assistant", "tool")
EFFORT = "reasoning_effort"
"""The option of templates that states the effort of reasoning."""
SWITCHES = frozenset({"enable_thinking", "thinking"})
"""Options of templates that enable or disable reasoning."""
END = "ostro-end-of-the-prompt"
"""Marks the end of a final message that is continued, until the template has rendered it."""


def read_conversation(
    request: ChatRequest, limit: int | None = None
) -> tuple[list[dict[str, Any]], list[MediaPart]]:
    """The messages for the chat template, and their media in order.

    limit: on the tokens of the prompt; a message has one at least. Raises ContextLengthExceeded for
    more messages, and RequestError naming a malformed message.
    """
    messages = request.messages
    if not 0 < len(messages) <= MAX_MESSAGES:
        raise RequestError(
            f"messages: got {len(messages)}, expected 1..{MAX_MESSAGES}", param="messages"
        )
    if limit is not None and len(messages) > limit:
        raise ContextLengthExceeded.of(
            limit,
            len(messages),
            counted=False,
            reason=f"each of {len(messages)} messages has one",
            param="messages",
        )
    for i, message in enumerate(messages):
        check_message(message, f"messages[{i}]")
    check_calls(messages)
    parts = [part for message in messages for part in message.parts]
    media = [part for part in parts if isinstance(part, MediaPart)]
    check_count(media)
    turns = [template_message(message) for message in messages]
    if request.continue_final_message:
        check_continued(request, messages[-1])
        turns[-1]["content"] = marked(turns[-1]["content"])
    elif messages[-1].tool_calls and request.add_generation_prompt is not False:
        # The client has lost the results: an answer without them would invent them.
        raise RequestError(
            "the last message calls tools and their results are missing; add a message of the role "
            "tool for each call, or one of the user",
            param="messages",
        )
    return turns, media


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
    if message.role != "assistant":
        for name in ("tool_calls", "reasoning"):
            if getattr(message, name):
                raise RequestError(
                    f"{where}: {name} belongs to the role assistant", param=f"{where}.{name}"
                )
    where = f"{where}.content"
    if message.tool_calls or (message.role == "assistant" and message.reasoning is not None):
        return  # an answer may end before its text
    if message.content is None:
        raise RequestError(f"{where} is missing", param=where)
    if not message.content and not isinstance(message.content, str):
        raise RequestError(f"{where} is an empty list", param=where)


def check_calls(messages: Sequence[Message]) -> None:
    """Raise RequestError for the result of a tool without its call."""
    known = set[str]()
    for i, message in enumerate(messages):
        known.update(call.id for call in message.tool_calls)
        if message.role == "tool" and message.tool_call_id not in known:
            where = f"messages[{i}]"
            raise RequestError(
                f"{where}: no earlier message calls {message.tool_call_id!r:.60}",
                param=f"{where}.tool_call_id",
            )


def check_continued(request: ChatRequest, final: Message) -> None:
    """Raise RequestError unless the final message is one that can be continued."""
    name = "continue_final_message"
    if request.add_generation_prompt:
        raise RequestError(f"{name} excludes add_generation_prompt", param=name)
    content = final.content
    ends_in_text = isinstance(content, str) or (content and isinstance(content[-1], TextPart))
    if final.role != "assistant" or final.tool_calls or not ends_in_text:
        raise RequestError(
            f"{name} needs a final message of the role assistant that ends in text", param=name
        )


def marked(content: Any) -> Any:
    """A content with `END` after its text."""
    if isinstance(content, str):
        return content + END
    return [*content[:-1], {**content[-1], "text": content[-1]["text"] + END}]


def template_message(message: Message) -> dict[str, Any]:
    """A message in the form that chat templates read, without the fields that were not given."""
    calls = [template_call(call) for call in message.tool_calls]
    fields = {
        "role": message.role,
        "content": message.content
        if message.content is None or isinstance(message.content, str)
        else [template_part(part) for part in message.content],
        "name": message.name,
        "tool_calls": calls or None,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning,
    }
    return {name: value for name, value in fields.items() if value is not None}


def template_call(call: ToolCall) -> dict[str, Any]:
    """A call in the form that chat templates read; `ChatTemplate` parses the arguments."""
    id = {"id": call.id} if call.id else {}
    return {**id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def template_part(part: ContentPart) -> dict[str, Any]:
    """A part in the form that chat templates read. Files have become text or media."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    assert isinstance(part, MediaPart), "`attach_files` replaces files"
    return {"type": part.kind}


def has_media(request: ChatRequest) -> bool:
    """Whether a message has a medium."""
    parts = (part for message in request.messages for part in message.parts)
    return any(isinstance(part, MediaPart) for part in parts)


def options_of(request: ChatRequest, template: ChatTemplate | None) -> dict[str, Any]:
    """The template's options; the template refuses unknown ones.

    Raises RequestError for names that a request may not set, Unsupported for an effort that the
    template cannot honour.
    """
    options = dict(request.chat_template_kwargs)
    if taken := RESERVED_TEMPLATE_VARIABLES & options.keys():
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


@contextmanager
def naming_messages() -> Iterator[None]:
    """Let errors of the prompt of a chat name the field `messages`. Also a decorator."""
    try:
        yield
    except RequestError as error:
        if error.param == "prompt":
            error.param = "messages"
        raise
