"""System messages behind the first: joined, moved into the turns beside them, or left in place."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from tiny.chats import CHATML, TOKENS, TOOL, Messages, attempt
from tiny.turns import DirectRenderer

from ostro.core.chat import ChatTemplate
from ostro.core.errors import TemplateError

LINE = "{{ '<' + m.role + '>' + m.content + '</>' }}"
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system message must be first') }}{% endif %}"
    f"{LINE}{{% endfor %}}"
)
"""It refuses what is not at the beginning."""
SILENT = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}"
    f"{LINE}{{% endif %}}{{% endfor %}}"
)
"""It leaves out what is not at the beginning."""
LAST = (
    "{% set found = namespace(text='') %}{% for m in messages if m.role == 'system' %}"
    "{% set found.text = m.content %}{% endfor %}{{ found.text }}"
    f"{{% for m in messages if m.role != 'system' %}}{LINE}{{% endfor %}}"
)
"""It writes the last system message only, in front."""
COLLECTS = (
    "{% for m in messages if m.role == 'system' %}{{ m.content }}|{% endfor %}"
    f"{{% for m in messages if m.role != 'system' %}}{LINE}{{% endfor %}}"
)
"""It writes all system messages in front."""
ALTERNATES = (
    "{% set start = 1 if messages[0].role == 'system' else 0 %}"
    "{% if start %}{{ messages[0].content }}|{% endif %}"
    "{% for m in messages[start:] if m.role != 'tool' and not m.tool_calls %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
    f"{{% for m in messages[start:] %}}{LINE}{{% endfor %}}"
)
NONE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    f"{{% endif %}}{LINE}{{% endfor %}}"
)
FORGETS = f"{{% for m in messages if m.role != 'system' %}}{LINE}{{% endfor %}}"
PARTS = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('first') }}{% endif %}<{{ m.role }}>"
    "{% for p in m.content %}{{ p.text if p.type == 'text' else '#' }}{% endfor %}</>{% endfor %}"
)
EITHER = PARTS.replace(
    "{% for p in m.content %}",
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}",
).replace("</>", "{% endif %}</>")
WITH_TOOLS = SILENT.replace("if m", "if not tools or m")
"""It leaves out late messages of chats with tools."""
REFUSING = {
    "strict": STRICT,
    "silent": SILENT,
    "the last": LAST,
    "alternates": ALTERNATES,
    "parts": PARTS,
    "either": EITHER,
}


def turns(*given: str) -> Messages:
    """Messages of "role text" each."""
    pairs = [text.split(" ", 1) for text in given]
    return [{"role": role, "content": content} for role, content in pairs]


def render(source: str, *given: str, **how: Any) -> str:
    return ChatTemplate(source, tokens={}).render(turns(*given), **how)


def block(text: str) -> str:
    """A system message in the text of another turn."""
    return f"<system_message>\n{text}\n</system_message>"


class TestLeading:
    @pytest.mark.parametrize("source", REFUSING.values(), ids=REFUSING)
    def test_those_at_the_beginning_are_joined(self, source: str) -> None:
        found = render(source, "system a", "developer b", "system c", "user hi")
        assert found == render(source, "system a\n\nb\n\nc", "user hi")

    def test_the_template_joins_them_itself_where_it_can(self) -> None:
        assert render(COLLECTS, "system a", "system b", "user hi") == "a|b|<user>hi</>"
        assert render(CHATML, "system a", "system b", "user c").count("<|im_start|>system") == 2

    def test_parts_are_joined_with_texts(self) -> None:
        image = {"type": "image"}
        messages: Messages = [
            {"role": "system", "content": "a"},
            {"role": "system", "content": [{"type": "text", "text": "b"}, image]},
            {"role": "user", "content": [image, {"type": "text", "text": "c"}]},
        ]
        for source in (PARTS, EITHER):
            template = ChatTemplate(source, tokens={})
            assert template.render(messages) == "<system>a\n\nb#</><user>#c</>"

    def test_one_that_is_empty_adds_no_line(self) -> None:
        assert render(STRICT, "system a", "system ", "user b") == "<system>a</><user>b</>"


class TestLate:
    @pytest.mark.parametrize("source", REFUSING.values(), ids=REFUSING)
    def test_it_is_put_before_the_text_of_the_next_user_message(self, source: str) -> None:
        found = render(source, "system s", "user a", "assistant b", "system c", "user d")
        moved = "user " + block("c") + "\n\nd"
        assert found == render(source, "system s", "user a", "assistant b", moved)

    @pytest.mark.parametrize("source", [*REFUSING.values(), COLLECTS], ids=[*REFUSING, "collects"])
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (["user a", "system b"], ["user a\n\n[b]"]),
            (["user a", "system b", "developer c"], ["user a\n\n[b]\n\n[c]"]),
            (["user a", "system b", "assistant c"], ["user a\n\n[b]", "assistant c"]),
            (
                ["user a", "assistant b", "system c", "system d", "user e"],
                ["user a", "assistant b", "user [c]\n\n[d]\n\ne"],
            ),
            (["user a", "assistant b", "system c"], ["user a", "assistant b", "user [c]"]),
            (
                ["user a", "assistant b", "system c", "assistant d"],
                ["user a", "assistant b", "user [c]", "assistant d"],
            ),
            (["system s", "user a", "system b"], ["system s", "user a\n\n[b]"]),
            (["user ", "system b"], ["user [b]"]),
        ],
        ids=str,
    )
    def test_its_place_fits_the_turns_beside_it(
        self, source: str, given: list[str], expected: list[str]
    ) -> None:
        start, end = block("@").split("@")
        marked = [text.replace("[", start).replace("]", end) for text in expected]
        assert render(source, *given) == render(source, *marked)

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (["tool r", "system c"], "<tool>r\n\n[c]</>"),
            (["tool r", "system c", "assistant d"], "<tool>r\n\n[c]</><assistant>d</>"),
            (["system c", "tool r", "assistant d"], "<tool>[c]\n\nr</><assistant>d</>"),
        ],
        ids=str,
    )
    def test_it_does_not_separate_a_call_from_what_follows(
        self, given: list[str], expected: str
    ) -> None:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        called = {"role": "assistant", "content": "", "tool_calls": [call]}
        messages = [*turns("user a"), called, *turns(*given)]
        for message in messages:
            if message["role"] == "tool":
                message["tool_call_id"] = "1"
        found = ChatTemplate(ALTERNATES, tokens={}).render(messages, tools=[TOOL])
        assert found == "<user>a</><assistant></>" + expected.replace("[c]", block("c"))

    @pytest.mark.parametrize("content", ["", None, []], ids=str)
    def test_an_empty_one_is_a_block_too(self, content: Any) -> None:
        messages = [*turns("user a", "assistant b"), {"role": "system", "content": content}]
        for source in (STRICT, PARTS, EITHER):
            found = ChatTemplate(source, tokens={}).render(messages)
            assert found == f"<user>a</><assistant>b</><user>{block('')}</>"

    def test_media_keep_their_order(self) -> None:
        def seen(text: str) -> list[dict[str, str]]:
            return [{"type": "image", "image": text}, {"type": "text", "text": text}]

        source = (
            "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
            "{{ raise_exception('first') }}{% endif %}{% for p in m.content %}"
            "{{ p.image ~ '#' if p.type == 'image' else p.text }}{% endfor %}|{% endfor %}"
        )
        roles = ("user", "assistant", "system", "user", "system")
        messages = [{"role": role, "content": seen(str(i))} for i, role in enumerate(roles)]
        found = ChatTemplate(source, tokens={}).render(messages)
        start, end = block("@").split("@")
        assert found == f"0#0|1#1|{start}2#2{end}3#3\n\n{start}4#4{end}|"

    @pytest.mark.parametrize("role", ["system", "developer"])
    def test_a_template_that_takes_it_keeps_the_place(self, role: str) -> None:
        found = render(CHATML, "system s", "user a", "assistant b", f"{role} c", "user d")
        assert "b<|im_end|>\n<|im_start|>system\nc<|im_end|>\n<|im_start|>user\nd" in found

    def test_with_tools_a_template_may_differ(self) -> None:
        given = ("user a", "system b", "user c")
        assert render(WITH_TOOLS, *given) == "<user>a</><system>b</><user>c</>"
        moved = f"<user>a</><user>{block('b')}\n\nc</>"
        assert render(WITH_TOOLS, *given, tools=[TOOL]) == moved

    def test_without_a_system_role_all_stays(self) -> None:
        with pytest.raises(TemplateError, match="no system"):
            render(NONE, "user a", "system b", "user c")
        assert render(FORGETS, "system s", "user a", "system b") == "<user>a</>"


class TestDeveloper:
    KNOWS = (
        "{% set first = messages[0].role in ('system', 'developer') %}"
        "{% if first %}({{ messages[0].content }}){% endif %}"
        f"{{% for m in messages if m.role in ('user', 'assistant') %}}{LINE}{{% endfor %}}"
    )

    def test_one_that_a_template_knows_is_joined_and_moved_too(self) -> None:
        given = ("system a", "developer b", "user c", "developer d", "user e")
        found = render(self.KNOWS, *given)
        assert found == f"(a\n\nb)<user>c</><user>{block('d')}\n\ne</>"

    def test_a_template_that_only_names_it_gets_system(self) -> None:
        source = f"{{% for m in messages if m.role != 'developer' %}}{LINE}{{% endfor %}}"
        assert render(source, "developer a", "user b") == "<system>a</><user>b</>"


class TestProbe:
    def test_each_conversation_is_tried_once_for_a_template(self) -> None:
        class Counting(DirectRenderer):
            count = 0

            def render(self, source: str, context: dict[str, Any], limit: int) -> str:
                self.count += 1
                return super().render(source, context, limit)

        renderer = Counting()
        template = ChatTemplate(STRICT, tokens={}, renderer=renderer)  # type: ignore[arg-type]
        template.render(turns("system a", "user b", "assistant c", "user d"))
        assert renderer.count == 1, "a single system message needs no probe"
        template.render(turns("system a", "system b", "user c", "system d"))
        probed = renderer.count
        assert probed > 3
        template.render(turns("system e", "system f", "user g", "system h", "user i"))
        assert renderer.count == probed + 1


CONVERSATION = turns(
    "system s0",
    "system s1",
    "user u0",
    "system s2",
    "assistant a0",
    "user u1",
    "assistant a1",
    "system s3",
    "user u2",
    "system s4",
    "assistant a2",
    "system s5",
    "assistant a3",
    "user u3",
)
CALLS: Messages = [
    *turns("system s0", "user u0"),
    {
        "role": "assistant",
        "content": "c0",
        "reasoning_content": "r0",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "t0"},
    *turns("system s1", "assistant a0"),
]


class TestPrefix:
    @pytest.mark.parametrize("name", [*REFUSING, "collects"])
    def test_what_an_answer_was_generated_from_stays_as_it_was(self, name: str) -> None:
        source = {**REFUSING, "collects": COLLECTS}[name]
        self.check(ChatTemplate(source, tokens={}), CONVERSATION)

    @pytest.mark.sample(21)
    @pytest.mark.parametrize("tools", [None, [TOOL]], ids=["plain", "tools"])
    def test_it_stays_with_the_templates_of_models(self, source: str, tools: Any) -> None:
        template = ChatTemplate(source, tokens=TOKENS)
        plain = turns("user u0", "assistant a0", "user u1", "assistant a1", "user u2")
        if not self.grows(template, [*turns("system s0"), *plain], tools=tools):
            pytest.skip("this template moves or changes earlier turns, or has no system role")
        texts = self.check(template, CONVERSATION[:11], tools=tools)
        assert all(f"s{i}" in texts[-1] for i in range(5))

    @pytest.mark.sample(12)
    def test_it_stays_beside_the_result_of_a_tool(self, source: str) -> None:
        template = ChatTemplate(source, tokens=TOKENS)
        alone = [m for m in CALLS if m["content"] != "s1"]
        if not self.grows(template, alone, tools=[TOOL]):
            pytest.skip("this template moves or changes earlier turns, or has no system role")
        assert "s1" in self.check(template, CALLS, tools=[TOOL])[-1]

    def prompts(self, template: ChatTemplate, messages: Messages, **how: Any) -> list[str | None]:
        """The prompts that end before an answer, without what begins it, and the whole."""
        ends = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        how = {**how, "add_generation_prompt": False}
        return [attempt(template, messages[:end], **how) for end in [*ends, len(messages)]]

    def grows(self, template: ChatTemplate, messages: Messages, **how: Any) -> bool:
        """Whether each prompt begins with the one before it, and the last shows all texts."""
        texts = self.prompts(template, messages, **how)
        pairs = pairwise(texts)
        if not all(a and b and b.startswith(a) for a, b in pairs):
            return False
        return all(str(m["content"]) in (texts[-1] or "") for m in messages)

    def check(self, template: ChatTemplate, messages: Messages, **how: Any) -> list[str]:
        texts = self.prompts(template, messages, **how)
        found = [text for text in texts if text]
        assert len(found) == len(texts)
        for before, after in pairwise(found):
            assert after.startswith(before)
        return found
