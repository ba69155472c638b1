"""Hostile chat templates end in an error within limits of time and memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tiny.chats import (
    USER,
)

from ostro.core.chat import ChatTemplate, Renderer
from ostro.core.errors import TemplateError

ERRORS = {
    "classes": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
    "globals": ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "unsafe"),
    "lipsum": ("{{ lipsum.__globals__['os'].popen('id').read() }}", "unsafe"),
    "mutation": ("{{ messages.append(1) }}", "unsafe"),
    "range": ("{% for i in range(1000000000) %}{% endfor %}", "Range too big"),
    "string": ("{{ 'a'*2000000000 }}", "memory"),
    "list": ("{{ [0]*1000000000 }}", "memory"),
    "loops": (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "longer than 1 s",
    ),
    "power": ("{{ 9**(9**9) }}", "longer than 1 s|memory"),
    "center": ("{{ 'a'|center(1000000000) }}", "memory"),
    "width": ("{{ '%1000000000d' % 1 }}", "memory"),
    "macro": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
    "undefined": ("{{ messages[0].nope.deeper }}", "no attribute 'nope'"),
    "include": ("{% include '/etc/passwd' %}", "no loader"),
    "output": ("{% for i in range(99999) %}{{ 'a' * 999 }}{% endfor %}", "more than .* characters"),
    "digits": ("{{ " + "1" * 9999 + " }}", "4300 digits"),
    "sum": ("{{ a" + " + a" * 50_000 + " }}", "nested too deeply"),
    "nested": ("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "nested too deeply"),
    "long": ("a" * 300_000, "300000 characters; the limit is 262144"),
}
HARMLESS = {
    "attr": ("{{ ''|attr('__class__')|attr('__mro__') }}", ""),
    "format": ("{{ '{0.__class__.__init__}'.format(1) }}", ""),
}


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    """A renderer whose clock stands still: processor time alone ends a rendering."""
    renderer = Renderer(clock=lambda: 0.0)
    yield renderer
    renderer.close()


class TestHostileTemplates:
    @pytest.mark.parametrize("name", ERRORS)
    def test_ends_in_an_error_and_the_next_one_renders(self, renderer: Renderer, name: str) -> None:
        source, said = ERRORS[name]
        good = ChatTemplate("{{ messages | length }}", tokens={}, renderer=renderer)
        assert good.render(USER) == "3"  # the process is there
        with pytest.raises(TemplateError, match=said):
            ChatTemplate(source, tokens={}, renderer=renderer).render(USER)
        assert good.render(USER) == "3"

    @pytest.mark.parametrize("name", HARMLESS)
    def test_harmless_templates_render(self, renderer: Renderer, name: str) -> None:
        source, text = HARMLESS[name]
        assert ChatTemplate(source, tokens={}, renderer=renderer).render(USER) == text

    def test_the_line_is_named(self, renderer: Renderer) -> None:
        with pytest.raises(TemplateError, match=r"line 3: 'gone' is undefined"):
            ChatTemplate("a\n\n{{ gone.x }}", tokens={}, renderer=renderer).render(USER)
        with pytest.raises(TemplateError, match="line 2: Expected an expression"):
            ChatTemplate("a\n{% if %}", tokens={})

    def test_a_template_error_contains_the_template_s_message(self, renderer: Renderer) -> None:
        source = "{{ raise_exception('roles must alternate') }}"
        template = ChatTemplate(source, tokens={}, renderer=renderer)
        with pytest.raises(TemplateError, match=r"^roles must alternate$"):
            template.render(USER)

    def test_a_long_refusal_is_cut(self, renderer: Renderer) -> None:
        source = "{{ raise_exception('x' * 1000000) }}"
        template = ChatTemplate(source, tokens={}, renderer=renderer)
        with pytest.raises(TemplateError, match=r"^x{500}$"):
            template.render(USER)
