"""The check of the environments of peers."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from environments import PEERS, Peer, answers, folder_of, python_of


def test_an_environment_without_its_npm_packages_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Peer(name="a", install=(), check="import json", npm=("@scope/x@1.0.0", "y@2"))
    python = python_of(tmp_path, "a")
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert not answers(tmp_path, peer)
    for name in ("@scope/x", "y"):
        (tmp_path / "a" / "node_modules" / name).mkdir(parents=True)
    assert answers(tmp_path, peer)
    shutil.rmtree(tmp_path / "a" / "node_modules")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert answers(tmp_path, peer), "without npm, the packages are left out"


def test_all_npm_packages_have_versions() -> None:
    packages = [package for peer in PEERS for package in peer.npm]
    assert packages and all(folder_of(package) != package for package in packages)
