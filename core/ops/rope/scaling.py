"""Rope scaling: cosines and sines for each `rope_type`, also beyond the trained context.

A rule is transformers' `rope_parameters`: "rope_theta", "rope_type" and the fields of the type. The
frequencies are float32 throughout, as in transformers: published models expect its rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ostro.core.errors import ConfigError, nearest

Rule = Mapping[str, Any]
LIMIT = 1e12


def rope_table(rope: Rule, head_dim: int, context: int) -> Tensor:
    """The table of positions 0..context - 1: [context, r] float32, r/2 cosines, then r/2 sines.

    r is head_dim times "partial_rotary_factor"; all values are multiplied by the rule's attention
    factor. Raises ConfigError as `rope_frequencies` does.
    """
    inverse, factor = rope_frequencies(rope, head_dim, context)
    angles = torch.arange(context, dtype=torch.float32)[:, None] * inverse
    return torch.cat((angles.cos(), angles.sin()), dim=-1).mul_(factor)


def rope_frequencies(rope: Rule, head_dim: int, context: int) -> tuple[Tensor, float]:
    """Return the inverse frequencies [r/2] float32 of a rule, and the factor of cosines and sines.

    `context` is the longest sequence that will be served. It decides for all positions, so that one
    context has one table: "dynamic" uses the frequencies of transformers at that length, "longrope"
    its short factors up to "original_max_position_embeddings" and its long ones beyond. Raises
    ConfigError, with the rule or field, if it is unknown, missing or out of range.
    """
    kind = rope.get("rope_type", "default")
    if kind not in RULES:
        raise ConfigError(
            f"rope_type={kind!r} is not supported{nearest(str(kind), RULES)}; expected one of "
            f"{', '.join(RULES)}"
        )
    part = number(rope, "partial_rotary_factor", 1.0)
    r = head_dim if kind == "proportional" else int(head_dim * part)
    if part > 1 or r < 2 or r % 2:
        raise ConfigError(
            f"partial_rotary_factor={part} of head_dim={head_dim} does not make an even number of "
            f"rotated dimensions within 2..{head_dim}"
        )
    return RULES[kind](rope, r, context)


def number(rope: Rule, field: str, default: float | None = None) -> float:
    """A positive field of a rule, optional if it has a default.

    Raises ConfigError if it is missing or not a number within 0..LIMIT.
    """
    value = rope.get(field)
    if value is None and default is None:
        raise ConfigError(f"rope_parameters of type {rope.get('rope_type')!r} lack {field!r}")
    return positive(field, default if value is None else value)


def positive(field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LIMIT:
        raise ConfigError(f"rope_parameters: {field}={value!r:.80} is not a number within 0..1e12")
    return value


def original(rope: Rule) -> float:
    """The context length of pretraining, before scaling."""
    known = rope.get("max_position_embeddings")
    trained = number(rope, "original_max_position_embeddings", known)
    if trained <= 1:
        raise ConfigError(f"rope_parameters: a trained context of {trained} cannot be stretched")
    return trained


def stretch(rope: Rule) -> float:
    """The scaling factor of the trained context; by default the ratio of the two lengths."""
    if rope.get("factor") is not None:
        return number(rope, "factor")
    return number(rope, "max_position_embeddings") / original(rope)


def theta(rope: Rule) -> float:
    base = number(rope, "rope_theta")
    if base <= 1:
        raise ConfigError(f"rope_parameters: rope_theta={base} is not above 1")
    return base


def wavelengths(base: float, r: int) -> Tensor:
    """base ** (2 j / r): positions per radian of each pair, [r/2]."""
    powers: Tensor = base ** (torch.arange(0, r, 2, dtype=torch.int64).float() / r)
    return powers


def default(rope: Rule, r: int, context: int) -> tuple[Tensor, float]:
    """No scaling (Su et al. 2021)."""
    return 1.0 / wavelengths(theta(rope), r), 1.0


def linear(rope: Rule, r: int, context: int) -> tuple[Tensor, float]:
    """All positions divided by a factor (Chen et al. 2023)."""
    return default(rope, r, context)[0] / number(rope, "factor"), 1.0


def dynamic(rope: Rule, r: int, context: int) -> tuple[Tensor, float]:
    """A base that grows with context / trained context ("NTK-aware", bloc97 2023)."""
    trained = number(rope, "max_position_embeddings")
    factor = number(rope, "factor")
    growth = factor * max(context, trained) / trained - (factor - 1)
    if r == 2:
        raise ConfigError("rope_type='dynamic' needs more than two rotated dimensions")
    return 1.0 / wavelengths(theta(rope) * growth ** (r / (r - 2)), r), 1.0


def yarn(rope: Rule, r: int, context: int) -> tuple[Tensor, float]:
    """Low frequencies are scaled, high ones are not, with a ramp between (Peng et al. 2023)."""
    trained, base = original(rope), theta(rope)
    factor = stretch(rope)

    def pair(turns: float) -> float:
        """The index of the pair that makes `turns` full rotations over the trained context."""
        return r * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = pair(number(rope, "beta_fast", 32))
    high = pair(number(rope, "beta_slow", 1))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, r - 1)
    width = high - low or 0.001
    stretched = ((torch.arange(r // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    length = wavelengths(base, r)
    inverse = stretched / (factor * length) + (1 - stretched) / length
    return inverse, yarn_attention(rope, factor)


def yarn_attention(rope: Rule, factor: float) -> float:
    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if rope.get("attention_factor") is not None:
        return number(rope, "attention_factor")
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return scale(number(rope, "mscale")) / scale(number(rope, "mscale_all_dim"))
    return scale(1.0)


def longrope(rope: Rule, r: int, context: int) -> tuple[Tensor, float]:
    """A searched factor per pair, one list for short contexts, one for long (Ding et al. 2024)."""
    trained = original(rope)
    field = "long_factor" if context > trained else "short_factor"
    factors = rope.get(field)
    if not isinstance(factors, list | tuple) or len(factors) != r // 2:
        raise ConfigError(f"rope_parameters: {field} is not a list of {r // 2} numbers")
    each = [positive(field, value) for value in factors]
    inverse = 1.0 / (torch.tensor(each) * wavelengths(theta(rope), r))
    if rope.get("attention_factor") is not None:
        return inverse, number(rope, "attention_factor")
    return inverse, math.sqrt(1 + math.log(max(stretch(rope), 1.0)) / math.log(trained))


def llama3(rope: Rule, r: int, context: int) -> tuple[Tensor, float]:
    """Pairs with few rotations over the trained context are scaled (Llama 3.1, Meta 2024)."""
    inverse, _ = default(rope, r, context)
    factor, trained = number(rope, "factor"), original(rope)
    low, high = number(rope, "low_freq_factor"), number(rope, "high_freq_factor")
    if low >= high:
        raise ConfigError(
            f"rope_parameters: low_freq_factor={low} is not below high_freq_factor={high}"
        )
    turns = trained * inverse / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * inverse / factor + kept * inverse, 1.0


def proportional(rope: Rule, r: int, context: int) -> tuple[Tensor, float]:
    """Only the first "partial_rotary_factor" of the pairs is rotated (gemma 4)."""
    turning = int(number(rope, "partial_rotary_factor", 1.0) * r // 2)
    inverse, _ = default(rope, r, context)
    inverse[turning:] = 0
    return inverse / number(rope, "factor", 1.0), 1.0


RULES: Mapping[str, Callable[[Rule, int, int], tuple[Tensor, float]]] = {
    "default": default,
    "mrope": default,
    "linear": linear,
    "dynamic": dynamic,
    "yarn": yarn,
    "longrope": longrope,
    "su": longrope,
    "llama3": llama3,
    "proportional": proportional,
}
"""By "rope_type". "mrope" and "su" are the names of "default" and "longrope" in older configs."""
