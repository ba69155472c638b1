"""Tiny models, inputs and adapters that tests make."""
