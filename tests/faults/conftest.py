"""Fixtures: a server with an echo engine."""

from echo.server import start

__all__ = ["start"]
