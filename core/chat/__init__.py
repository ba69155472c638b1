"""Chat templates: messages to prompts, in a sandbox, with control tokens in messages escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from ostro.core.chat.escape import ControlTokenEscaper
from ostro.core.chat.messages import (
    CUT,
    EMPTY_FORMS,
    PROBE,
    PROBE_REASONING,
    PROBE_TOOLS,
    WRITTEN,
    TemplateFeatures,
    arrange,
    content_of,
    is_reasoning_alone,
    parse_arguments,
    thinking_part,
    tool_fields,
)
from ostro.core.chat.renderer import RENDERER, Renderer
from ostro.core.chat.systems import (
    conversation,
    is_system,
    join_leading,
    late_places,
    leading,
    move_late,
    shows_in_order,
)
from ostro.core.chat.worker import ENVIRONMENT
from ostro.core.errors import RequestError, TemplateError, nearest
from ostro.core.tokenizer import Tokenizer
from ostro.core.tokenizer.limit import too_long

__all__ = ["ChatTemplate", "Renderer", "load_template", "missing_template", "prompt_tokens"]

SOURCE_LIMIT = 256 << 10
"""Limit on the length of a template, in characters; the longest in use have about 20 000."""

OUTPUT_LIMIT = 1 << 20
"""Limit on the length of a prompt in characters, in addition to four times its input's bytes."""

COMMON = frozenset(
    "enable_thinking thinking reasoning_effort documents date_string builtin_tools custom_tools "
    "tools_in_user_message model_identity add_vision_id clear_thinking preserve_thinking "
    "thinking_budget".split()
)
"""Options that clients send to all models; templates that do not read them ignore them."""

RESERVED_TEMPLATE_VARIABLES = frozenset(
    "messages tools tokenize add_generation_prompt continue_final_message chat_template "
    "return_dict return_tensors padding truncation max_length self until".split()
)
"""Names that are not options: variables set by this module, arguments of `render` and those of
transformers.
"""


