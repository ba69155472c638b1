"""Run pytest, then run each failed test once more, alone, in a process of its own.

Usage: python tests/retry.py PYTEST_ARGUMENT...

A test that passes the second time is flaky: the last lines name it, and the log has the output of
both runs. The exit code is that of the first run, or 0 if each failed test passed the second time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

MOST_FLAKY = 3
"""More failed tests than this are not run again: flaky or not, they fail the run."""


def run(*arguments: str) -> int:
    """Run pytest in a process of its own. Returns its exit code."""
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def run_all(arguments: Sequence[str]) -> tuple[int, list[str]]:
    """Run pytest. Returns its exit code and the sorted ids of the failed tests."""
    with tempfile.TemporaryDirectory() as cache:  # without the failures of earlier runs
        code = run("-o", f"cache_dir={cache}", *arguments)
        failed = Path(cache, "v", "cache", "lastfailed")
        return code, sorted(json.loads(failed.read_text())) if failed.exists() else []


def main(arguments: Sequence[str]) -> int:
    """Run pytest with the arguments, and the failed tests again. Returns the exit code."""
    code, failed = run_all(arguments)
    collected = all("::" in test for test in failed)  # the id of an unreadable file has none
    if code != 1 or not collected or not 0 < len(failed) <= MOST_FLAKY:
        return code
    print(f"\nfailed, now run once more, alone: {', '.join(failed)}", flush=True)
    codes = [run("-vv", "-rP", test) for test in failed]
    for test, second in zip(failed, codes, strict=True):
        print(f"FAILED twice: {test}" if second else f"FLAKY, passed the second time: {test}")
    return code if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
