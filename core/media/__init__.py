"""Media of prompts: fetch, decode, prepare, and pass to the engine as plain data."""

from ostro.core.media.items import Array, Inputs, Item, Prompt, content_key

__all__ = ["Array", "Inputs", "Item", "Prompt", "content_key"]