class ChatTemplate:
    """A chat template. source: Jinja. tokens: special tokens by role, such as "bos_token".

    tool_use: the template that renders chats with tools in its place, None if there is none.
    Raises TemplateError for a source that is too long or has syntax errors.
    """

    def __init__(
        self,
        source: str,
        *,
        tokens: Mapping[str, str],
        renderer: Renderer = RENDERER,
        tool_use: ChatTemplate | None = None,
    ) -> None:
        if len(source) > SOURCE_LIMIT:
            raise TemplateError(
                f"the chat template has {len(source)} characters; the limit is {SOURCE_LIMIT}"
            )
        try:
            self.features = TemplateFeatures.read(ENVIRONMENT.parse(source))
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"chat template, line {error.lineno}: {error.message}") from error
        except RecursionError:
            raise TemplateError("the chat template is nested too deeply") from None
        except ValueError as error:  # a literal that Python rejects
            raise TemplateError(f"chat template: {error}") from error
        self.source = source
        self.tokens = dict(tokens)
        self.tool_use = tool_use
        self._renderer = renderer
        self._shown: dict[tuple[tuple[str, ...], bool], bool] = {}

    def for_tools(self, tools: Sequence[Any] | None) -> ChatTemplate:
        """The template that renders a chat with these tools, or without any."""
        return self.tool_use if tools and self.tool_use is not None else self

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        until: str | None = None,
        **kwargs: Any,
    ) -> str:
        """Render the prompt of a conversation, if given until the last occurrence of a text.

        `kwargs` are options of the template. Raises TemplateError if the template fails or rejects
        the conversation, RequestError for malformed messages and unknown options.
        """
        chosen = self.for_tools(tools)
        context = chosen.context(messages, tools, kwargs)
        return chosen.fill(context, add_generation_prompt, until)

    def context(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        options: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Check the messages and options, and convert them to the template's variables."""
        self._check_options(options)
        arranged = arrange(messages, self.features)
        for message in arranged:
            if "content" not in message:
                message |= self.empty_form
            if is_reasoning_alone(message) and self.reads_thinking_parts:
                message["content"] = [thinking_part(message)]
            for call in message.get("tool_calls") or ():
                function = call.get("function", call)
                arguments = function.get("arguments")
                if self._needs_object(arguments):
                    function["arguments"] = parse_arguments(arguments)
        return self._variables(self._place_systems(arranged, bool(tools)), tools, options)

    def _place_systems(
        self, arranged: Sequence[dict[str, Any]], tools: bool
    ) -> Sequence[dict[str, Any]]:
        """Change system messages that the template refuses, leaves out or moves.

        Those before the first turn become one, later ones a part of other turns. A template that
        does not write a single one gets them unchanged.
        """
        named = any(message["role"] == "developer" for message in arranged)
        if named and self._leaves_out_developers(tools):
            arranged = [
                {**message, "role": "system"} if is_system(message) else message
                for message in arranged
            ]
        count = leading(arranged)
        roles = [message["role"] for message in arranged if is_system(message)]
        if count == len(roles) < 2 or not self._shows((roles[0], "user"), tools):
            return arranged
        first, late = roles[0], sorted({*roles[count:]})
        if not all(self._shows((first, role, "user"), tools) for role in {*roles[1:count]}):
            arranged = join_leading(arranged)
        tried = [places for role in late for places in late_places(first, role)]
        if not all(self._shows(places, tools) for places in tried):
            arranged = move_late(arranged, self.features)
        return arranged

    def _leaves_out_developers(self, tools: bool) -> bool:
        """Whether the template, which names this role, writes the messages of systems only."""
        shown = (self._shows((role, "user"), tools) for role in ("developer", "system"))
        return not next(shown) and next(shown)

    def _shows(self, roles: tuple[str, ...], tools: bool) -> bool:
        """Whether a conversation of these roles shows its texts in order; tried once for each."""
        if (known := self._shown.get((roles, tools))) is not None:
            return known
        messages = conversation(roles)
        listed = PROBE_TOOLS if tools else None
        try:
            text = self.fill(self._variables(arrange(messages, self.features), listed, {}))
        except TemplateError:
            shown = False
        else:
            shown = shows_in_order(text, messages)
        self._shown[roles, tools] = shown
        return shown

    def _variables(
        self,
        arranged: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        options: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The template's variables; `arranged` are messages in the form that it expects."""
        try:
            listed = [tool_fields(tool) for tool in tools or ()] or None
            given = {**options, "messages": arranged, "tools": listed}
            data = msgspec.json.encode({"documents": None, **given})
            return msgspec.json.decode(data, type=dict[str, Any])
        except (RecursionError, TypeError, ValueError) as error:
            raise RequestError(f"the messages cannot be written as JSON: {error}") from error

    @cached_property
    def empty_form(self) -> Mapping[str, Any]:
        """The content of a message of tool calls without text, as a field.

        Templates of different makers expect "", null, no field or an empty list, and for the others
        fail, leave the calls out, or write "None". It is the form in which a conversation shows the
        call and the fewest "None"; without any, the syntax tree decides.
        """
        own = {"content": content_of(None, self.features)}
        forms = [own, *(form for form in EMPTY_FORMS if form != own)]
        return min(forms, key=self._faults_of)

    def _faults_of(self, form: Mapping[str, Any]) -> float:
        """How often a conversation with tool calls shows "None"; infinite if it hides the call."""
        arranged = arrange(PROBE, self.features)
        arranged[1] |= form
        try:
            text = self.fill(self._variables(arranged, PROBE_TOOLS, {}))
        except TemplateError:
            return inf
        return text.count("None") if WRITTEN in text else inf

    def _needs_object(self, arguments: Any) -> bool:
        """Whether arguments are text that is not a JSON object, and the template reads fields."""
        if not isinstance(arguments, str) or self.features.text_arguments:
            return False
        return not self.takes_text_arguments

    @cached_property
    def reads_thinking_parts(self) -> bool:
        """Whether the template takes reasoning without text as a part of the content alone.

        Mistral's refuse a content without text and parts.
        """
        arranged = arrange(PROBE_REASONING, self.features)
        parts = [{**message} for message in arranged]
        parts[1]["content"] = [thinking_part(parts[1])]
        return not self._accepts(arranged) and self._accepts(parts)

    def _accepts(self, arranged: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the template renders a conversation."""
        try:
            self.fill(self._variables(arranged, None, {}))
        except TemplateError:
            return False
        return True

    @cached_property
    def takes_text_arguments(self) -> bool:
        """Whether the template writes arguments of a tool call that are text.

        Templates that walk over the fields of arguments fail with text, or leave it out.
        """
        arranged = arrange(PROBE, self.features)
        arranged[1] |= self.empty_form
        arranged[1]["tool_calls"][0]["function"]["arguments"] = CUT
        try:
            return CUT in self.fill(self._variables(arranged, PROBE_TOOLS, {}))
        except TemplateError:
            return False

    def fill(
        self,
        context: Mapping[str, Any],
        add_generation_prompt: bool = True,
        until: str | None = None,
    ) -> str:
        """Render with the variables that `context` returned."""
        size = len(msgspec.json.encode(context))
        own = {**self.tokens, "add_generation_prompt": add_generation_prompt}
        text = self._renderer.render(self.source, {**context, **own}, OUTPUT_LIMIT + 4 * size)
        if until is None:
            return text
        found, mark, _ = text.rpartition(until)
        if not mark:
            raise TemplateError("the chat template leaves out the message to continue")
        return found

    def _check_options(self, options: Mapping[str, Any]) -> None:
        ours = RESERVED_TEMPLATE_VARIABLES | self.tokens.keys() | ENVIRONMENT.globals.keys()
        known = (COMMON | self.features.variables) - ours
        for name in options:
            if name not in known:
                raise RequestError(
                    f"{name!r} is not an option of this chat template{nearest(name, known)}",
                    param="chat_template_kwargs",
                )


def load_template(tokenizer: Tokenizer, *, file: Path | None = None) -> ChatTemplate:
    """Load a model's chat template, or the one in `file` instead.

    Of several templates by name, "tool_use" renders chats with tools and "default" the others, as
    in transformers. Raises TemplateError without a default.
    """
    named = tokenizer.chat_templates if file is None else {"default": _read(file)}
    if not named.get("default"):
        raise missing_template(tokenizer)
    tokens, source = tokenizer.special_tokens, named.get("tool_use")
    tool_use = ChatTemplate(source, tokens=tokens) if source else None
    return ChatTemplate(named["default"], tokens=tokens, tool_use=tool_use)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"the chat template {file} cannot be read: {error}") from error


def missing_template(tokenizer: Tokenizer) -> TemplateError:
    """The error for a model without a chat template, or with named ones but no default."""
    named, fault = tokenizer.chat_templates, "this base model has no chat template"
    if named and "default" not in named:
        names = ", ".join(sorted(named))
        fault = f"its chat templates have the names {names}, and none is the default"
    return TemplateError(
        f"{tokenizer.source}: {fault}; set --chat-template FILE, or "
        "continue plain text: `ostro run --raw`, a str in Python, /v1/completions over HTTP"
    )


def prompt_tokens(
    template: ChatTemplate | None,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    kwargs: Mapping[str, Any] | None = None,
    limit: int | None = None,
    until: str | None = None,
) -> list[int]:
    """Convert a conversation to token ids. Only the template can produce control tokens.

    Control tokens in messages, tools and options are encoded as plain text. Without any, the ids
    are exactly those of the rendered text, if given until the last occurrence of a text in it.
    `limit` is the context of the model in tokens. Raises
    what `ChatTemplate.render` and `Tokenizer.encode` raise, and TemplateError without a template.
    """
    if template is None:
        raise missing_template(tokenizer)
    template = template.for_tools(tools)
    context = template.context(messages, tools, kwargs or {})
    escaper = ControlTokenEscaper(tokenizer.controls, template.features.constants, context)
    text = template.fill(escaper.escape(context), add_generation_prompt, until)
    shown = escaper.restore(text)
    if shown == text:
        return tokenizer.encode(text, special=False, parse_special=True, limit=limit)
    ids: list[int] = []
    for i, part in enumerate(tokenizer.split(text)):
        if isinstance(part, int):
            ids.append(part)
        else:
            ids += tokenizer.encode(escaper.restore(part), special=False, start=i == 0, limit=limit)
        if limit is not None and len(ids) > limit:
            raise too_long(limit)
    return ids
