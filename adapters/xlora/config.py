"""Read the config of an X-LoRA: PEFT's XLoraConfig (version 0.21), or an xlora_config.json.

Most keys are the same. With PEFT the classifier always has biases and a ReLU between its layers;
in an xlora_config.json both are settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ostro import AdapterSource, errors
from ostro.adapters.xlora import CONFIG

PEFT = "adapter_config.json"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of an X-LoRA; `members` are folders by name, in the order of scalings.

    `size` is the width of the classifier's inner layers, None if the config omits it; `top` is the
    largest number of members per token, None for all.
    """

    file: str
    hidden: int
    members: Mapping[str, str]
    depth: int
    size: int | None
    bias: bool
    relu: bool
    layerwise: bool
    softmax: bool
    temperature: float
    top: int | None
    softmax_of_top: bool
    weight: float
    held_after: int
    base: str

    @classmethod
    def of(cls, source: AdapterSource, order: Sequence[str] = ()) -> Settings:
        """Read a folder's settings; `order` is the order of its members, if a file defines it.

        Raises AdapterError with the file and its key.
        """
        fields = read_fields(source)
        members = folders(fields, order)
        value = fields.number("scaling_pass_value", 0.0)
        if value != 0:
            fields.fail(
                "scaling_pass_value",
                "must be 0: the classifier reads the hidden states of the base alone",
            )
        top = fields.count("top_k_lora")
        if top is not None and top > len(members):
            fields.fail("top_k_lora", f"exceeds the number of members, {len(members)}")
        temperature = fields.number("softmax_temperature", 1.0)
        if temperature <= 0:
            fields.fail("softmax_temperature", "must be above 0")
        hidden = fields.count("hidden_size")
        if hidden is None:
            fields.fail("hidden_size", "must be the width of the base's hidden states")
        foreign = fields.file == CONFIG
        return cls(
            file=fields.file,
            hidden=hidden,
            members=members,
            depth=fields.count("xlora_depth") or 1,
            size=fields.count("xlora_size"),
            bias=fields.flag("use_bias", True) if foreign else True,
            relu=fields.flag("enable_relu_and_dropout", False) if foreign else True,
            layerwise=fields.flag("layerwise_scalings", False),
            softmax=fields.flag("enable_softmax", True),
            temperature=temperature,
            top=top,
            softmax_of_top=fields.flag("enable_softmax_topk", False),
            weight=fields.number("global_scaling_weight", 1.0),
            held_after=fields.count("tgt_non_granular_index") or 0,
            base=fields.base,
        )


@dataclass(frozen=True)
class ConfigFields:
    """A parsed config with checked access by key; null is the same as a missing key."""

    file: str
    values: Mapping[str, Any]

    def fail(self, key: str, why: str) -> NoReturn:
        """Raise AdapterError with a key, its value and the reason."""
        raise errors.AdapterError(f"{self.file}: {key}={self.values.get(key)!r:.80} {why}")

    def count(self, key: str) -> int | None:
        """A whole number above 0, or None."""
        found = self.values.get(key)
        if found is not None and (type(found) is not int or found < 1):
            self.fail(key, "must be a whole number above 0")
        return found

    def number(self, key: str, usual: float) -> float:
        """A finite number, `usual` if missing."""
        found = self.values.get(key)
        if found is None:
            return usual
        if type(found) not in (int, float) or not math.isfinite(found):
            self.fail(key, "must be a finite number")
        return float(found)

    def flag(self, key: str, usual: bool) -> bool:
        """A boolean, `usual` if missing."""
        found = self.values.get(key)
        if found is not None and not isinstance(found, bool):
            self.fail(key, "must be true or false")
        return usual if found is None else found

    @property
    def base(self) -> str:
        """The base model in the config, or an empty string."""
        keys = ("base_model_name_or_path", "base_model_id")
        found = (self.values.get(key) for key in keys)
        return next((name for name in found if isinstance(name, str)), "")


def read_fields(source: AdapterSource) -> ConfigFields:
    """The config of a folder: PEFT's, else xlora_config.json."""
    if source.config.get("peft_type") == "XLORA":
        return ConfigFields(PEFT, source.config)
    found = source.files.json.get(CONFIG)
    if not isinstance(found, Mapping):
        raise errors.AdapterError(f"{CONFIG}: is not a valid JSON object")
    return ConfigFields(CONFIG, found)


def folders(fields: ConfigFields, order: Sequence[str]) -> dict[str, str]:
    """The members' folders by name, in the order in which the classifier was trained.

    That is `order` if not empty. Else numeric names are sorted as numbers, because PEFT writes "10"
    before "2", and other names keep the order of the config. A list contains folders that are also
    the names.
    """
    folders_by_name = fields.values.get("adapters")
    if isinstance(folders_by_name, list):
        folders_by_name = {name: name for name in folders_by_name if isinstance(name, str)}
    if not isinstance(folders_by_name, Mapping) or not folders_by_name:
        fields.fail("adapters", "must name a folder for each member")
    found = {str(name): path for name, path in folders_by_name.items()}
    if not all(isinstance(path, str) and path for path in found.values()):
        fields.fail("adapters", "must name a folder for each member")
    if order:
        if sorted(order) != sorted(found):
            fields.fail("adapters", f"has other members than the ordering: {', '.join(order):.80}")
        return {name: found[name] for name in order}
    if all(name.isascii() and name.isdigit() for name in found):
        return dict(sorted(found.items(), key=lambda pair: int(pair[0])))
    return found
