"""Messages as chat templates take them, and messages that are refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tiny.chats import CALLED, CHATML, TOKENS, TOOL, USER, attempt
from tiny.turns import DirectRenderer

from ostro.core.chat import ChatTemplate
from ostro.core.errors import RequestError, TemplateError

EMPTY_PART = {"type": "text", "text": ""}
BROKEN = ('{"a": "b', "{", "", "[1]", "null", "1", "a: b", '{"a": 1}{"a": 1}', r'{"a": "\ud800"}')
"""Arguments of calls that are not a JSON object."""


def called(source: str, *arguments: str) -> str:
    """Calls with these arguments, each rendered by `source`; A are the arguments in it."""
    calls = [
        {"id": str(i), "type": "function", "function": {"name": "f", "arguments": text}}
        for i, text in enumerate(arguments)
    ]
    each = source.replace("A", "c.function.arguments")
    template = ChatTemplate(
        "{% for m in messages %}{% for c in m.tool_calls or [] %}" + each + "{% endfor %}"
        "{% endfor %}",
        tokens={},
    )
    return template.render([{"role": "assistant", "content": "", "tool_calls": calls}])


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
    @pytest.mark.parametrize(
        "source",
        ["{{ A if A is string else A.a }}", "{{ A.a if A is mapping else A }}"],
    )
    def test_arguments_that_are_no_object_stay_text_where_a_template_writes_it(
        self, source: str, arguments: str, rendered: str
    ) -> None:
        assert called(source, arguments) == rendered

    @pytest.mark.parametrize("arguments", BROKEN)
    def test_a_template_that_joins_texts_gets_them_as_they_are(self, arguments: str) -> None:
        assert called("{{ c.function.name + ' ' + A }}", arguments) == f"f {arguments}"

    @pytest.mark.parametrize("arguments", BROKEN)
    @pytest.mark.parametrize(
        "source",
        [
            "{% for k, v in A | items %}{{ k }}={{ v }};{% endfor %}",
            "{% for k, v in A.items() %}{{ k }}={{ v }};{% endfor %}",
            "{% for k, v in A | dictsort %}{{ k }}={{ v }};{% endfor %}",
            "{% set a = A or {} %}{% for k in a %}{{ k }}={{ a[k] }};{% endfor %}",
            "{% if A is mapping %}{% for k in A %}{{ k }}={{ A[k] }};{% endfor %}{% endif %}",
            "{% if A is not mapping %}{{ raise_exception('no') }}{% endif %}"
            "{% for k in A %}{{ k }}={{ A[k] }};{% endfor %}",
        ],
    )
    def test_a_template_that_reads_fields_gets_an_object(self, source: str, arguments: str) -> None:
        expected = f"INVALID_JSON={arguments};" if arguments else ""
        assert called(source, arguments) == expected
        assert called(source, '{"a": "b"}') == "a=b;"

    def test_the_calls_of_a_message_are_read_one_by_one(self) -> None:
        source = "{% for k, v in A | items %}{{ k }}={{ v }};{% endfor %}|"
        assert called(source, '{"a": "b"}', "{", '{"c": ""}') == "a=b;|INVALID_JSON={;|c=;|"

    @pytest.mark.sample(14)
    def test_the_templates_of_models_write_calls_that_were_cut(self, source: str) -> None:
        template = ChatTemplate(source, tokens=TOKENS)
        conversation = copy.deepcopy(CALLED)
        if attempt(template, conversation, tools=[TOOL]) is None:
            pytest.skip("this template takes no calls")
        function = conversation[1]["tool_calls"][0]["function"]
        for arguments in BROKEN:
            function["arguments"] = arguments
            text = attempt(template, conversation, tools=[TOOL])
            assert text is not None and "Thanks!" in text
        function["arguments"] = '{"city": "Wrocław'
        text = template.render(conversation, tools=[TOOL])
        function["arguments"] = '{"city": "Zürich"}'
        if "Zürich" in template.render(conversation, tools=[TOOL]):
            assert "Wroc" in text

    def test_whether_a_template_takes_text_is_found_once(self) -> None:
        class Counting(DirectRenderer):
            count = 0

            def render(self, source: str, context: dict[str, Any], limit: int) -> str:
                self.count += 1
                return super().render(source, context, limit)

        renderer = Counting()
        source = "{% for m in messages %}{{ m.tool_calls }}{% endfor %}"
        template = ChatTemplate(source, tokens={}, renderer=renderer)  # type: ignore[arg-type]
        counts = []
        for arguments in ("{}", "{", "{"):
            call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
            template.render([{"role": "assistant", "content": "a", "tool_calls": [call]}])
            counts.append(renderer.count)
        assert counts[0] == 1 and counts[1] > 2 and counts[2] == counts[1] + 1

    @pytest.mark.parametrize(
        "content", [{}, {"content": None}, {"content": ""}, {"content": []}], ids=str
    )
    @pytest.mark.parametrize(
        "written",
        [
            "{{ m.content + '.' }}",
            "{% if m.content is none %}{{ raise_exception('none') }}{% endif %}{{ m.content }}.",
            "{% for part in m.content %}{{ part.text }}{% endfor %}.",
            "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
            "{{ part.text }}{% endfor %}{% endif %}.",
        ],
    )
    def test_reasoning_alone_has_content_for_every_template(
        self, written: str, content: dict[str, Any]
    ) -> None:
        source = f"{{% for m in messages %}}<{{{{ m.reasoning_content }}}}>{written}{{% endfor %}}"
        message = {"role": "assistant", "reasoning": "hm", **content}
        assert ChatTemplate(source, tokens={}).render([message]) == "<hm>."

    def test_a_template_that_refuses_it_gets_a_part_of_thinking(self) -> None:
        source = (
            "{% for m in messages %}{% if m.content is string %}"
            "{% if not m.content %}{{ raise_exception('empty') }}{% endif %}{{ m.content }}"
            "{% else %}{% for p in m.content %}<{{ p.thinking }}>{% endfor %}{% endif %}"
            "{% endfor %}"
        )
        message = {"role": "assistant", "content": None, "reasoning": "hm"}
        assert ChatTemplate(source, tokens={}).render([message]) == "<hm>"
        with pytest.raises(TemplateError, match="empty"):
            ChatTemplate(source, tokens={}).render([{"role": "assistant", "content": ""}])
        needs_tools = "{% if not tools %}{{ raise_exception('none') }}{% endif %}" + CHATML
        text = ChatTemplate(needs_tools, tokens={}).render([message], tools=[TOOL])
        assert text.startswith("<|im_start|>assistant\n<|im_end|>")

    @pytest.mark.sample(14)
    def test_the_templates_of_models_write_turns_of_reasoning_alone(self, source: str) -> None:
        template = ChatTemplate(source, tokens=TOKENS)
        texts = []
        for content in ({}, {"content": None}, {"content": ""}, {"content": []}):
            turn = {"role": "assistant", "reasoning_content": "hm", **content}
            texts.append(attempt(template, [USER[0], turn, USER[2]]))
        if attempt(template, USER) is not None:
            assert texts[2] is not None
        assert texts == [texts[2]] * 4

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
