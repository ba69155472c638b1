"""The process that compiles grammars first, with limits on memory and processor time.

It runs as a script with the parent's import path as its argument. Requests and replies on stdin
and stdout are MessagePack in the frames of `WorkerProcess`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])

import os
import signal

import msgspec
from llguidance import LLTokenizer

from ostro.errors import OstroError
from ostro.plugins.logits.grammar.matcher import build_matcher, build_tokenizer
from ostro.plugins.logits.grammar.parameter import ENCLOSING
from ostro.plugins.logits.grammar.source import SpecialTokens, write_source

MEMORY = 512 << 20
"""Limit on the memory that the process maps after its start, in bytes."""
PRIORITY = 10
"""Added to the nice value of this process, and of the engine's thread that compiles: steps of the
engine go first.
"""
VOCABULARIES = 4
"""The most vocabularies that are kept."""

Known = tuple[LLTokenizer, SpecialTokens]


def answer(request: dict[str, Any], known: dict[str, Known]) -> dict[str, Any]:
    """Handle one request: add a vocabulary, or compile a grammar for one.

    The process ends if compiling exceeds its processor time.
    """
    key = request["key"]
    if "pieces" in request:
        while len(known) >= VOCABULARIES:
            del known[next(iter(known))]
        tokens = SpecialTokens(request["special"], request["ends"])
        known[key] = build_tokenizer(request["pieces"], tokens.special, tokens.ends), tokens
        return {}
    if key not in known:
        return {"missing": True}
    limit_time(request["seconds"])
    try:
        return {"source": compile_grammar(request["parameter"], *known[key])}
    except OstroError as error:
        return {"error": str(error)}
    except RecursionError:
        return {"error": "the grammar nests too deeply; name its inner parts"}
    except MemoryError:
        return {"error": f"compiling the grammar exceeds {MEMORY >> 20} MiB of memory; simplify it"}
    finally:
        limit_time(0)


def compile_grammar(
    parameter: dict[str, Any], tokenizer: LLTokenizer, tokens: SpecialTokens
) -> str:
    """The source of a grammar that compiles. Raises RequestError for others."""
    bare = {key: value for key, value in parameter.items() if key not in ENCLOSING}
    if len(bare) < len(parameter):
        # Other output may come first, so that a grammar that nothing satisfies would show late.
        build_matcher(tokenizer, write_source(bare, tokens))
    source = write_source(parameter, tokens)
    build_matcher(tokenizer, source)
    return source


def limit_time(seconds: float) -> None:
    """End this process by SIGPROF after this much processor time from now; 0 removes the limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def limit_resources() -> None:
    """Limit memory, and disable writing files and core dumps."""
    try:
        import resource
    except ImportError:  # not Unix: the time limit of the parent remains
        return
    os.nice(PRIORITY)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve() -> None:
    """Send an empty reply once ready, then handle requests until stdin ends with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # llguidance writes to stderr where it panics, and may quote the grammar.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    limit_resources()
    requests, replies, known = sys.stdin.buffer, sys.stdout.buffer, dict[str, Known]()
    reply = b""
    while True:
        replies.write(len(reply).to_bytes(8, "little") + reply)
        replies.flush()
        if not (head := requests.read(8)):
            return
        request = msgspec.msgpack.decode(requests.read(int.from_bytes(head, "little")))
        reply = msgspec.msgpack.encode(answer(request, known))


if __name__ == "__main__":
    serve()
