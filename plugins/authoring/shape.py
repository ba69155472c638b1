"""Convert a reference's config fields: new fields, renamed fields and a small test config."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ostro.core.config import NEUTRAL
from ostro.plugins.authoring.reference import Reference
from ostro.plugins.authoring.source import Field, parse, stated

SMALL: Mapping[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "sliding_window": 16,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
"""Sizes of a config for tests, by transformers' names."""

ALWAYS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
IDS = ("pad_token_id", "bos_token_id", "eos_token_id")
SPELT = {
    "rms_norm_eps": "layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon",
    "intermediate_size": "n_inner ffn_dim ffn_hidden_size",
}
"""Other names of fields that config classes use without an `attribute_map`."""

TRAINING = re.compile("dropout|initializer|aux_loss|jitter|classifier|init_std")
"""Fields without effect at inference."""

UNSTATED = object()
"""The default of a field without a default, or with one that is not a literal."""

WINDOW = ("sliding_window", "layer_types")
"""Fields of `ostro.config.WindowConfig` that `TextConfig` does not have."""


@dataclass(frozen=True)
class Shape:
    """A reference's config in terms of ostro's.

    new: fields to add; pending: default source of those that the model must implement; renamed: the
    reference's names by ostro's; windowed: has a sliding window; tiny: a small config for tests.
    """

    new: tuple[Field, ...]
    pending: Mapping[str, str]
    renamed: Mapping[str, str]
    windowed: bool
    tiny: Mapping[str, Any]


def shape_of(reference: Reference) -> Shape:
    """Convert the config of a reference."""
    fields = {field.name: field for field in reference.fields}
    renamed = {**reference.renamed, **spellings(fields)}
    trunk, read = trunk_fields(), used_names(reference)
    windowed = "sliding_window" in fields and "sliding_window" in read
    new: list[Field] = []
    pending: dict[str, str] = {}
    for field in fields.values():
        inert = field.name in NEUTRAL or TRAINING.search(field.name)
        if inert or field.name in renamed.values():
            continue
        if field.name in WINDOW and windowed:
            continue
        if field.name in trunk:
            ours, theirs = literal(trunk[field.name]), literal(field)
            if ours is not UNSTATED and theirs not in (ours, None, UNSTATED):
                kind = trunk[field.name].annotation
                new.append(replace(field, annotation=kind, default=spell(theirs)))
        elif field.name in read:
            new.append(typed(field))
            if (default := new[-1].default) is not None:
                pending[field.name] = default
    return Shape(tuple(new), pending, renamed, windowed, dict(shrink(fields, renamed)))


def spellings(fields: Mapping[str, Field]) -> dict[str, str]:
    found = {}
    for ours, words in SPELT.items():
        theirs = [name for name in words.split() if name in fields]
        if ours not in fields and theirs:
            found[ours] = theirs[0]
    return found


def used_names(reference: Reference) -> set[str]:
    """All attributes and strings in the model's source, including the config fields it reads."""
    nodes = list(ast.walk(reference.tree))
    found = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    strings = (node.value for node in nodes if isinstance(node, ast.Constant))
    return found | {value for value in strings if isinstance(value, str)}


@cache
def trunk_fields() -> Mapping[str, Field]:
    """The fields of llama's Config and its bases, by name."""
    found: dict[str, Field] = {}
    for module, cls in (
        ("ostro.core.config", "ModelConfig"),
        ("ostro.core.config", "TextConfig"),
        ("ostro.architectures.llama.model", "Config"),
    ):
        spec = find_spec(module)
        assert spec is not None and spec.origin is not None, f"{module = } is ours"
        for node in parse(Path(spec.origin)).body:
            if isinstance(node, ast.ClassDef) and node.name == cls:
                found |= {each.name: each for each in stated(node)}
    return found


def literal(field: Field) -> Any:
    """A field's default, or UNSTATED if it has none or not a literal."""
    try:
        return UNSTATED if field.default is None else ast.literal_eval(field.default)
    except ValueError:
        return UNSTATED


def typed(field: Field) -> Field:
    """The field with an annotation that ostro's configs check, and an immutable default."""
    value = literal(field)
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(value, dict):
        value = UNSTATED
    default = None if value is UNSTATED else spell(value)
    return Field(field.name, annotation(field.annotation, value), default)


def annotation(stated: str | None, value: Any) -> str:
    """An annotation such as `int | None`; `object` for types that configs do not check."""
    optional = value is None or (stated is not None and re.search(r"\bNone\b|Optional", stated))
    bare = re.sub(r"\bNone\b|Optional|[|\[\] ]", " ", stated or type(value).__name__).split()
    kinds = {word for word in bare if word in ("int", "float", "str", "bool")}
    if {"list", "tuple"} & set(bare) and len(kinds) == 1:
        found = f"tuple[{kinds.pop()}, ...]"
    elif kinds == {"int", "float"}:
        found = "float"
    elif len(kinds) == 1 and len(bare) == 1:
        found = kinds.pop()
    else:
        return "object"
    return f"{found} | None" if optional else found


def spell(value: Any) -> str:
    """The source text of a value, with double quotes."""
    text = repr(value)
    return text.replace("'", '"') if '"' not in text else text


def shrink(fields: Mapping[str, Field], renamed: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """The fields of a small config, by the names of the reference's config class."""
    for name, size in SMALL.items():
        theirs = renamed.get(name, name)
        value = literal(fields[theirs]) if theirs in fields else UNSTATED
        if name in ALWAYS or value not in (None, UNSTATED) or stated_late(name, theirs, fields):
            yield theirs, size
    for name in IDS:
        value = literal(fields[name]) if name in fields else None
        if isinstance(value, int) and value >= SMALL["vocab_size"]:
            yield name, None


def stated_late(name: str, theirs: str, fields: Mapping[str, Field]) -> bool:
    """Whether a config class computes a size without a default from other fields."""
    return name == "num_key_value_heads" and theirs in fields
