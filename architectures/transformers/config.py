"""The config of the transformers backend: transformers' own, with the engine's fields."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import transformers

from ostro import Architecture, config, resolve
from ostro.errors import ConfigError, Unsupported, UnsupportedArchitecture

BATCHWIDE = ("dynamic", "longrope")
"""Rope types whose frequencies depend on the longest text of a batch."""


@dataclass(frozen=True, kw_only=True)
class Config(config.TextConfig):
    """body: the transformers class; hf: its config, whose `dtype` is the compute dtype.

    `first_position` is the position of the first token.
    """

    body: type[transformers.PreTrainedModel]
    hf: Any
    first_position: int = 0

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
        text = text_config(body, hf)

        def number(name: str, default: int) -> int:
            try:
                found = getattr(text, name, None)
            except Exception:  # a field that differs by layer raises an exception of its own
                return default
            return found if isinstance(found, int) else default

        first = first_position(body, hf)
        d, heads = number("hidden_size", 0), number("num_attention_heads", 1)
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
            max_position_embeddings=number("max_position_embeddings", 2048) - first,
            first_position=first,
            tie_word_embeddings=bool(getattr(hf, "tie_word_embeddings", False)),
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
        raise ConfigError(f"config.json: {cls.__name__} rejects it: {fault(error)}") from error
    return made


def text_config(body: Any, hf: Any) -> Any:
    """The config of the text model. Raises Unsupported if there are several."""
    try:
        return hf.get_text_config()
    except ValueError as error:
        raise no_body(body.__name__, "its config has several text models") from error


def refuse(body: Any, hf: Any) -> None:
    """Raise Unsupported for features that the class or its config show."""
    name = body.__name__
    if hf.is_encoder_decoder:
        raise no_body(name, "it is an encoder with a decoder", needs="cross attention")
    if not body.can_generate():
        raise no_body(name, "it is not a causal language model", needs="a task of its own")
    if body._is_stateful:
        why = "its layers have other states than keys and values"
        raise no_body(name, why, needs="a cache of recurrent states")
    for kind in rope_types(getattr(text_config(body, hf), "rope_parameters", None)):
        if any(each in kind for each in BATCHWIDE):
            why = f"rope_type={kind!r} depends on the longest text of a batch"
            raise no_body(name, why, needs="a rotation for the whole context")


def first_position(body: Any, hf: Any) -> int:
    """The position of the first token: RoBERTa's line counts from behind the padding token's id.

    Its classes derive positions from token ids if they get none.
    """
    classes = vars(sys.modules[body.__module__]).values()
    if not any(hasattr(each, "create_position_ids_from_input_ids") for each in classes):
        return 0
    if not isinstance(hf.pad_token_id, int) or hf.pad_token_id < 0:
        raise ConfigError(
            f"config.json: pad_token_id={hf.pad_token_id!r:.80}, but {body.__name__} counts "
            "positions from it; set it to the id of the padding token"
        )
    return hf.pad_token_id + 1


def rope_types(rule: object) -> Iterator[str]:
    """The types of rope parameters, or of rope parameters by layer type."""
    if isinstance(rule, Mapping):
        yield str(rule.get("rope_type", "default"))
        for inner in rule.values():
            yield from rope_types(inner)


def fault(error: Exception) -> str:
    """What an exception of transformers or torch says, in one line, without its Python type.

    The text of an error in the code of a class does not show its place, which is added.
    """
    text = f"{' '.join(str(error).split()):.300}"
    if not isinstance(error, AttributeError | LookupError | TypeError | NameError):
        return text
    text = f"there is no {text}" if isinstance(error, KeyError) else text
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} (in {place.name}, {Path(place.filename).name}:{place.lineno})"


def no_body(name: str, why: str, needs: str = "") -> Unsupported:
    """The error for a class that the backend cannot run; `needs` is what its plugin must have."""
    with_needs = f" with {needs}" if needs else ""
    return Unsupported(
        f"transformers' {name} cannot run in the transformers backend: {why}; install or write a "
        f"plugin for it{with_needs}"
    )
