"""Requests and responses of every API: JSON, bodies, handlers, events and errors."""
