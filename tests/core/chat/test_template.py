"""Chat templates: prompts as transformers writes them, options, loading."""

from __future__ import annotations

import copy
import json
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from tiny.chats import (
    CALL,
    CALLED,
    CHATML,
    CONVERSATIONS,
    TOKENS,
    TOOL,
    USER,
    Messages,
    attempt,
    small,
)

from ostro.core.chat import RESERVED_TEMPLATE_VARIABLES, ChatTemplate, load_template, prompt_tokens
from ostro.core.errors import RequestError, TemplateError


def reference(source: str, messages: Messages, **how: Any) -> str | None:
    """Render with transformers, None where the template refuses."""
    module = pytest.importorskip("transformers.utils.chat_template_utils")
    how = {"add_generation_prompt": True, **how, **TOKENS}
    try:
        (text,), _ = module.render_jinja_template(
            [copy.deepcopy(messages)], chat_template=source, **how
        )
    except Exception:
        return None
    return text


class TestTemplates:
    @pytest.mark.sample(21)
    def test_prompts_are_those_of_transformers(self, source: str) -> None:
        template = ChatTemplate(source, tokens=TOKENS)
        ours, theirs = {}, {}
        for name, (messages, how) in CONVERSATIONS.items():
            ours[name] = attempt(template, messages, **how)
            if name == "called":
                messages = [*messages[:1], {**messages[1], **template.empty_form}, *messages[2:]]
            theirs[name] = reference(source, messages, **how)
        # A template that joins arguments as text fails on the objects transformers passes.
        if template.features.text_arguments:
            assert theirs.pop("called") is None
            assert json.dumps(CALL["arguments"], ensure_ascii=False) in (ours.pop("called") or "")
        assert ours == theirs
        assert any(theirs.values())

    @pytest.mark.sample(14)
    def test_parts_of_text_read_as_the_text(self, source: str) -> None:
        template = ChatTemplate(source, tokens=TOKENS)
        parts = [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            for message in USER
        ]
        assert attempt(template, parts) == attempt(template, USER)

    @pytest.mark.sample(12)
    def test_arguments_as_json_text_read_as_the_object(self, source: str) -> None:
        template = ChatTemplate(source, tokens=TOKENS)
        written = copy.deepcopy(CALLED)
        function = written[1]["tool_calls"][0]["function"]
        function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        assert attempt(template, written, tools=[TOOL]) == attempt(template, CALLED, tools=[TOOL])

    @pytest.mark.sample(12)
    def test_tool_calls_without_text_read_the_same_in_all_forms(self, source: str) -> None:
        template = ChatTemplate(source, tokens=TOKENS)
        called = copy.deepcopy(CALLED[:3])
        texts = set()
        for content in ({"content": ""}, {"content": None}, {}, {"content": []}):
            del called[1]["content"]
            called[1] |= content
            texts.add(attempt(template, called, tools=[TOOL]))
            called[1].setdefault("content", None)
        (text,) = texts
        assert text is None or ">None<" not in text.replace("\n", "")
        if not template.features.text_arguments:
            del called[1]["content"]
            called[1] |= template.empty_form
            assert reference(source, called, tools=[TOOL]) == text


class TestOptions:
    def test_a_template_gets_what_it_reads(self) -> None:
        template = ChatTemplate("{{ mood }}", tokens={})
        assert template.render(USER, mood="calm") == "calm"
        with pytest.raises(RequestError, match=r"'moods' is not an option.*nearest: mood"):
            template.render(USER, moods="calm")

    def test_the_parameters_of_render_are_no_options(self) -> None:
        assert {*signature(ChatTemplate.render).parameters} <= RESERVED_TEMPLATE_VARIABLES | {
            "kwargs"
        }

    def test_common_options_are_let_pass(self) -> None:
        assert ChatTemplate("a", tokens={}).render(USER, enable_thinking=False) == "a"

    @pytest.mark.parametrize("name", ["tokenize", "messages", "bos_token", "range"])
    def test_what_is_not_the_callers_is_refused(self, name: str) -> None:
        source = "{{ tokenize }}{{ messages }}{{ bos_token }}{{ range }}"
        template = ChatTemplate(source, tokens=TOKENS)
        with pytest.raises(RequestError, match=f"'{name}' is not an option"):
            prompt_tokens(template, small(), USER, kwargs={name: True})

    def test_the_environment_is_that_of_chat_templates(self) -> None:
        source = (
            "{% generation %}{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}"
            "{{ i }}{% endfor %}{% endgeneration %} {{ {'é': '<'} | tojson }} "
            "{{ strftime_now('%%') }}"
        )
        assert ChatTemplate(source, tokens={}).render(USER) == '01 {"é": "<"} %'


class TestLoading:
    def test_a_model_without_template_says_what_to_do(self) -> None:
        with pytest.raises(TemplateError, match=r"--chat-template FILE, .* /v1/completions"):
            load_template(small())
        with pytest.raises(TemplateError, match="no chat template"):
            prompt_tokens(None, small(), USER)

    def test_one_of_several_is_chosen(self, tmp_path: Path) -> None:
        tokenizer = small(chat_template={"default": "A", "tool_use": "B"})
        template = load_template(tokenizer)
        assert (template.render(USER), template.render(USER, tools=[TOOL])) == ("A", "B")
        assert tokenizer.decode(prompt_tokens(template, tokenizer, USER, [TOOL])) == "B"
        (tmp_path / "own.jinja").write_text("C")
        own = load_template(tokenizer, file=tmp_path / "own.jinja")
        assert (own.render(USER), own.render(USER, tools=[TOOL])) == ("C", "C")

    def test_named_templates_without_a_default_are_listed(self) -> None:
        with pytest.raises(TemplateError, match=r"names rag, tool_use, and none is the default"):
            load_template(small(chat_template={"tool_use": "A", "rag": "B"}))

    @pytest.mark.sample(4)
    @pytest.mark.parametrize("tools", [None, [TOOL]], ids=["plain", "tools"])
    def test_the_choice_is_that_of_transformers(self, source: str, tools: Any) -> None:
        named = {"default": CHATML, "tool_use": source, "rag": "no"}
        template = load_template(small(chat_template=named))
        chosen = source if tools else CHATML
        assert template.for_tools(tools).source == chosen
        alone = ChatTemplate(chosen, tokens={})
        assert attempt(template, USER, tools=tools) == attempt(alone, USER, tools=tools)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(TemplateError, match=r"gone\.jinja"):
            load_template(small(), file=tmp_path / "gone.jinja")
