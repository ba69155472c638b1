"""Tiny models, inputs and adapters for tests."""
