"""What mistral.rs adds to config.json of a model that it had from a GGUF file.

`_mistralrs_qk_rope_layout: adjacent` says that the rows of q and k lie as llama.cpp's converter
writes them, the two halves of each head interleaved. Other keys that begin so say that other
tensors lie otherwise than on the hub.
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
"""Values that say that tensors lie as on the hub."""

UNUSED = (f"{PRIVATE}mtp",)
"""Keys that say nothing of where tensors lie."""

FAMILY = ("llama", "mistral", "mixtral", "granite", "smollm3")
"""Model types of which the converter interleaves q and k, and nothing else."""

ROTATED = re.compile(r".*\.self_attn\.(?P<side>[qk])_proj\.(weight.*|bias)")
FIXED = ("weight.num_blocks", "weight.axis")
"""Suffixes of families whose rows are not apart: F8Q8, HQQ."""


def read(raw: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The config without these keys, and whether q and k are interleaved.

    Raises Unsupported for a key that says what is not undone here.
    """
    adjacent = raw.get(LAYOUT) == "adjacent"
    for key, value in private(raw):
        undone = key == LAYOUT and value == "adjacent" and raw.get("model_type") in FAMILY
        if key not in UNUSED and value not in USUAL and not undone:
            raise Unsupported(
                f"config.json: {key}={value!r:.80} in a {raw.get('model_type')!r:.80} model: its "
                "tensors lie as in the GGUF file it was made of, which is not undone here; use "
                "that file, or a UQFF made of the model on the hub"
            )
    return public(raw), adjacent


def private(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every private key and its value, those of objects in the config as well."""
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


def interleaved(config: Mapping[str, Any], places: Mapping[str, TensorLocation]) -> dict[str, int]:
    """The tensors of q and k, and how many heads each has.

    Raises ConfigError where the config does not say, CheckpointError for rows that are no whole
    heads, Unsupported for families of which rows cannot be moved.
    """
    heads = config.get("num_attention_heads")
    counts = {"q": heads, "k": config.get("num_key_value_heads", heads)}
    sides = {name: match["side"] for name in places if (match := ROTATED.fullmatch(name))}
    for name in sides:
        if name.endswith(FIXED):
            raise Unsupported(
                f"{places[name].info.file}: {name} is of a format whose rows cannot be moved, and "
                f"they lie as in a GGUF file ({LAYOUT}); use that file, or another format"
            )
    return {
        name: whole_heads(places[name], counts[side])
        for name, side in sides.items()
        if places[name].info.shape
    }


def whole_heads(place: TensorLocation, heads: Any) -> int:
    """The number of heads that the rows of a tensor are."""
    rows = place.info.shape[0]
    if type(heads) is not int or heads < 1:
        raise ConfigError(f"config.json: {heads!r:.80} counts no heads of attention")
    if rows % (2 * heads):
        raise fault(place, f"has {rows} rows, which are not {heads} heads of pairs")
    return heads
