"""A server with a list of models, and programs that record what they are started with."""

from __future__ import annotations

import json
import subprocess
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

RECORD = """\
#!/bin/sh
cd "$RECORD" || exit 1
env -0 > environment
printf '%s\\0' "$@" > arguments
exit 7
"""


@dataclass
class ModelServer:
    """A server that answers `GET /v1/models`; `paths` and `keys` are those of its requests."""

    models: list[dict[str, Any]]
    status: int = 200
    paths: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    url: str = ""

    def start(self) -> ThreadingHTTPServer:
        """Listen in a thread."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.paths.append(self.path)
                fake.keys.append(self.headers.get("Authorization"))
                body = json.dumps({"data": fake.models, "object": "list"}).encode()
                self.send_response(fake.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: object) -> None:
                """Log nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        return server


def model(name: str, context: int | None = 65536) -> dict[str, Any]:
    return {"id": name, "object": "model", "max_model_len": context}


@dataclass(frozen=True)
class Home:
    """A home folder, with a folder of programs and one for what they record."""

    path: Path
    programs: Path
    record: Path

    def install(self, command: str, text: str = RECORD) -> None:
        """Put a program on the PATH."""
        file = self.programs / command
        file.write_text(text)
        file.chmod(0o755)

    def started(self) -> tuple[list[str], dict[str, str]]:
        """The arguments and the environment of the program that was started."""
        arguments = (self.record / "arguments").read_text().split("\0")[:-1]
        variables = (self.record / "environment").read_text().split("\0")[:-1]
        return arguments, dict(each.split("=", 1) for each in variables)

    def files(self) -> dict[str, str]:
        """The texts of all files, by their paths from the home folder."""
        found = (each for each in self.path.rglob("*") if each.is_file())
        return {each.relative_to(self.path).as_posix(): each.read_text() for each in found}


def run_in_place(path: str, words: list[str], environment: dict[str, str]) -> NoReturn:
    """`os.execve`, but this process survives and exits with the code of the program."""
    ran = subprocess.run(words, executable=path, env=environment, timeout=60, check=False)
    raise SystemExit(ran.returncode)
