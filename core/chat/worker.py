"""The process that renders chat templates: sandboxed, with little memory, killed when it is late.

It is run as a script with the parent's import path as its argument, and imports jinja2 alone.
Requests and replies are JSON behind a length of four bytes, on stdin and stdout.
"""

from __future__ import annotations

import json
import sys
from typing import Any

if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])

import signal
import struct
import traceback
from datetime import datetime
from functools import lru_cache

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY = 512 << 20
"""Bytes of address space the process may use."""

MESSAGE = 500
"""Characters of an error message that are kept."""


class Generation(Extension):
    """`{% generation %}` marks what the assistant said, for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Give the body of the block in its place."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as chat templates expect it: as it is, not escaped for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class Raised(jinja2.TemplateError):
    """What a template says through `raise_exception`."""


def raise_exception(message: Any) -> None:
    """Let a template refuse a conversation."""
    raise Raised(str(message)[:MESSAGE])


def strftime_now(format: str) -> str:
    """Write the local time."""
    return datetime.now().strftime(format)


def environment() -> ImmutableSandboxedEnvironment:
    """Build the environment of chat templates, the same that transformers has."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return made


ENVIRONMENT = environment()


@lru_cache(maxsize=32)
def compile_template(source: str) -> jinja2.Template:
    """Compile a template; jinja2 computes its constant expressions here already."""
    return ENVIRONMENT.from_string(source)


def render(source: str, context: dict[str, Any], limit: int) -> str:
    """Render to at most `limit` characters."""
    chunks, size = [], 0
    for chunk in compile_template(source).generate(context):
        size += len(chunk)
        if size > limit:
            raise Raised(f"the chat template writes more than {limit} characters")
        chunks.append(chunk)
    return "".join(chunks)


def answer(data: bytes) -> dict[str, Any]:
    """Render what a request asks for, or say what went wrong and in which line.

    A request that takes more processor time than it may ends this process.
    """
    try:
        request = json.loads(data)
        limit_time(request["seconds"])
        return {"text": render(request["template"], request["context"], request["limit"])}
    except Raised as error:
        return {"raised": str(error)}
    except jinja2.TemplateSyntaxError as error:
        return {"error": error.message, "line": error.lineno}
    except MemoryError:
        return {"error": f"it needs more than {MEMORY >> 20} MiB of memory", "line": None}
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
        said = str(error) or type(error).__name__
        return {"error": said[:MESSAGE], "line": lines[-1] if lines else None}


def limit_time(seconds: float) -> None:
    """Die of SIGPROF after so much processor time from now; 0 takes the limit away.

    Processor time, because a busy machine is no fault of a template; and the signal's own action,
    because Python's handlers wait for a long computation to end.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def limit_resources() -> None:
    """Take away what rendering does not need: memory beyond a limit, and writing files."""
    try:
        import resource
    except ImportError:  # not a Unix: the parent's deadline is the only limit
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve() -> None:
    """Say that we are ready, then answer until stdin ends, as it does when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_resources()
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    replies.write(struct.pack(">I", 0))
    replies.flush()
    while head := requests.read(4):
        (size,) = struct.unpack(">I", head)
        reply = json.dumps(answer(requests.read(size))).encode()
        limit_time(0)
        replies.write(struct.pack(">I", len(reply)) + reply)
        replies.flush()


if __name__ == "__main__":
    serve()
