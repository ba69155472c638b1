"""The watchdog names the plugin that holds a loop. Tests call its checks: a check is a second."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from echo.held import SLEEPY, Gate, configure, module, plugins_with
from echo.thread import QueueInbox

from ostro.core.hooks import hookimpl
from ostro.core.ipc.loop import drive
from ostro.core.messages.commands import Close
from ostro.core.plugins.manager import PluginManager
from ostro.core.plugins.watchdog import LONG_CALLS, NOTICES, Watchdog

FIRST, SECOND = NOTICES


class OneCall:
    """An engine whose step runs a call."""

    busy, infos = True, dict[str, Any]()

    def __init__(self, call: Callable[[], object]) -> None:
        self.call, self.runnable = call, True

    def step(self) -> list[Any]:
        self.runnable = False
        self.call()
        return []

    def events(self) -> list[Any]:
        return []

    def set_wake(self, notify: Callable[[], None]) -> None: ...

    def close(self) -> None: ...


@contextmanager
def engine_loop(
    plugins: PluginManager, call: Callable[[], object], reports: list[str]
) -> Iterator[Watchdog]:
    """The watchdog of an engine's loop in a thread, whose step runs a call."""
    inbox, made = QueueInbox(), list[Watchdog]()
    ready = threading.Event()

    def run() -> None:
        made.append(Watchdog("the engine's loop", plugins, reports.append))
        ready.set()
        drive(OneCall(call), inbox, lambda message: None, made[0])  # type: ignore[arg-type]

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    yield made[0]
    inbox.put(Close())
    thread.join()


def check(watchdog: Watchdog, times: int) -> None:
    for _ in range(times):
        watchdog.check()


def test_a_plugin_that_holds_the_engine_is_named(caplog: pytest.LogCaptureFixture) -> None:
    gate, reports = Gate(), list[str]()
    sleepy = module("sleepy", SLEEPY, gate=gate)
    with engine_loop(plugins_with(sleepy), sleepy.forward, reports) as watchdog:
        gate.entered.acquire()
        check(watchdog, FIRST)
        assert not caplog.messages, "the first check only sees the call"
        check(watchdog, 1)
        held = "plugin sleepy has held the engine's loop for {} s at sleepy.py:3"
        assert caplog.messages == reports == [held.format(FIRST)]
        check(watchdog, SECOND - FIRST)
        assert caplog.messages[1:] == reports[1:] == [held.format(SECOND)]
        check(watchdog, 2 * SECOND)
        assert len(caplog.messages) == 2
        assert {record.levelno for record in caplog.records} == {logging.WARNING}
        gate.opened.release()
    check(watchdog, 2)
    assert caplog.messages[2:] == [f"the engine's loop goes on after {3 * SECOND} s"]
    assert reports[2:] == [""]


def test_a_plugin_that_calls_its_own_functions_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Gate()
    busy = module("busy", SLEEPY, gate=gate)
    with engine_loop(plugins_with(busy), lambda: busy.score(FIRST + 1), []) as watchdog:
        for _ in range(FIRST + 1):
            gate.entered.acquire()
            watchdog.check()
            gate.opened.release()
    line = f"plugin busy has held the engine's loop for {FIRST} s at busy.py:10"
    assert caplog.messages[0] == line


def test_a_long_step_that_goes_from_layer_to_layer_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Gate()
    source = """
class Layer:
    def forward(self):
        gate.wait()

def hidden(layers):
    for layer in layers:
        layer.forward()
"""
    model, quantizer = module("model", source, gate=gate), module("planes", source, gate=gate)
    layers = [quantizer.Layer() for _ in range(2 * SECOND)]
    manager = plugins_with(model)
    vars(quantizer)["ostro_configure"] = hookimpl(configure)
    manager.register(quantizer, "planes")
    with engine_loop(manager, lambda: model.hidden(layers), []) as watchdog:
        for _ in layers:
            gate.entered.acquire()
            watchdog.check()
            gate.opened.release()
    assert not caplog.messages


def test_code_of_no_plugin_is_named_by_its_place(caplog: pytest.LogCaptureFixture) -> None:
    gate, reports = Gate(), list[str]()
    core = module("ostro.core.somewhere", SLEEPY, gate=gate)
    with engine_loop(PluginManager(), core.forward, reports) as watchdog:
        gate.entered.acquire()
        check(watchdog, FIRST + 1)
        gate.opened.release()
    place = "ostro.core.somewhere.py:3"
    assert reports == [f"the engine's loop is held for {FIRST} s at {place}, by no plugin"]


@pytest.mark.parametrize("name", LONG_CALLS)
def test_calls_that_may_take_long_are_not_logged(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate, sleepy = Gate(), module("sleepy", SLEEPY)
    vars(sleepy)["gate"] = gate
    package = name.rstrip(".") if name.endswith(".") else name.rsplit(".", 2)[0]
    source = "class Graphs:\n    def capture(self, call): call()\n"
    source += "def other(call): call()\n"
    long = module(package, source)
    call = long.other if name.endswith(".") else long.Graphs().capture
    with engine_loop(plugins_with(sleepy), lambda: call(sleepy.forward), []) as watchdog:
        gate.entered.acquire()
        check(watchdog, 2 * SECOND)
        gate.opened.release()
    assert not caplog.messages


def test_the_names_of_long_calls_exist() -> None:
    """A renamed function would be logged again."""
    root = Path(__file__).parents[3]
    for name in LONG_CALLS:
        if name.startswith("ostro."):
            path, _, rest = name.removeprefix("ostro.").partition("Graphs")
            file = root / (path.rstrip(".").replace(".", "/") + ".py")
            assert file.exists(), name
            assert not rest or f"    def {rest.removeprefix('.')}(" in file.read_text()


def test_a_loop_that_waits_or_goes_on_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    sleepy = module("sleepy", SLEEPY, gate=gate)
    with engine_loop(plugins_with(sleepy), sleepy.forward, []) as watchdog:
        gate.entered.acquire()
        for _ in range(2 * SECOND):
            watchdog.passes += 1
            watchdog.check()
        gate.opened.release()
    watchdog.waiting = True
    check(watchdog, 2 * SECOND)
    assert not caplog.messages
