"""The systemd unit, and the notifications of a server to systemd."""

from __future__ import annotations

import configparser
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from echo.model import make_model

from ostro.entrypoints.cli import build
from ostro.entrypoints.http.systemd import notify

from .test_server import Process

UNIT = Path(__file__).resolve().parents[3] / "packaging" / "ostro.service"


def faults(text: str, folder: Path) -> str:
    """What systemd-analyze says about a unit, with a program that exists."""
    unit = folder / "ostro.service"
    unit.write_text(text.replace("/opt/ostro/bin/ostro", shutil.which("true") or "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stderr


@pytest.mark.process
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text()
    assert "Unknown key" in faults(text.replace("Type=", "Tpye="), tmp_path)
    assert not faults(text, tmp_path)


def test_the_unit_runs_a_command_of_ostro() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    program, *words = unit["Service"]["ExecStart"].split()
    assert program == "/opt/ostro/bin/ostro"
    args = build(words)[0].parse_args(words)
    assert args.config == Path("/etc/ostro/server.toml")
    assert float(unit["Service"]["TimeoutStopSec"]) > args.drain_timeout
    assert unit["Service"]["Type"] == "notify"


@pytest.mark.parametrize("prefix", [pytest.param("", marks=pytest.mark.process), "@"])
def test_notifications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    name = f"{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + name if prefix else name)
        systemd.settimeout(120)
        monkeypatch.setenv("NOTIFY_SOCKET", prefix + name)
        if prefix:
            notify("READY=1")
            assert systemd.recv(100) == b"READY=1"
            return
        server = Process(make_model(tmp_path / "echo"), {})
        try:
            server.wait()
            assert systemd.recv(100) == b"READY=1"
            server.process.send_signal(signal.SIGTERM)
            assert systemd.recv(100) == b"STOPPING=1"
            assert server.end()[0] == 0
        finally:
            server.process.kill()


@pytest.mark.parametrize("address", [None, "", "/nowhere/at/all"])
def test_without_systemd(monkeypatch: pytest.MonkeyPatch, address: str | None) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify("READY=1")
