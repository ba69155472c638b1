"""Fixtures: a server with an echo engine."""

from echo.server import Running, Start, chat_message, server, start

__all__ = ["Running", "Start", "chat_message", "server", "start"]
