"""The log of a server on standard error, as text or as JSON: one line per record.

Lines of requests have neither prompts, keys nor query strings. No value breaks a line.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote

from ostro.entrypoints.http.request_record import RequestRecord

ACCESS = "ostro.access"
"""The logger of requests."""
PATH_CHARACTERS = 200
"""Characters of a path in the log."""
CLIENT_CHARACTERS = 100
"""Characters of a client's address in the log: a proxy may pass on what a client wrote."""
PLAIN = re.compile(r"[\w./:@,+-]+", re.ASCII)
"""Values that a line of text contains without quotes."""
log = logging.getLogger(ACCESS)
Format = Literal["text", "json"]


class TextFormatter(logging.Formatter):
    """Begins lines of requests with the time, and all others with "ostro:"."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        return f"{self.formatTime(record)} {line}" if record.name == ACCESS else f"ostro: {line}"


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object in ASCII; `extra={"fields": {...}}` adds members."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if (found := getattr(record, "fields", None)) is not None:
            fields |= found
        else:
            fields["message"] = record.getMessage()
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def configure_log(form: Format) -> None:
    """Write log records to standard error, unless the program has configured its log."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler])
    logging.getLogger("ostro").setLevel(logging.INFO)


def log_request(record: RequestRecord) -> None:
    """Write the line of a request."""
    if not log.isEnabledFor(logging.INFO):
        return
    fields = fields_of(record)
    log.info("%s", LazyText(record, fields), extra={"fields": fields})


class LazyText:
    """The line of a request as text; a log in JSON does not format it."""

    def __init__(self, record: RequestRecord, fields: dict[str, Any]) -> None:
        self.record, self.fields = record, fields

    def __str__(self) -> str:
        fields = dict(self.fields)
        client, key = quote(fields.pop("client"), safe="/:"), fields.pop("key", "-")
        path = quote(fields.pop("path"), safe="/:@")
        version = self.record.scope.get("http_version", "1.1")
        head = f'{client} {key.replace(" ", "-")} "{fields.pop("method")} {path} HTTP/{version}"'
        head += f" {fields.pop('status')} {fields.pop('request_id')}"
        return " ".join([head, *(f"{name}={plain(value)}" for name, value in fields.items())])


def fields_of(record: RequestRecord) -> dict[str, Any]:
    """Return the fields of the line of a request. Times are in seconds."""
    host, port = record.scope.get("client") or ("-", 0)
    seconds = {
        "queue_seconds": record.queue,
        "first_token_seconds": record.first_token,
        "seconds": record.total,
    }
    optional = {
        "key": record.caller,
        "trace_id": record.trace_id,
        "error": record.error,
        "model": record.model,
        "adapters": list(record.adapters),
        "finish_reason": record.finish,
    }
    tokens = {
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "generated_tokens": record.generated_tokens,
    }
    return {
        "request_id": record.id,
        "client": f"{str(host)[:CLIENT_CHARACTERS]}:{port}",
        "method": record.method,
        "path": str(record.scope.get("path", ""))[:PATH_CHARACTERS],
        "route": record.route,
        "status": record.status,
        **{name: value for name, value in optional.items() if value},
        **(tokens if record.model else {}),
        **{name: round(value, 6) for name, value in seconds.items() if value is not None},
        "bytes_in": record.bytes_in,
        "bytes_out": record.bytes_out,
        "disconnected": record.disconnected,
    }


def plain(value: Any) -> str:
    """Return a value as text without spaces; a string with other characters as JSON."""
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) else json.dumps(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(plain, value)) if isinstance(value, list) else str(value)
