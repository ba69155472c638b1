"""The lines of a batch: requests as JSONL, and results as JSONL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, BinaryIO, Literal

import msgspec

from ostro.entrypoints.operations.batches import Batch, BatchUsage
from ostro.entrypoints.operations.state import State

MAX_LINE = 50 << 20
"""Limit on the bytes of a line."""
MAX_LINES = 50_000
"""Limit on the requests of a batch."""
GROUP_BYTES = 1 << 20
"""Bytes of lines that are read at a time."""
PAGE = 16
"""Results that are read at a time."""
EXPIRED, CANCELLED = "batch_expired", "batch_cancelled"
"""Codes of errors of requests that did not run."""
FALSE, NULL = msgspec.Raw(b"false"), msgspec.Raw(b"null")


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request of a batch. The route decodes the JSON of the fields of its body."""

    custom_id: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: str
    body: dict[str, msgspec.Raw]


class LineResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request; `body` is JSON."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a request was not run."""

    code: str
    message: str


class LineResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a request: a line of an output file, or of an error file."""

    id: str
    custom_id: str | None
    response: LineResponse | None = None
    error: LineError | None = None

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return self.response is not None and self.response.status_code < 400


class _Tokens(msgspec.Struct, kw_only=True):
    """The fields `usage` of the responses of all routes.

    Responses count input and output, the others prompt and completion.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: dict[str, int | None] | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: dict[str, int | None] | None = None


class _Answer(msgspec.Struct, kw_only=True):
    """What a batch reads of a response."""

    model: str | None = None
    usage: _Tokens | None = None


def line_kind(id: str) -> str:
    """Return the kind of the results of a batch."""
    return f"batch_line/{id}"


def line_id(number: int) -> str:
    """Return the id of the result of a line."""
    return f"{number:032x}"


async def read_lines(file: BinaryIO) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield the lines that are not blank, with their numbers from 1, and close the file.

    Of a line beyond `MAX_LINE` the first `MAX_LINE + 1` bytes are yielded.
    """
    number = 0
    with file:
        while group := await asyncio.to_thread(read_group, file):
            for line in group:
                number += 1
                if line.strip():
                    yield number, line


def read_group(file: BinaryIO) -> list[bytes]:
    """Read some lines; none at the end of the file."""
    lines, size = list[bytes](), 0
    while size < GROUP_BYTES:
        line = file.readline(MAX_LINE + 1)
        if not line:
            break
        lines.append(line)
        size += len(line)
        while len(line) == MAX_LINE + 1 and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE + 1)  # skip the rest
            size += len(line)
    return lines


def parse_line(data: bytes, endpoint: str | None) -> Line | LineError:
    """Return the request of a line, or what is wrong with it. endpoint: its route, None for any."""
    if len(data) > MAX_LINE:
        return LineError(code="line_too_long", message=f"the line exceeds {MAX_LINE} bytes")
    try:
        line = msgspec.json.decode(data, type=Line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return LineError(code="invalid_line", message=f"the line is invalid: {error}"[:500])
    if endpoint is not None and line.url != endpoint:
        return LineError(
            code="mismatched_endpoint",
            message=f"the url is {line.url!r:.100}, that of the batch {endpoint!r}",
        )
    for name in ("stream", "background"):
        if line.body.get(name, FALSE) not in (FALSE, NULL):
            return LineError(code="unsupported", message=f"{name} is not supported in a batch")
    return line


def custom_id_of(data: bytes) -> str | None:
    """Return the custom_id of an invalid line, None without one."""
    try:
        found = msgspec.json.decode(data[: MAX_LINE + 1])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    id = found.get("custom_id") if isinstance(found, dict) else None
    return id[:512] if isinstance(id, str) else None


def usage_of(result: LineResult) -> tuple[str | None, BatchUsage]:
    """Return the model and the tokens of a successful response."""
    if result.response is None:
        return None, BatchUsage()
    try:
        answer = msgspec.json.decode(result.response.body, type=_Answer)
    except msgspec.MsgspecError:
        return None, BatchUsage()
    used = answer.usage or _Tokens()
    details = used.prompt_tokens_details or used.input_tokens_details or {}
    return answer.model, BatchUsage(
        input=used.prompt_tokens or used.input_tokens,
        cached=details.get("cached_tokens") or 0,
        output=used.completion_tokens or used.output_tokens,
    )


def add_result(batch: Batch, result: LineResult) -> Batch:
    """Return a batch that counts one more result."""
    if not result.ok:
        unrun = result.error is not None and result.error.code in (EXPIRED, CANCELLED)
        return msgspec.structs.replace(
            batch, failed=batch.failed + 1, unrun=batch.unrun + int(unrun)
        )
    model, used = usage_of(result)
    before = batch.usage
    return msgspec.structs.replace(
        batch,
        completed=batch.completed + 1,
        model=batch.model or model,
        usage=BatchUsage(
            input=before.input + used.input,
            cached=before.cached + used.cached,
            output=before.output + used.output,
        ),
    )


async def stored_results(
    state: State, owner: str, batch: Batch
) -> AsyncIterator[tuple[str, LineResult]]:
    """Yield the results of a batch in the order of its lines, with their ids."""
    after: str | None = None
    more = True
    while more:
        page = await state.list(
            owner, line_kind(batch.id), LineResult, after=after, limit=PAGE, descending=False
        )
        for each in page.items:
            yield each.document.id, each.value
        more, after = page.has_more, page.items[-1].document.id if page.items else None


async def encode_results(state: State, owner: str, batch: Batch, ok: bool) -> AsyncIterator[bytes]:
    """Yield the lines of the output file (`ok`) or of the error file."""
    async for _, result in stored_results(state, owner, batch):
        if result.ok is ok:
            yield msgspec.json.encode(result) + b"\n"
