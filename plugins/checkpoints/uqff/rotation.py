"""The keys that mistral.rs adds to the config.json of a model converted from GGUF.

`_mistralrs_qk_rope_layout: adjacent` marks rows of q and k in the order of llama.cpp's converter,
which interleaves the two halves of each head. Other keys with this prefix mark further tensors
with another layout than on the hub.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ostro.checkpoints import TensorLocation
from ostro.errors import ConfigError, Unsupported
from ostro.plugins.checkpoints.uqff.families import fault

PRIVATE = "_mistralrs_"
LAYOUT = f"{PRIVATE}qk_rope_layout"
USUAL = (None, False, "half_split", "grouped")
"""Values that mark the layout of the hub."""

UNUSED = (f"{PRIVATE}mtp",)
"""Keys that do not concern layouts."""

FAMILY = ("llama", "mistral", "mixtral", "granite", "smollm3")
"""Model types of which the converter changes the layout of q and k only."""

ROTATED = re.compile(r".*\.self_attn\.(?P<side>[qk])_proj\.(weight.*|bias)")
FIXED = ("weight.num_blocks", "weight.axis")
"""Suffixes of families whose rows cannot be reordered: F8Q8, HQQ."""


def read(raw: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The config without these keys, and whether q and k are interleaved.

    Raises Unsupported for a key with an unsupported layout.
    """
    adjacent = raw.get(LAYOUT) == "adjacent"
    for key, value in private(raw):
        undone = key == LAYOUT and value == "adjacent" and raw.get("model_type") in FAMILY
        if key not in UNUSED and value not in USUAL and not undone:
            raise Unsupported(
                f"config.json: {key}={value!r:.80} in a {raw.get('model_type')!r:.80} model: its "
                "tensors have the layout of a GGUF file, which is not supported here; use that "
                "file, or a UQFF made from the model on the hub"
            )
    return public(raw), adjacent


def private(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every private key and its value, also in nested objects."""
    for key, value in config.items():
        if key.startswith(PRIVATE):
            yield key, value
        elif isinstance(value, Mapping):
            yield from private(value)


def public(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: public(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if not key.startswith(PRIVATE)
    }


def interleaved(
    config: Mapping[str, Any], locations: Mapping[str, TensorLocation]
) -> dict[str, int]:
    """The tensors of q and k with their numbers of heads.

    Raises ConfigError if the config lacks the number, CheckpointError for rows that are not a
    multiple of it, Unsupported for families whose rows cannot be reordered.
    """
    heads = config.get("num_attention_heads")
    counts = {"q": heads, "k": config.get("num_key_value_heads", heads)}
    sides = {name: match["side"] for name in locations if (match := ROTATED.fullmatch(name))}
    for name in sides:
        if name.endswith(FIXED):
            raise Unsupported(
                f"{locations[name].info.file}: {name} has a format whose rows cannot be reordered, "
                f"in the layout of a GGUF file ({LAYOUT}); use that file, or another format"
            )
    return {
        name: whole_heads(locations[name], counts[side])
        for name, side in sides.items()
        if locations[name].info.shape
    }


def whole_heads(location: TensorLocation, heads: Any) -> int:
    """The number of heads, of which the rows of a tensor are a multiple."""
    rows = location.info.shape[0]
    if type(heads) is not int or heads < 1:
        raise ConfigError(f"config.json: {heads!r:.80} is not a number of attention heads")
    if rows % (2 * heads):
        raise fault(location, f"has {rows} rows, not a multiple of 2 * {heads} heads")
    return heads
