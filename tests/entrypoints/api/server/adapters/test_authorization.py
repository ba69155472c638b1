"""Adapters over HTTP: the keys that may load adapters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny.adapter_routes import LIST, LOAD, UNLOAD, refused

from ostro.core.errors import OstroError, UsageError
from ostro.entrypoints.http.app import make_app
from ostro.entrypoints.http.options import Options
from ostro.entrypoints.operations.access.admin import Admin
from ostro.entrypoints.operations.access.keys import KeyRing


def every(server: Any, headers: Any = None) -> list[Any]:
    """All three routes, asked for nothing that could be."""
    post: Callable[..., Any] = server.http.post
    body = {"lora_name": "nobody", "lora_path": "nowhere"}
    found = [post(LOAD, json=body, headers=headers)]
    found.append(post(UNLOAD, json={"lora_name": "nobody"}, headers=headers))
    return [*found, server.http.get(LIST, headers=headers)]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_without_a_root_there_are_no_routes(start: Any) -> None:
    for answer in every(start()):
        assert "--adapter-root" in refused(answer, 404, "lora_loading_disabled")


def test_api_keys_do_not_load(start: Any, root: Path) -> None:
    server = start(adapter_root=root, keys=["user"])
    for answer in every(server):
        refused(answer, 401, "invalid_api_key")
    for answer in every(server, bearer("user")):
        assert "--admin-key" in refused(answer, 403, "admin_key_required")


def test_the_admin_key_beside_api_keys(start: Any, root: Path) -> None:
    server = start(adapter_root=root, keys=["user"], admin_key="boss")
    for answer in every(server, bearer("user")):
        refused(answer, 403, "admin_key_required")
    for answer in every(server, bearer("bos")):
        refused(answer, 401, "invalid_api_key")
    assert [a.status_code for a in every(server, bearer("boss"))] == [404, 404, 200]
    assert server.http.get("/v1/models", headers=bearer("boss")).status_code == 200


def test_the_admin_key_alone(start: Any, root: Path) -> None:
    server = start(adapter_root=root, admin_key="boss")
    for headers in (None, bearer("bos"), {"authorization": "Basic boss"}):
        for answer in every(server, headers):
            refused(answer, 401, "invalid_admin_key")
            assert answer.headers["www-authenticate"] == "Bearer"
    assert [a.status_code for a in every(server, bearer("boss"))] == [404, 404, 200]
    assert server.http.get("/v1/models").status_code == 200


def test_the_admin_scope_needs_no_root(start: Any) -> None:
    for keys in ([], ["user"]):
        server = start(keys=keys, admin_key="boss")
        loading, unloading, listing = every(server, bearer("boss"))
        assert "--adapter-root" in refused(loading, 404, "lora_loading_disabled")
        refused(unloading, 404, "adapter_not_found")
        assert listing.json() == {"object": "list", "data": []}
        for answer in every(server, bearer("user")):
            assert answer.status_code == (403 if keys else 401)


def test_invalid_admin_options_are_rejected(server: Any) -> None:
    with pytest.raises(UsageError, match="not a folder"):
        make_app(server.service, server.plugins, Options(), adapter_root="/nowhere")
    with pytest.raises(UsageError, match="empty"):
        KeyRing.of((), " ")


def test_a_folder_of_too_many_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostro.entrypoints.operations.access.admin.MAX_FILES", 1)
    admin = Admin.of(root, KeyRing())
    assert admin.find("sql") == root / "sql"
    with pytest.raises(OstroError, match="more than 1 files"):
        admin.find("pirate")
