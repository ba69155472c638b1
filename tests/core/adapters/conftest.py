"""No fixtures; adapters of the tiny llama are in `tiny.adapters`."""
