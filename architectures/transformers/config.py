"""The config of the transformers backend: transformers' own, with the engine's fields."""

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
"""Rope types whose frequencies depend on the longest text of a batch."""


@dataclass(frozen=True, kw_only=True)
class Config(config.TextConfig):
    """body: the transformers class; hf: its config, whose `dtype` is the compute dtype."""

    body: type[transformers.PreTrainedModel]
    hf: Any

    @classmethod
    def of_record(cls, record: Architecture, raw: Mapping[str, Any]) -> Self:
        """Build the config of a record whose `model` is "transformers:...".

        Raises UnsupportedArchitecture for an unknown class, ConfigError if its config rejects
        `raw`, Unsupported for models that the backend cannot run.
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
    """The class of "transformers:Name" or "transformers:package.module:Name"."""
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

    Raises ConfigError if the class rejects a value.
    """
    kept = {
        key: config.decode_floats(value)
        for key, value in raw.items()
        if not key.startswith("_")
        and key not in ("attn_implementation", "experts_implementation", "quantization_config")
    }
    try:
        made = cls(**kept)
    except Exception as error:  # config classes raise any exception for an invalid file
        raise ConfigError(f"config.json: {cls.__name__} rejects it: {error}") from error
    return made


def refuse(body: Any, hf: Any) -> None:
    """Raise Unsupported for features that the class or its config show."""
    name = body.__name__
    if hf.is_encoder_decoder:
        raise no_body(name, "it is an encoder with a decoder")
    if not body.can_generate():
        raise no_body(name, "it is not a causal language model")
    if body._is_stateful:
        raise no_body(name, "its layers have other states than keys and values")
    for kind in rope_types(getattr(hf.get_text_config(), "rope_parameters", None)):
        if any(each in kind for each in BATCHWIDE):
            raise no_body(name, f"rope_type={kind!r} depends on the longest text of a batch")


def rope_types(rule: object) -> Iterator[str]:
    """The types of rope parameters, or of rope parameters by layer type."""
    if isinstance(rule, Mapping):
        yield str(rule.get("rope_type", "default"))
        for inner in rule.values():
            yield from rope_types(inner)


def no_body(name: str, why: str) -> Unsupported:
    """The error for a class that the backend cannot run."""
    return Unsupported(
        f"transformers' {name} cannot run in the transformers backend: {why}; install or write a "
        "plugin for it"
    )


@dataclass(frozen=True, kw_only=True)
class BodyNames(Names):
    """The names of a class's modules, with the renamings of transformers on loading.

    `passed` are regular expressions of tensors that the class ignores. Conversions of transformers
    on loading (stacking experts...) are not implemented: such tensors are left over.
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
    """The names of a class's weights in checkpoints, from transformers' tables."""
    steps = get_checkpoint_conversion_mapping(config.body.__name__)
    if steps is None:
        steps = get_checkpoint_conversion_mapping(config.hf.model_type) or ()
    return BodyNames(
        renamings=[step for step in steps if isinstance(step, WeightRenaming)],
        passed=tuple(config.body._keys_to_ignore_on_load_unexpected or ()),
    )
