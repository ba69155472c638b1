"""Writes docs/clients.md: python tests/peers/client_table.py.

The table of the features of client libraries: what works, and what the server rejects.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1]))

from client_server import NODE_MODULES, PYTHON, ROOT, run, serve

Row = dict[str, str]

PAGE = ROOT / "docs" / "clients.md"
CLIENTS = Path(__file__).parent / "clients"
OWN = Path(sys.executable)
"""The interpreter of the tests, which has other versions of some clients."""
VERSION = """
import importlib.metadata, json, sys
print(json.dumps(importlib.metadata.version(sys.argv[1])))
"""
HEAD = """\
# Clients

What the clients of the vendors do on a server of the starter model. Every method that has a route
here runs with the synchronous client, the asynchronous client and, where there is one, as a stream.
OpenAI's and Anthropic's clients validate strictly (`_strict_response_validation`), the others by
their types. `tests/peers/client_table.py` runs the programs in `tests/peers/clients` and writes
this page.

- *works*: the result has the type and the content that the program expects.
- *rejected*: an error with this status and code, whose message names the field, the task or the
  route. Routes with the code `unknown_url` are outside the scope of this server.
- \\*: not validated, since the types of the client reject what its vendor sends (a `finish_reason`
  that is null in streams of completions, embeddings in base64, stored messages of a user).

Audio, images and rankings are those of small models with random weights beside the starter model.
[`http-api.md`](http-api.md) lists the fields of all routes;
[`tools-and-reasoning.md`](tools-and-reasoning.md) what client libraries do with tools and schemas.
OpenAI's and Anthropic's clients for Python and JavaScript send every parameter of their types, and
each has the effect that `http-api.md` states.
"""


@dataclass(frozen=True)
class Client:
    """A client: its package, the programs that use it, and the interpreters that have it."""

    title: str
    package: str
    programs: tuple[str, ...]
    pythons: tuple[Path, ...] = (PYTHON,)


CLIENTS_OF_VENDORS = {
    client.package: client
    for client in (
        Client(
            "OpenAI",
            "openai",
            ("routes_openai", "routes_openai_stored", "routes_openai_media"),
            (OWN, PYTHON),
        ),
        Client("Anthropic", "anthropic", ("routes_anthropic",), (OWN, PYTHON)),
        Client("Ollama", "ollama", ("routes_ollama",)),
        Client("Cohere", "cohere", ("routes_cohere",)),
        Client("Without a client", "httpx", ("routes_http",)),
    )
}


NODE = {
    "openai": ("OpenAI", "openai"),
    "anthropic": ("Anthropic", "@anthropic-ai/sdk"),
    "ollama": ("Ollama", "ollama"),
}
"""The clients for JavaScript: their titles and packages."""


def make_models(folder: Path) -> list[str]:
    """Write small models with random weights. Return the options that serve them."""
    from tiny.bert import make_bert
    from tiny.dia import make_dia
    from tiny.flux import make_flux
    from tiny.vision import make_vision
    from tiny.whisper import make_whisper

    make_bert(folder / "ranker", "BertForSequenceClassification", num_labels=1)
    make_bert(folder / "judge", "BertForSequenceClassification", num_labels=3)
    make_whisper(folder / "whisper")
    make_dia(folder / "speaker")
    make_flux(folder / "painter")
    make_vision(folder / "vision")
    return options_of(folder, "ranker", "judge", "whisper", "speaker", "painter", "vision")


def options_of(folder: Path, *names: str) -> list[str]:
    return [option for name in names for option in ("--also", str(folder / name))]


def rows_of(client: Client, python: Path, url: str) -> list[Row]:
    """The rows of a client. Raises AssertionError if a program fails."""
    return [
        row
        for program in client.programs
        for row in run(python, "-W", "ignore", CLIENTS / f"{program}.py", url)
    ]


def node_rows(url: str) -> dict[str, list[Row]]:
    """The rows of the JavaScript clients. Raises AssertionError if the program fails."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(CLIENTS / "routes.mjs", folder)
        (Path(folder) / "node_modules").symlink_to(NODE_MODULES)
        rows: dict[str, list[Row]] = run("node", "routes.mjs", url, folder=Path(folder))
    return rows


def node_version(package: str) -> str:
    return str(json.loads((NODE_MODULES / package / "package.json").read_text())["version"])


def version_of(client: Client, python: Path) -> str:
    return str(run(python, "-c", VERSION, client.package))


def section(title: str, package: str, versions: Sequence[str], rows: Sequence[Row]) -> str:
    """The table of a client."""
    head = f"## {title}: `{package}` {' and '.join(dict.fromkeys(versions))}\n"
    lines = ["| route | feature | sync | async | stream |", "|---|---|---|---|---|"]
    for row in rows:
        cells = [row["route"], row["feature"].replace("*", "\\*")]
        cells += [row.get("sync", ""), row.get("async", ""), stream_of(row)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([head, *lines]) + "\n"


def stream_of(row: Row) -> str:
    """The result of the stream of both clients."""
    both = dict.fromkeys(row[kind] for kind in ("sync stream", "async stream") if kind in row)
    return "; ".join(both)


def page(url: str) -> str:
    """The page, from the results on a server."""
    sections = [
        section(
            client.title,
            client.package,
            [version_of(client, python) for python in client.pythons],
            rows_of(client, client.pythons[0], url),
        )
        for client in CLIENTS_OF_VENDORS.values()
    ]
    rows = node_rows(url)
    sections += [
        section(f"{title}, JavaScript", package, [node_version(package)], rows[name])
        for name, (title, package) in NODE.items()
    ]
    return "\n".join([HEAD, *sections])


def main() -> None:
    """Write the page. Exits with the faults instead, if there are some."""
    with tempfile.TemporaryDirectory() as folder:
        options = make_models(Path(folder))
        with serve(Path(folder) / "log", *options) as url:
            text = page(url)
    if faults := [line for line in text.splitlines() if "failed: " in line]:
        sys.exit("\n".join(faults))
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
