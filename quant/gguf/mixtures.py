"""llama.cpp's mixtures of formats: `--quant Q4_K_M` and so on.

A mixture gives more bits to weights whose errors matter more. Source of the rules and of the
fallback formats: llama.cpp (src/llama-quant.cpp, 2026), for quantization without an importance
matrix.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ostro.checkpoints import FLOAT_FORMAT, PlannedFormats, PlannedWeight, PlanRequest
from ostro.errors import UsageError
from ostro.quant.gguf import MIXTURES

FORMATS = {
    "Q3_K": "q3k",
    "Q4_K": "q4k",
    "Q5_K": "q5k",
    "Q6_K": "q6k",
    "Q4_0": "q4_0",
    "Q5_0": "q5_0",
    "Q5_1": "q5_1",
    "Q8_0": "q8_0",
}
"""The formats of ostro by the names of ggml."""

BLOCK, SMALL = 256, 32
FALLBACKS = {"Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""The formats of rows that are no multiple of 256."""

KEPT = ("per_layer_model_proj", "ffn_gate_inp", "altup", "laurel", "attn_rel_b", "position_embd")
"""Parts of names of tensors that stay floats."""

VALUES = ("attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight")


@dataclass(frozen=True)
class Shape:
    """The sizes on which the rules depend; `tied` is a head that shares the embedding."""

    layers: int
    experts: int
    values: int
    tied: bool


def plan(request: PlanRequest) -> PlannedFormats:
    """The formats of a mixture. Raises UsageError for a model without names in GGUF files."""
    mixture = request.text.strip().upper()
    tensors: dict[str, list[PlannedWeight]] = defaultdict(list)
    for weight in request.weights:
        slot = weight.slots[0]
        name = f"{slot.name}.weight"
        there = request.found.names.write(name, "gguf").theirs
        if there == name:
            raise UsageError(
                f"--quant {mixture}: {name} has no name in GGUF files, by which the mixture "
                "selects formats; use a format such as q4k"
            )
        tensors[there].append(weight)
    chosen = dict(choose(mixture, tensors, shape_of(request, tensors)))
    formats = {weight: chosen[name] for name, weights in tensors.items() for weight in weights}
    counts = Counter(chosen.values())
    listed = ", ".join(f"{count} tensors {format}" for format, count in counts.most_common())
    return PlannedFormats(formats, f"quantize: {mixture}: {listed}")


def shape_of(request: PlanRequest, names: Mapping[str, Any]) -> Shape:
    """The sizes of a model."""
    config: Any = getattr(request.found.config, "text", request.found.config)

    def number(*fields: str) -> int:
        found = (getattr(config, field, None) for field in fields)
        return next((value for value in found if isinstance(value, int)), 0)

    return Shape(
        layers=number("num_hidden_layers", "num_layers"),
        experts=number("num_local_experts", "num_experts", "n_routed_experts"),
        values=sum(name.endswith(VALUES) for name in names),
        tied="output.weight" not in names,
    )


def choose(
    mixture: str, tensors: Mapping[str, Sequence[PlannedWeight]], shape: Shape
) -> Iterator[tuple[str, str]]:
    """The format of each tensor, by name, in llama.cpp's order: by layer, then by name."""
    seen: Counter[str] = Counter()
    for name in sorted(tensors, key=lambda name: (layer_of(name), name)):
        columns = tensors[name][0].columns
        if any(part in name for part in KEPT):
            yield name, FLOAT_FORMAT
            continue
        kind = category(name)
        index = layer_of(name) if shape.experts > 1 and kind == "ffn_down" else seen[kind]
        seen[kind] += 1
        yield name, fitting(format_of(mixture, kind, index, columns, shape), columns)


def layer_of(name: str) -> int:
    found = re.match(r"blk\.(\d+)\.", name)
    return int(found[1]) if found else -1


def category(name: str) -> str:
    """The kind of tensor that the rules distinguish."""
    if name == "output.weight":
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "embedding"
    if name.endswith(VALUES):
        return "value"
    for kind in ("attn_k.weight", "attn_output.weight", "ffn_down"):
        if kind in name:
            return kind.removesuffix(".weight")
    return "other"


def format_of(mixture: str, kind: str, index: int, columns: int, shape: Shape) -> str:
    """The ggml format of a tensor; `index` counts the tensors of its kind."""
    base = MIXTURES[mixture]
    if kind == "output" or (kind == "embedding" and shape.tied):
        return "Q8_0" if columns % BLOCK else "Q6_K"
    if kind == "value":
        return value_format(mixture, base, index, shape)
    if kind == "attn_k" and shape.experts == 8:
        return "Q8_0"
    if kind == "ffn_down":
        return down_format(mixture, base, index, shape.layers)
    if kind == "attn_output":
        if shape.experts == 8:
            return "Q5_K" if mixture in ("Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M") else base
        return {"Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(mixture, base)
    return base


def value_format(mixture: str, base: str, index: int, shape: Shape) -> str:
    """The format of a value projection, or of one fused with it."""
    if shape.experts == 8:
        return "Q8_0"
    found = base
    if mixture == "Q3_K_M":
        found = "Q5_K" if index < 2 else "Q4_K"
    elif mixture == "Q3_K_L" or (mixture == "Q4_K_S" and index < 4):
        found = "Q5_K"
    elif mixture in ("Q4_K_M", "Q5_K_M") and gets_more(index, shape.values):
        found = "Q6_K"
    # Models of 80 layers (70B) have few value heads: more bits cost little.
    return "Q5_K" if shape.layers == 80 and found in ("Q3_K", "Q4_K") else found


def down_format(mixture: str, base: str, index: int, layers: int) -> str:
    """The format of a down projection."""
    first = index < layers // 8
    if mixture == "Q3_K_M":
        return "Q5_K" if index < layers // 16 else "Q4_K"
    if mixture == "Q3_K_L":
        return "Q5_K"
    if mixture in ("Q4_K_M", "Q5_K_M"):
        return "Q6_K" if gets_more(index, layers) else base
    return "Q5_K" if mixture == "Q4_K_S" and first else base


def gets_more(index: int, count: int) -> bool:
    """Whether a layer gets more bits: the first and last eighth, and every third between."""
    first = count // 8
    return index < first or index >= 7 * count // 8 or (index - first) % 3 == 2


def fitting(format: str, columns: int) -> str:
    """The format of ostro, or the fallback whose block divides the rows."""
    if format in FALLBACKS and columns % BLOCK:
        format = FALLBACKS[format]
    return FORMATS[format] if columns % SMALL == 0 else FLOAT_FORMAT
