"""The lines of a batch: requests as JSONL, and results as JSONL."""

from __future__ import annotations

import asyncio
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import Annotated, BinaryIO, Literal

import msgspec

from ostro.core.errors import RequestError
from ostro.entrypoints.operations.documents.batches import Batch, BatchUsage
from ostro.entrypoints.operations.documents.state import State
from ostro.entrypoints.operations.requests.decoding import SMALL, json_aside
from ostro.entrypoints.operations.requests.json_scanner import check_text

LINE_SLACK = 8 << 10
"""Bytes of a line besides its body."""
MAX_REQUESTS, MAX_LINES = 50_000, 100_000
"""Limits on the requests of a batch, and on their lines with blank ones."""
GROUP_BYTES = 1 << 20
"""Bytes of lines that are read at a time."""
GROUP_LINES = 1000
"""Lines that are read at a time."""
PAGE, PAGE_BYTES = 16, 16 << 20
"""Limits on the results that are read at a time, and on their bytes: images have megabytes."""
EXPIRED, CANCELLED = "batch_expired", "batch_cancelled"
"""Codes of errors of requests that did not run."""
FALSE, NULL = msgspec.Raw(b"false"), msgspec.Raw(b"null")


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request of a batch; `body` is JSON, which the route decodes."""

    custom_id: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


class _Options(msgspec.Struct, kw_only=True):
    """The members of a request's body that a batch reads. The body is an object."""

    stream: msgspec.Raw = FALSE
    background: msgspec.Raw = FALSE
    model: msgspec.Raw = NULL


class _Named(msgspec.Struct, kw_only=True):
    """The member of an invalid line that its result needs."""

    custom_id: str | None = None


class LineResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request; `body` is JSON."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a request was not run."""

    code: str
    message: str


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
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


async def read_lines(
    file: BinaryIO, limit: int | None = None
) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield the lines with their numbers from 1, blank ones as b"", and close the file.

    limit: on the bytes of a line. Of a longer line the first `limit + 1` bytes are yielded.
    """
    number = 0
    with file:
        while group := await asyncio.to_thread(read_group, file, limit):
            for line in group:
                number += 1
                # Editors of Windows write a byte order mark.
                yield number, line.removeprefix(BOM_UTF8) if number == 1 else line


def read_group(file: BinaryIO, limit: int | None = None) -> list[bytes]:
    """Read some lines, as `read_lines`; none at the end of the file."""
    lines, size, most = list[bytes](), 0, -1 if limit is None else limit + 1
    while size < GROUP_BYTES and len(lines) < GROUP_LINES:
        line = file.readline(most)
        if not line:
            break
        lines.append(b"" if line.isspace() else line)
        size += len(line)
        long = len(line) == most and not line.endswith(b"\n")
        while long:
            rest = file.readline(GROUP_BYTES)
            size += len(rest)
            long = len(rest) == GROUP_BYTES and not rest.endswith(b"\n")
    return lines


async def parse_line(data: bytes, endpoint: str | None, limit: int) -> Line | LineError:
    """Return the request of a line, or what is wrong with it.

    endpoint: its route, None for any. limit: on the bytes of the line.
    """
    if len(data) > limit:
        return LineError(code="line_too_long", message=f"the line exceeds {limit} bytes")
    return await json_aside(len(data), partial(decode_line, data, endpoint))


def decode_line(data: bytes, endpoint: str | None) -> Line | LineError:
    """Return the request of a line, or what is wrong with it. endpoint: as in `parse_line`."""
    try:
        check_large(data)
        line = msgspec.json.decode(data, type=Line)
        options = msgspec.json.decode(line.body, type=_Options)
    except (RequestError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return LineError(code="invalid_line", message=f"the line is invalid: {error}"[:500])
    if endpoint is not None and line.url != endpoint:
        return LineError(
            code="mismatched_endpoint",
            message=f"the url is {line.url!r:.100}, that of the batch {endpoint!r}",
        )
    for name in ("stream", "background"):
        if getattr(options, name) not in (FALSE, NULL):
            return LineError(code="unsupported", message=f"{name} is not supported in a batch")
    return line


def model_of(body: msgspec.Raw) -> str | None:
    """Return the model that the body of a `Line` names, None for the default model."""
    name = msgspec.json.decode(msgspec.json.decode(body, type=_Options).model)
    return name if isinstance(name, str) else None


async def custom_id_of(data: bytes, limit: int) -> str | None:
    """Return the custom_id of an invalid line, None without one, and for a line beyond a limit."""
    if len(data) > limit:
        return None
    return await json_aside(len(data), partial(decode_custom_id, data))


def decode_custom_id(data: bytes) -> str | None:
    """Return the custom_id of an invalid line, None without one."""
    try:
        check_large(data)
        id = msgspec.json.decode(data, type=_Named).custom_id
    except (RequestError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return None if id is None else id[:512]


def check_large(data: bytes) -> None:
    """Raise RequestError for a large line that is costly to decode."""
    if len(data) > SMALL:
        check_text(data)


def usage_of(result: BatchResult) -> tuple[str | None, BatchUsage]:
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


def add_result(batch: Batch, result: BatchResult) -> Batch:
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
) -> AsyncIterator[tuple[str, BatchResult]]:
    """Yield the results of a batch in the order of its lines, with their ids."""
    after: str | None = None
    more = True
    while more:
        page = await state.list(
            owner,
            line_kind(batch.id),
            BatchResult,
            after=after,
            limit=PAGE,
            descending=False,
            max_bytes=PAGE_BYTES,
        )
        for each in page.items:
            yield each.document.id, each.value
        more, after = page.has_more, page.items[-1].document.id if page.items else None


async def encode_results(state: State, owner: str, batch: Batch, ok: bool) -> AsyncIterator[bytes]:
    """Yield the lines of the output file (`ok`) or of the error file."""
    async for _, result in stored_results(state, owner, batch):
        if result.ok is ok:
            yield msgspec.json.encode(result) + b"\n"
