"""Adapters of the tiny llama are made beside other tiny things."""
