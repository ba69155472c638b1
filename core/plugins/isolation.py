"""Isolation of plugin hooks: a hook that raises or returns an invalid result cannot break ostro."""

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
from ostro.core.plugins.kinds import KINDS
from ostro.core.plugins.validation import check_records
from ostro.core.records import API


def isolate(
    function: Callable[..., Any],
    hook: str,
    plugin: str,
    on_error: Callable[[str, BaseException], None],
    trace: bool,
) -> Callable[..., Any]:
    """Wrap the hook function of a plugin so that it is safe to call.

    If it raises or returns an invalid result, the wrapper calls `on_error(plugin, error)` and
    returns None. It re-raises KeyboardInterrupt, and from `ostro_locate` an OstroError, which is a
    message to the user about the reference. `trace` prints each call to stderr.
    """

    @wraps(function)
    def call(*arguments: object) -> object:
        start, result = perf_counter(), None
        try:
            result = check_result(hook, function(*arguments))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            is_user_error = isinstance(error, OstroError) and not isinstance(error, PluginError)
            if hook == "ostro_locate" and is_user_error:
                raise
            on_error(plugin, error)
        if trace:
            ms = (perf_counter() - start) * 1e3
            print(f"ostro: {hook} of {plugin}: {result!r:.100} {ms:.2f} ms", file=sys.stderr)
        return result

    return call


def check_result(hook: str, result: object) -> object:
    """Return a hook's result if it is valid, else raise PluginError."""
    kind = hook.removeprefix(PREFIX)
    if kind in KINDS:
        return check_records(kind, result)
    if hook == "ostro_locate" and not (result is None or isinstance(result, Path)):
        raise PluginError(f"{hook} returned {result!r:.80}, expected a Path or None")
    return result


def message_of(error: BaseException) -> str:
    """An error's message on one line, truncated for the log."""
    try:
        return " ".join(str(error).split())[:400]
    except Exception:
        return "an error that cannot be printed"


def reason(error: BaseException) -> str:
    """Describe a plugin's error on one line, with the file and line in its code."""
    text = message_of(error)
    if isinstance(error, PluginError):
        return text
    if isinstance(error, SystemExit):
        text = f"it called sys.exit({text})"
    elif isinstance(error, TypeError) and "unexpected keyword argument" in text:
        text = text.partition(". Did you mean")[0]  # Python 3.13 appends a similar name
        text += f"; is it a field of another plugin API? this ostro has {API[0]}.{API[1]}"
    else:
        text = f"{type(error).__name__}: {text}"
    frames = extract_tb(error.__traceback__)
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else text
