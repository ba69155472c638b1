"""Configs with hostile values: each is refused with the name of its field, or builds a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ostro.core.errors import ConfigError
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.plugins.conformance.parity import BAR, deviation, subject

HOSTILE: Mapping[str, Any] = {
    "text": "many",
    "negative": -1,
    "zero": 0,
    "huge": 2**40,
    "empty list": [],
    "list": [-1],
    "object": {},
    "nan": float("nan"),
    "infinite": float("inf"),
    "true": True,
}
ALIASES = dict.fromkeys(("num_experts", "num_local_experts"), "number of experts")
"""What messages may contain in the place of a field with several names."""


def assert_parity(plugins: PluginManager, name: str, changes: Mapping[str, Any]) -> None:
    """The tiny model with changed fields gives the logits of the reference."""
    config = {**plugins.get("architectures", name).conformance.tiny, **changes}
    with subject(plugins, name, config=config) as other:
        logits = other.engine().runner.logits(other.prompt)
        assert deviation(logits, other.run_reference(other.prompt)) <= BAR


def accepted(plugins: PluginManager, name: str, field: str) -> set[str]:
    """The keys of HOSTILE whose values an architecture's tiny config accepts for a field.

    A model is built on the meta device from each. Other values must be refused with an error that
    names the field.
    """
    record, found = plugins.get("architectures", name), set[str]()
    for label, value in HOSTILE.items():
        try:
            config = resolve(record.config).from_hf({**record.conformance.tiny, field: value})
            with torch.device("meta"):
                resolve(record.model)(config)
        except ConfigError as error:
            assert any(each in str(error) for each in (field, ALIASES.get(field, field))), error
        else:
            found.add(label)
    return found
