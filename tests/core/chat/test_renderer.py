"""The processes that render chat templates."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from itertools import count

import pytest
from tiny.chats import (
    CHATML,
    USER,
)

from ostro.core.chat import ChatTemplate, Renderer
from ostro.core.chat.renderer import PATIENCE, TIMEOUT
from ostro.core.errors import Overloaded, TemplateError


class TestRenderer:
    @pytest.fixture
    def renderer(self) -> Iterator[Renderer]:
        renderer = Renderer(clock=lambda: 0.0)
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
        # Each reading of the clock moves it: it passes the deadline after the request is sent.
        times, step = count(), 0.0
        renderer = Renderer(clock=lambda: next(times) * step)
        assert renderer.render("a", {}, 10) == "a"
        pid = renderer.workers[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        step = 0.6 * TIMEOUT * PATIENCE
        with pytest.raises(Overloaded, match="did not answer within 15 s; try again"):
            renderer.render("b", {}, 10)
        step = 0.0
        assert renderer.render("c", {}, 10) == "c"
        renderer.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    def test_a_process_that_hangs_delays_no_other_rendering(self) -> None:
        waiting = threading.Event()

        def clock() -> float:
            waiting.set()  # a thread has taken a process and sends its request
            return 0.0

        renderer = Renderer(clock=clock)
        assert renderer.render("a", {}, 10) == "a"
        waiting.clear()
        pid = renderer.workers[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        stuck = threading.Thread(target=renderer.render, args=("b", {}, 10))
        stuck.start()
        try:
            assert waiting.wait(60)
            assert [renderer.render(text, {}, 10) for text in "cde"] == [*"cde"]
            assert stuck.is_alive()
            assert renderer.workers[2].pid is None, "a process was started although one is idle"
        finally:
            os.kill(pid, signal.SIGCONT)
            stuck.join()
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
            thread.join()
        assert sorted(said) == [*"abcdef", "the chat template took longer than 1 s to render"]

    def test_one_process_renders_repeatedly(self, renderer: Renderer) -> None:
        template = ChatTemplate(CHATML, tokens={}, renderer=renderer)
        template.render(USER)
        pid = renderer.workers[0].pid
        for _ in range(100):
            template.render(USER)
        assert [worker.pid for worker in renderer.workers] == [pid, None, None]

    def test_a_megabyte_passes(self, renderer: Renderer) -> None:
        template = ChatTemplate(CHATML, tokens={}, renderer=renderer)
        content = "hello " * 200_000
        text = template.render([{"role": "user", "content": content}])
        assert content in text
