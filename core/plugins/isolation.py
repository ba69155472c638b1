"""The guard round a plugin's hook: out of it come only answers, and errors meant for the user."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from time import perf_counter
from traceback import extract_tb
from typing import Any

from ostro.core.errors import OstroError, PluginError
from ostro.core.hooks import PREFIX
from ostro.core.plugins.validation import declared
from ostro.core.records import API, KINDS


def guarded(
    function: Callable[..., Any],
    hook: str,
    plugin: str,
    blame: Callable[[str, BaseException], None],
    trace: bool,
) -> Callable[..., Any]:
    """The hook function of a plugin, made safe to call.

    Whatever it raises, and any answer that is none, goes to `blame(plugin, error)`, and the caller
    gets None. Only KeyboardInterrupt passes, and from `ostro_locate` the errors that tell the user
    what is wrong with the reference. `trace` prints each call to stderr.
    """

    @wraps(function)
    def call(*arguments: object) -> object:
        start, answer = perf_counter(), None
        try:
            answer = checked(hook, function(*arguments))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            meant = isinstance(error, OstroError) and not isinstance(error, PluginError)
            if hook == "ostro_locate" and meant:
                raise
            blame(plugin, error)
        if trace:
            ms = (perf_counter() - start) * 1e3
            print(f"ostro: {hook} of {plugin}: {answer!r:.100} {ms:.2f} ms", file=sys.stderr)
        return answer

    return call


def checked(hook: str, answer: object) -> object:
    """A hook's answer, if it is one. Raises PluginError otherwise."""
    kind = hook.removeprefix(PREFIX)
    if kind in KINDS:
        return declared(kind, answer)
    if hook == "ostro_locate" and not (answer is None or isinstance(answer, Path)):
        raise PluginError(f"{hook} answered with {answer!r:.80}, not with a Path or None")
    return answer


def message_of(error: BaseException) -> str:
    """An error's message on one line, cut to a length that a log can hold."""
    try:
        return " ".join(str(error).split())[:400]
    except Exception:
        return "an error that cannot be printed"


def reason(error: BaseException) -> str:
    """One line that says what a plugin did: the error, and the place in its code."""
    text = message_of(error)
    if isinstance(error, PluginError):
        return text
    if isinstance(error, SystemExit):
        text = f"it called sys.exit({text})"
    elif isinstance(error, TypeError) and "unexpected keyword argument" in text:
        text = text.partition(". Did you mean")[0]  # Python 3.13 appends a similar name
        text += f"; is it a field of another plugin API? this ostro speaks {API[0]}.{API[1]}"
    else:
        text = f"{type(error).__name__}: {text}"
    frames = extract_tb(error.__traceback__)
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else text
