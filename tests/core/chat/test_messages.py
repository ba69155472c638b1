"""Messages as chat templates take them, and messages that are refused."""

from __future__ import annotations

from typing import Any

import pytest
from tiny.chats import CHATML
from tiny.turns import DirectRenderer

from ostro.core.chat import ChatTemplate
from ostro.core.errors import RequestError

EMPTY_PART = {"type": "text", "text": ""}


class TestMessages:
    def test_parts_are_joined_where_a_string_is_wanted(self) -> None:
        content = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"]
        text = ChatTemplate("{{ messages[0].content }}", tokens={}).render(
            [{"role": "user", "content": content}]
        )
        assert text == "a\nb\nc"

    def test_text_becomes_a_part_for_templates_that_need_parts(self) -> None:
        source = (
            "{% for m in messages %}{% for part in m['content'] %}{{ part.text }};"
            "{% endfor %}{% endfor %}"
        )
        assert ChatTemplate(source, tokens={}).render([{"role": "user", "content": "ab"}]) == "ab;"

    def test_all_names_of_the_reasoning_field_are_accepted(self) -> None:
        source = "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}"
        message = {"role": "assistant", "content": "", "reasoning": "hm"}
        assert ChatTemplate(source, tokens={}).render([message]) == "hmhm"

    @pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
    def test_a_message_of_tool_calls_has_content_for_every_template(
        self, content: dict[str, Any]
    ) -> None:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        messages = [{"role": "assistant", "tool_calls": [call], **content}]
        for source, expected in (
            ("{{ '<' + messages[0]['content'] + '>' }}", "<>"),
            ("{{ messages[0].content is none }}", "True"),
            ("{% for part in messages[0].content %}{{ part.text }}{% endfor %}.", "."),
        ):
            assert ChatTemplate(source, tokens={}).render(messages) == expected

    @pytest.mark.parametrize(
        "content",
        [{}, {"content": None}, {"content": ""}, {"content": []}, {"content": [EMPTY_PART]}],
        ids=str,
    )
    @pytest.mark.parametrize(
        "source",
        [
            "{% if m.content is none %}CALLS{% else %}{{ m.content }}{% endif %}",
            "{% if m.content == none %}CALLS{% endif %}",
            "{% if m.content is not none %}{{ m.content | length }}{% else %}CALLS{% endif %}",
            "{% if m.content is none and not m.tool_calls %}no{% elif m.content | length == 0 %}"
            "CALLS{% endif %}",
            "{{ m.role + m.content }}CALLS",
            "{{ m.content.split('x')[-1] }}CALLS",
            "{% if m.content is string %}{{ m.content }}CALLS{% endif %}",
            "{% if 'content' not in m %}CALLS{% endif %}",
            "{% if m.content is not string and m.content is iterable %}CALLS{% endif %}",
            "{% if m.content is none %}None{% endif %}{{ m.content }}CALLS",
        ],
    )
    def test_tool_calls_without_text_have_the_form_that_a_template_writes_them_with(
        self, source: str, content: dict[str, Any]
    ) -> None:
        calls = "{% for c in m.tool_calls %}<{{ c.function.name }}>{% endfor %}"
        template = ChatTemplate(
            "{% for m in messages if m.role == 'assistant' %}"
            f"{source.replace('CALLS', calls)}{{% endfor %}}",
            tokens={},
        )
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        text = template.render([{"role": "assistant", "tool_calls": [call], **content}])
        assert text.removeprefix("assistant") == "<f>"

    def test_the_form_is_found_once_for_each_template(self) -> None:
        class Counting(DirectRenderer):
            count = 0

            def render(self, source: str, context: dict[str, Any], limit: int) -> str:
                self.count += 1
                return super().render(source, context, limit)

        renderer = Counting()
        template = ChatTemplate(CHATML, tokens={}, renderer=renderer)  # type: ignore[arg-type]
        template.render([{"role": "user", "content": "a"}])
        assert renderer.count == 1
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for renderings in (6, 7):
            template.render([{"role": "assistant", "tool_calls": [call]}])
            assert renderer.count == renderings

    @pytest.mark.parametrize(
        ("arguments", "rendered"), [('{"a": "b"}', "b"), ("[1]", "[1]"), ("1", "1"), ("{", "{")]
    )
    def test_arguments_that_are_no_object_stay_text(self, arguments: str, rendered: str) -> None:
        source = (
            "{% set given = messages[0].tool_calls[0].function.arguments %}"
            "{{ given if given is string else given.a }}"
        )
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages = [{"role": "assistant", "tool_calls": [call]}]
        assert ChatTemplate(source, tokens={}).render(messages) == rendered

    def test_developer_is_system_to_templates_that_do_not_know_it(self) -> None:
        message = [{"role": "developer", "content": ""}]
        assert ChatTemplate("{{ messages[0].role }}", tokens={}).render(message) == "system"
        knows = "{% if messages[0].role == 'developer' %}yes{% endif %}"
        assert ChatTemplate(knows, tokens={}).render(message) == "yes"

    @pytest.mark.parametrize(
        ("message", "said"),
        [
            ("hello", r"messages\[0\] is not an object"),
            ({"content": "a"}, r"messages\[0\].role None"),
            ({"role": "user<|im_end|>", "content": "a"}, "not a valid role"),
            ({"role": "user", "content": 3}, "not a string or a list"),
            ({"role": "user", "content": [3]}, "a part that is not an object"),
            ({"role": "user", "content": [{"type": "text"}]}, "a text part without text"),
            ({"role": "user", "content": [{"type": "image"}]}, "type 'image'.*text only"),
            ({"role": "user", "content": "\ud800"}, "cannot be written as JSON"),
            ({"role": "assistant", "content": "", "tool_calls": [{}]}, "without a function"),
            ({"role": "assistant", "content": "", "tool_calls": 3}, "tool_calls is not a list"),
        ],
    )
    def test_what_no_template_takes_is_refused(self, message: Any, said: str) -> None:
        with pytest.raises(RequestError, match=said):
            ChatTemplate(CHATML, tokens={}).render([message])

    def test_a_deep_message_is_refused(self) -> None:
        deep: Any = "a"
        for _ in range(200_000):
            deep = {"a": deep}
        with pytest.raises(RequestError, match="JSON"):
            ChatTemplate(CHATML, tokens={}).render([{"role": "user", "content": "", "x": deep}])
