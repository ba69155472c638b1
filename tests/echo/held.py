"""Plugins whose functions block a thread until the test goes on."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

from ostro.core.hooks import hookimpl
from ostro.core.plugins.manager import PluginManager

SLEEPY = """
def forward():
    return gate.wait()

def score(words):
    for word in range(words):
        (even, odd)[word % 2]()

def even():
    gate.wait()

def odd():
    gate.wait()
"""


def module(name: str, source: str = "", **names: Any) -> ModuleType:
    """A module with the functions of a source."""
    made = ModuleType(name)
    vars(made).update(names)
    exec(compile(source, f"/somewhere/{name}.py", "exec"), vars(made))
    return made


def plugins_with(plugin: ModuleType) -> PluginManager:
    manager = PluginManager()
    vars(plugin)["ostro_configure"] = hookimpl(configure)
    manager.register(plugin, plugin.__name__)
    return manager


def configure(settings: Any) -> None: ...


class Gate:
    """Blocks a thread until the test opens it; further calls block again."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Semaphore(0), threading.Semaphore(0)

    def wait(self) -> None:
        self.entered.release()
        self.opened.acquire()
