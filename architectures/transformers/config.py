"""The config of a body: transformers' own, and what the engine asks of any."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import transformers
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming, apply_renamings

from ostro import Architecture, Names, config, resolve
from ostro.checkpoints import Named
from ostro.errors import ConfigError, Unsupported, UnsupportedArchitecture

BATCHWIDE = ("dynamic", "longrope")
"""Rope rules by which transformers rotates every row as the longest text of the batch asks."""


@dataclass(frozen=True, kw_only=True)
class Config(config.TextConfig):
    """body: the class that is run; hf: its config, whose `dtype` is what it computes in."""

    body: type[transformers.PreTrainedModel]
    hf: Any

    @classmethod
    def of_record(cls, record: Architecture, raw: Mapping[str, Any]) -> Self:
        """Build the config of a record whose `model` is "transformers:...".

        Raises UnsupportedArchitecture where there is no such class, ConfigError where its config
        refuses `raw`, Unsupported for what no body can do.
        """
        body = class_of(record.model)
        if not (isinstance(body, type) and issubclass(body, transformers.PreTrainedModel)):
            raise UnsupportedArchitecture(f"{record.model} is not a model of transformers")
        hf = config_of(class_of(record.config), raw)
        refuse(body, hf)
        text = hf.get_text_config()

        def number(name: str, default: int) -> int:
            found = getattr(text, name, None)
            return found if isinstance(found, int) else default

        d, heads = number("hidden_size", 0), number("num_attention_heads", 0)
        made = cls(
            body=body,
            hf=hf,
            vocab_size=number("vocab_size", 0),
            hidden_size=d,
            intermediate_size=number("intermediate_size", d),
            num_hidden_layers=number("num_hidden_layers", 0),
            num_attention_heads=heads,
            num_key_value_heads=number("num_key_value_heads", heads),
            head_dim=number("head_dim", d // max(heads, 1)),
            max_position_embeddings=number("max_position_embeddings", 2048),
            tie_word_embeddings=bool(hf.tie_word_embeddings),
        )
        made.check()
        return made


def class_of(reference: str) -> Any:
    """The class that "transformers:Name" or "transformers:package.module:Name" names."""
    path = reference.removeprefix("transformers:")
    try:
        return resolve(path if ":" in path else reference)
    except (ImportError, AttributeError) as error:
        raise UnsupportedArchitecture(
            f"transformers {transformers.__version__} has no {path}, or cannot import it "
            f"({error}); install a release that has it, or a plugin"
        ) from error


def config_of(cls: Any, raw: Mapping[str, Any]) -> Any:
    """Build transformers' config without the keys that choose kernels or formats.

    Raises ConfigError where the class refuses a value.
    """
    kept = {
        key: config.decode_floats(value)
        for key, value in raw.items()
        if not key.startswith("_")
        and key not in ("attn_implementation", "experts_implementation", "quantization_config")
    }
    try:
        made = cls(**kept)
    except Exception as error:  # whatever a class of transformers raises, the file is at fault
        raise ConfigError(f"config.json: {cls.__name__} refuses it: {error}") from error
    return made


def refuse(body: Any, hf: Any) -> None:
    """Raise Unsupported for what can be told from the class and its config alone."""
    name = body.__name__
    if hf.is_encoder_decoder:
        raise no_body(name, "it is an encoder with a decoder")
    if not body.can_generate():
        raise no_body(name, "it is not a causal language model")
    if body._is_stateful:
        raise no_body(name, "its layers keep another state than keys and values")
    for kind in rope_types(getattr(hf.get_text_config(), "rope_parameters", None)):
        if any(each in kind for each in BATCHWIDE):
            raise no_body(name, f"rope_type={kind!r} rotates by the longest text of a batch")


def rope_types(rule: object) -> Iterator[str]:
    """The types of a rope rule, or of a mapping of rules by layer type."""
    if isinstance(rule, Mapping):
        yield str(rule.get("rope_type", "default"))
        for inner in rule.values():
            yield from rope_types(inner)


def no_body(name: str, why: str) -> Unsupported:
    """The error of a class that cannot be a body."""
    return Unsupported(f"transformers' {name} cannot be served as it is: {why}; it wants a plugin")


@dataclass(frozen=True, kw_only=True)
class BodyNames(Names):
    """The names of a class's modules, and those that transformers renames to them as it loads.

    `passed` are regular expressions of what the class does not read. What transformers does to
    tensors as it loads them (stacking experts...) is not done: such tensors are left over.
    """

    renamings: Sequence[WeightRenaming] = ()
    passed: Sequence[str] = ()

    def find(self, name: str, space: str) -> list[Named]:
        found = super().find(name, space)
        renamed = (apply_renamings(each.name, list(self.renamings)) for each in found)
        return [replace(each, name=name) for each, name in zip(found, renamed, strict=True)]

    def ignored(self, name: str) -> bool:
        return super().ignored(name) or any(re.search(pattern, name) for pattern in self.passed)


def names(config: Config) -> Names:
    """How checkpoints of a class name its weights, as far as transformers' tables say it."""
    steps = get_checkpoint_conversion_mapping(config.body.__name__)
    if steps is None:
        steps = get_checkpoint_conversion_mapping(config.hf.model_type) or ()
    return BodyNames(
        renamings=[step for step in steps if isinstance(step, WeightRenaming)],
        passed=tuple(config.body._keys_to_ignore_on_load_unexpected or ()),
    )
