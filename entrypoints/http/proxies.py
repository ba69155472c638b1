"""The proxies that name the client of a request in X-Forwarded-For: `--trusted-proxies`."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from ostro.core.errors import UsageError

ALL = "*"
"""Trusts every connection. Those of a Unix socket have no address."""


def parse_proxies(text: str) -> list[str]:
    """Return the addresses and networks of a list that commas separate: none for an empty text.

    Raises UsageError for anything else but `ALL`.
    """
    if text in ("", ALL):
        return [ALL] if text else []
    proxies = [part.strip() for part in text.split(",")]
    for proxy in proxies:
        try:
            ip_network(proxy) if "/" in proxy else ip_address(proxy)
        except ValueError as error:
            raise UsageError(
                f"--trusted-proxies {proxy!r:.80}: expected addresses and networks, such as "
                f"127.0.0.1,10.0.0.0/8, or * for all ({error!s:.120})",
                param="trusted_proxies",
            ) from None
    return proxies
