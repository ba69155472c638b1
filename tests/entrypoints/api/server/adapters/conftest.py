"""A server that loads adapters from a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny.adapter_routes import UNLOAD


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of adapters, beside one that may not be loaded."""
    folder = tmp_path_factory.mktemp("adapters") / "root"
    for name in ("sql", "style", "pirate", "holed", "broken"):
        (folder / name).mkdir(parents=True)
        (folder / name / "adapter_config.json").write_text("{}")
    (folder / "pirate" / "chat_template.jinja").write_text(
        "{% for message in messages %}arr {{ message.content }}{% endfor %}"
    )
    (folder.parent / "secret").mkdir()
    (folder.parent / "root2" / "sql").mkdir(parents=True)
    (folder / "link").symlink_to(folder.parent / "secret")
    (folder / "inner").symlink_to(folder / "sql")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "holed" / "weights").symlink_to("/etc/passwd")
    return folder


@pytest.fixture(scope="module")
def shared(start: Any, root: Path) -> Any:
    return start(adapter_root=root)


@pytest.fixture
def server(shared: Any) -> Iterator[Any]:
    """A server that loads adapters, and has none yet."""
    yield shared
    for name in list(shared.echo.adapters):
        assert shared.post(UNLOAD, lora_name=name).status_code == 200
