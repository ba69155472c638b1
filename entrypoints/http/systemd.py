"""The notification protocol of systemd's services of `Type=notify`, sd_notify(3)."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Literal


def notify(state: Literal["READY=1", "STOPPING=1"]) -> None:
    """Tell systemd that the server is ready or stops. Without systemd this has no effect."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.sendto(state.encode(), address)
