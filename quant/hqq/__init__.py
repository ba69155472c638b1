"""HQQ: codes of 1 to 8 bits with zeros from a half-quadratic solver (Badri and Shaji, 2023)."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Format, Quantizer, TensorInfo, hookimpl

NEEDED = frozenset({"W_q", "scale", "zero", "nbits", "group_size", "shape", "axis", "packing"})
HQQ = NEEDED | {
    *("unpack_view_dtype", "view_as_float", "quant_scale", "quant_zero", "compute_dtype"),
    *("offload_meta", "encoded_state_dict", "stores_quant_config"),
    *("channel_wise", "optimize", "round_zero"),
}
"""All tensors that the hqq package saves for a layer."""

UQFF = frozenset(
    {"weight", *(f"weight.{part}" for part in ("format", "scales", "zeros", "shape", "bits"))}
    | {f"weight.{part}" for part in ("group_size", "axis", "optimization_steps")}
    | {f"weight.{part}" for part in ("round_zeros", "channel_wise")}
)
GROUP = 64
"""Columns per scale when a float weight is quantized."""

SENSITIVE = {1: "hqq6", 2: "hqq6", 3: "hqq6", 4: None, 5: None, 6: None, 8: None}


def claims(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]) -> bool:
    """The tensors of the hqq package in safetensors files, and of mistral.rs in UQFF files."""
    return tensors.keys() == UQFF or NEEDED <= tensors.keys() <= HQQ


@hookimpl
def ostro_quantizers() -> Iterable[Quantizer]:
    yield Quantizer(
        name="hqq",
        claims=claims,
        storage=f"{__name__}.storage:Hqq",
        makes=tuple(
            Format(name=f"hqq{bits}", bits=bits + 32 / GROUP, block=GROUP, sensitive=sensitive)
            for bits, sensitive in SENSITIVE.items()
        ),
    )
