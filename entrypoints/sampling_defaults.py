"""The default sampling parameters of a model: from its files, else the fallback."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from ostro.core.errors import RequestError
from ostro.core.load.container import Container
from ostro.core.load.open import generation_defaults
from ostro.core.messages.requests import Sampling
from ostro.core.pipeline import SamplingDefaults

logger = logging.getLogger(__name__)

FALLBACK: Mapping[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""Values for a model that states none, equal to those of llama.cpp."""

SHAPING = ("temperature", "top_k", "top_p", "min_p", "typical_p")
"""Parameters that belong together: all of them come from one source, where a missing one is
neutral. A model with only `top_k` and `top_p` is meant to have the temperature 1.
"""

CONFIG_FIELDS = (*SHAPING, "repetition_penalty")
"""Fields of generation_config.json that are defaults of requests."""

GGUF_PREFIX = "general.sampling."
GGUF_KEYS: Mapping[str, str] = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""GGUF metadata keys without their prefix, and the parameters that they set."""


def sampling_defaults(container: Container, choice: str = "auto") -> SamplingDefaults:
    """Return the default sampling parameters of a model, with the source of each.

    Sources in order: generation_config.json, GGUF metadata, `FALLBACK`. Invalid values are ignored
    with a warning. `choice` is the setting generation_config: "none" gives temperature 1 and all
    tokens.
    """
    if choice == "none":
        return SamplingDefaults()
    sources = {
        "generation_config.json": read_generation_config(generation_defaults(container)),
        "GGUF general.sampling": read_gguf(container.path.name, container.metadata),
        "fallback": FALLBACK,
    }
    values, origins = dict[str, Any](), dict[str, str]()
    for source, found in sources.items():
        shaped = any(name in values for name in SHAPING)
        for name, value in found.items():
            if name not in values and not (shaped and name in SHAPING):
                values[name], origins[name] = value, source
    return SamplingDefaults(values, origins)


def read_generation_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters of a generation_config.json; greedy for do_sample=false."""
    found = {name: config[name] for name in CONFIG_FIELDS if config.get(name) is not None}
    valid = valid_values("generation_config.json", found)
    return {**valid, "temperature": 0.0} if config.get("do_sample") is False else valid


def read_gguf(file: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters of the metadata of a GGUF file."""
    keys = {key.removeprefix(GGUF_PREFIX): key for key in metadata if key.startswith(GGUF_PREFIX)}
    if unsupported := sorted(keys.keys() - GGUF_KEYS.keys()):
        names = ", ".join(unsupported)[:200]
        logger.warning("%s: %s{%s}: not supported and ignored", file, GGUF_PREFIX, names)
    found = {name: metadata[keys[key]] for key, name in GGUF_KEYS.items() if key in keys}
    return valid_values(file, found)


def valid_values(file: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the valid values of a file; log a warning for each of the others."""
    valid = dict[str, Any]()
    for name, value in found.items():
        given = 0 if name == "top_k" and value == -1 else value  # -1 means all tokens in vLLM
        try:
            valid[name] = getattr(msgspec.convert({name: given}, Sampling).checked(), name)
        except (msgspec.ValidationError, RequestError) as error:
            logger.warning("%s: the sampling parameter %s is ignored: %s", file, name, error)
    return valid
