"""The processes that render chat templates."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from tiny.chats import (
    CHATML,
    USER,
)

from ostro.core.chat import ChatTemplate, Renderer
from ostro.core.chat.renderer import PATIENCE
from ostro.core.errors import Overloaded, TemplateError


class TestRenderer:
    @pytest.fixture
    def renderer(self) -> Iterator[Renderer]:
        renderer = Renderer(timeout=0.3)
        yield renderer
        renderer.close()

    def test_a_process_that_was_killed_is_replaced(self, renderer: Renderer) -> None:
        assert renderer.render("a", {}, 10) == "a"
        pid = renderer.workers[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert renderer.render("b", {}, 10) == "b"
        assert renderer.workers[0].pid != pid

    def test_a_process_that_hangs_is_no_fault_of_the_template(self) -> None:
        renderer = Renderer()
        assert renderer.render("a", {}, 10) == "a"
        pid = renderer.workers[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        usual, renderer.timeout = renderer.timeout, 0.02
        with pytest.raises(Overloaded, match="try again"):
            renderer.render("b", {}, 10)
        renderer.timeout = usual
        assert renderer.render("c", {}, 10) == "c"
        renderer.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    def test_a_process_that_hangs_delays_no_other_rendering(self) -> None:
        renderer = Renderer(timeout=1.0)
        assert renderer.render("a", {}, 10) == "a"
        pid = renderer.workers[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        stuck = threading.Thread(target=renderer.render, args=("b", {}, 10))
        stuck.start()
        try:
            begin = time.monotonic()
            assert [renderer.render(text, {}, 10) for text in "cde"] == [*"cde"]
            assert time.monotonic() - begin < renderer.timeout * PATIENCE / 2
            assert stuck.is_alive()
            assert renderer.workers[2].pid is None, "a process was started although one is idle"
        finally:
            os.kill(pid, signal.SIGCONT)
            stuck.join(20)
        assert renderer.workers[0].pid == pid
        renderer.close()

    def test_no_process_is_left(self, renderer: Renderer) -> None:
        renderer.render("a", {}, 10)
        pid = renderer.workers[0].pid
        assert pid is not None
        renderer.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    def test_a_late_one_delays_no_other_for_long(self, renderer: Renderer) -> None:
        late = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
        said: list[str] = []

        def work(source: str) -> None:
            try:
                said.append(renderer.render(source, {}, 10))
            except TemplateError as error:
                said.append(str(error))

        threads = [threading.Thread(target=work, args=(source,)) for source in [late, *"abcdef"]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert sorted(said) == [*"abcdef", "the chat template took longer than 0.3 s to render"]

    def test_rendering_is_quick(self) -> None:
        template = ChatTemplate(CHATML, tokens={})
        template.render(USER)
        start = time.process_time()
        for _ in range(100):
            template.render(USER)
        assert time.process_time() - start < 2

    def test_a_megabyte_passes(self) -> None:
        content = "hello " * 200_000
        text = ChatTemplate(CHATML, tokens={}).render([{"role": "user", "content": content}])
        assert content in text
