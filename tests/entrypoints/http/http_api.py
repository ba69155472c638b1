"""Writes docs/http-api.md: python tests/entrypoints/http/http_api.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ostro.core.plugins.manager import PluginManager
from ostro.core.routes import Route
from ostro.entrypoints.http.app import routes_of
from ostro.entrypoints.http.http_api import http_api
from ostro.entrypoints.operations.requests.model_body import ModelBody

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "http-api.md"
CHATS = (
    "entrypoints/api/openai/test_fields.py entrypoints/api/openai/test_messages.py "
    "entrypoints/http/test_bodies.py entrypoints/api/openai/test_[!nrv]*.py "
    "entrypoints/http/test_[!nrv]*.py "
    "plugins/pipelines/test_[!isv]*.py"
)
OWN = {
    "/api/": "plugins/apis/ollama/*.py",
    "/v1/messages": "plugins/apis/test_anthropic*.py",
    "/v1/models/": "entrypoints/api/server/test_model_admin.py",
    "/re_isq": "entrypoints/api/server/test_model_admin.py",
    "/v1/models": "plugins/apis/test_anthropic*.py",
    "/tokenize": "plugins/apis/text_tools/*.py",
    "/detokenize": "plugins/apis/text_tools/*.py",
    "/apply-template": f"plugins/apis/text_tools/*.py {CHATS}",
    "/v1/chat/completions": CHATS,
    "/v1/completions": f"entrypoints/api/openai/test_completions.py {CHATS}",
    "/v1/embeddings": "entrypoints/api/openai/test_vectors.py plugins/apis/ranking/*.py",
    "/v1/rerank": "plugins/apis/ranking/*.py",
    "/v1/score": "plugins/apis/ranking/*.py",
    "/v1/classify": "plugins/apis/ranking/*.py",
    "/v2/rerank": "plugins/apis/ranking/*.py",
    "/rerank": "plugins/apis/ranking/*.py",
    "/score": "plugins/apis/ranking/*.py",
    "/classify": "plugins/apis/ranking/*.py",
    "/pooling": "plugins/apis/ranking/*.py",
    "/v1/responses": "entrypoints/api/openai/responses/*.py",
    "/v1/conversations": "entrypoints/api/openai/responses/*.py",
    "/v1/images": "plugins/pipelines/test_image.py",
    "/v1/audio/t": "entrypoints/api/openai/test_audio.py plugins/pipelines/test_transcription.py",
    "/v1/audio": "plugins/pipelines/test_speech.py",
    "/v1/files": "entrypoints/api/openai/test_files.py",
    "/v1/uploads": "entrypoints/api/openai/test_files.py",
    "/v1/batches": "entrypoints/operations/documents/*.py entrypoints/api/openai/test_files.py",
    "/v1/load": "entrypoints/api/server/adapters/*.py",
    "/v1/unload": "entrypoints/api/server/adapters/*.py",
}
"""The tests of routes, by the start of their paths, the best first."""
COMMON = (
    "entrypoints/http/test_a*.py entrypoints/api/openai/test_[mf]*.py "
    "entrypoints/http/test_[mf]*.py entrypoints/api/server/adapters/*.py"
)
"""The tests of the fields of `ModelBody`, which are the same in all requests."""


def all_routes() -> list[Route]:
    """The routes of all built-in families and of all installed plugins."""
    plugins = PluginManager()
    plugins.load()
    return routes_of(plugins)


@cache
def tests(pattern: str) -> list[tuple[str, frozenset[str]]]:
    """The tests in files: their name, and the names and texts in them and in their tables."""
    found = []
    for file in sorted((ROOT / "tests").glob(pattern)):
        tree = ast.parse(file.read_text())
        tables = {name: frozenset(words(node)) for node in tree.body for name in assigned(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                given = frozenset(words(node)).union(*(tables[x] for x in used & tables.keys()))
                found.append((f"{file.relative_to(ROOT / 'tests')}::{node.name}", given))
    return found


def assigned(node: ast.AST) -> list[str]:
    """The names that a statement assigns."""
    targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
    return [target.id for target in targets if isinstance(target, ast.Name)]


def words(node: ast.AST) -> Iterator[str]:
    """The names of arguments and the texts in a syntax tree."""
    for each in ast.walk(node):
        if isinstance(each, ast.keyword) and each.arg:
            yield each.arg
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def find_test(route: Route, field: str) -> str:
    """The first test of a route's API that names a field; "" if none does."""
    path = route.name.partition(" ")[2]
    own = next((OWN[start] for start in OWN if path.startswith(start)), "")
    if field in ModelBody.__struct_fields__:
        own = f"{own} {COMMON}"
    known = (name for each in own.split() for name, given in tests(each) if field in given)
    listed = field in getattr(route.request, "unsupported", ())
    rejected = "entrypoints/http/test_http_api.py::test_rejected_fields" if listed else ""
    return next(known, rejected)


if __name__ == "__main__":
    PAGE.write_text(http_api(all_routes(), find_test))
