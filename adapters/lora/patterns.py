"""Match the regular expressions of an adapter's config with module names.

Configs are untrusted: patterns with repeats or groups can take exponential time, so they run in a
process with a timeout.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence

from ostro import errors

SECONDS = 10.0
"""The time limit of matching all names."""

# patterns without repeats and groups cannot backtrack exponentially: no process is needed
_QUICK = re.compile(r"[\w.^$\\-]*")
_CHILD = """
import json, re, sys
patterns, names = json.load(sys.stdin)
try:
    compiled = [re.compile(pattern) for pattern in patterns]
except (re.error, RecursionError, OverflowError) as error:
    json.dump(str(error), sys.stdout)
else:
    found = (next((i for i, p in enumerate(compiled) if p.fullmatch(n)), None) for n in names)
    json.dump(list(found), sys.stdout)
"""


def first(
    key: str, patterns: Sequence[str], names: Sequence[str], *, ends: bool = False
) -> list[int | None]:
    """For each name the index of the first pattern that matches it fully, or None.

    With `ends` a pattern may match the end of a name, after a dot. `key` is the config key of the
    patterns. Raises AdapterError for an invalid regular expression, or if matching takes more than
    SECONDS.
    """
    whole = [rf"(.*\.)?({pattern})$" if ends else pattern for pattern in patterns]
    if not all(_QUICK.fullmatch(pattern) for pattern in patterns):
        return _killable(key, whole, names)
    try:
        compiled = [re.compile(pattern) for pattern in whole]
    except re.error as error:
        raise _malformed(key, str(error)) from None
    return [next((i for i, p in enumerate(compiled) if p.fullmatch(n)), None) for n in names]


def _killable(key: str, patterns: Sequence[str], names: Sequence[str]) -> list[int | None]:
    try:
        ran = subprocess.run(
            # isolated and without site-packages, for a fast start
            [sys.executable, "-I", "-S", "-c", _CHILD],
            input=json.dumps([[*patterns], [*names]]),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise errors.AdapterError(
            f"the adapter's config: {key}: matching takes more than {SECONDS:g} s; write the names "
            "out instead"
        ) from None
    except subprocess.CalledProcessError as error:
        raise _malformed(key, f"matching ended with {error.returncode}") from None
    found = json.loads(ran.stdout)
    if isinstance(found, str):
        raise _malformed(key, found)
    return found


def _malformed(key: str, why: str) -> errors.AdapterError:
    return errors.AdapterError(f"the adapter's config: {key}: no regular expression: {why}")
