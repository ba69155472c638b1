"""The process that renders chat templates: sandboxed, with limits on memory and processor time.

It runs as a script with the parent's import path as its argument and imports jinja2 only. Requests
and replies on stdin and stdout are JSON in the frames of `core/worker.py`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])

import signal
import traceback
from datetime import datetime
from functools import lru_cache

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY = 512 << 20
"""Limit on the address space of the process, in bytes."""

MESSAGE = 500
"""Limit on the length of an error message, in characters."""


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's turns for training; rendering ignores it."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Replace the block by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialize to JSON without HTML escapes, as transformers does."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class Raised(jinja2.TemplateError):
    """The error of a template's `raise_exception`."""


def raise_exception(message: Any) -> None:
    """Reject a conversation; a function of templates."""
    raise Raised(str(message)[:MESSAGE])


def strftime_now(format: str) -> str:
    """Format the local time; a function of templates."""
    return datetime.now().strftime(format)


def environment() -> ImmutableSandboxedEnvironment:
    """Build the environment of chat templates, equal to that of transformers."""
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    sandbox.filters["tojson"] = tojson
    sandbox.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return sandbox


ENVIRONMENT = environment()


@lru_cache(maxsize=32)
def compile_template(source: str) -> jinja2.Template:
    """Compile a template. jinja2 evaluates constant expressions here."""
    return ENVIRONMENT.from_string(source)


def render(source: str, context: dict[str, Any], limit: int) -> str:
    """Render a template. Raises Raised beyond `limit` characters."""
    chunks, size = [], 0
    for chunk in compile_template(source).generate(context):
        size += len(chunk)
        if size > limit:
            raise Raised(f"the chat template renders more than {limit} characters")
        chunks.append(chunk)
    return "".join(chunks)


def answer(data: bytes) -> dict[str, Any]:
    """Handle one request; errors become a reply with the line of the template.

    The process ends if the request exceeds its processor time.
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
        return {"error": f"rendering exceeds {MEMORY >> 20} MiB of memory", "line": None}
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
        message = str(error) or type(error).__name__
        return {"error": message[:MESSAGE], "line": lines[-1] if lines else None}


def limit_time(seconds: float) -> None:
    """End this process by SIGPROF after this much processor time from now; 0 removes the limit.

    A limit on wall-clock time would fail on a busy machine. A Python signal handler would only run
    after a long computation in C has ended.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def limit_resources() -> None:
    """Limit the memory of this process, and disable writing files and core dumps."""
    try:
        import resource
    except ImportError:  # not Unix: the time limit of the parent remains
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve() -> None:
    """Send an empty reply once ready, then handle requests until stdin ends with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_resources()
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    replies.write((0).to_bytes(8, "little"))
    replies.flush()
    while head := requests.read(8):
        size = int.from_bytes(head, "little")
        reply = json.dumps(answer(requests.read(size))).encode()
        limit_time(0)
        replies.write(len(reply).to_bytes(8, "little") + reply)
        replies.flush()


if __name__ == "__main__":
    serve()
