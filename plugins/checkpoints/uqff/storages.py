"""Convert the saved tensors of a storage to those of a UQFF family."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ostro import Storage
from ostro.errors import Unsupported
from ostro.plugins.checkpoints.uqff.families import FAMILIES, FORMAT, GGML

Tensors = Mapping[str, Tensor]
"""Tensors by suffix."""

CODES = {family.name: code for code, family in enumerate(FAMILIES)}
GGML_CODES = {kind.name: code for code, kind in GGML.items()}
F8_E4M3 = 9
"""The dtype of an FP8 layer, in mistral.rs's numbering of types."""

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
FP8_SCALES = ("weight_scale", "weight_scale_inv")
INSTEAD = "quantize to another format, such as q4k, afq4 or fp8"


def tensors(key: str, storage: Storage) -> dict[str, Tensor]:
    """The tensors of a layer by suffix: "weight", "weight.format"...

    The suffixes of `save` decide the family, not the class, so that storages of other plugins can
    be written as well. Raises Unsupported for a storage without a family in UQFF 1.2.
    """
    saved = storage.save()
    found = dict(saved) if FORMAT in saved else family_of(key, storage, saved)
    family = FAMILIES[int(found[FORMAT])]
    if len(storage.shape) != 2 and not family.stacks:
        raise refusal(key, storage, f"UQFF has no stacked experts in {family.name}")
    if found.keys() != {*family.parts, FORMAT}:
        raise refusal(key, storage, f"its tensors are not those of {family.name}")
    return found


def family_of(key: str, storage: Storage, saved: Tensors) -> dict[str, Tensor]:
    """The UQFF tensors of a storage that was not read from a UQFF file."""
    for suffixes, make in FORMS:
        if suffixes <= saved.keys():
            return make(key, storage, saved)
    if saved.keys() == {"weight"}:
        return plain(key, storage, saved)
    raise refusal(key, storage, "UQFF has no family for it")


def refusal(key: str, storage: Storage, reason: str) -> Unsupported:
    return Unsupported(f"{key} is {storage.format}, which UQFF cannot store: {reason}; {INSTEAD}")


def plain(key: str, storage: Storage, saved: Tensors) -> dict[str, Tensor]:
    """Floats, or ggml blocks."""
    weight = saved["weight"]
    if weight.dtype in FLOATS:
        return {"weight": weight, FORMAT: byte(CODES["Unquant"])}
    if weight.dtype != torch.uint8 or storage.format not in GGML_CODES:
        raise refusal(key, storage, f"UQFF has only the ggml types {', '.join(GGML_CODES)}")
    return {
        "weight": weight.flatten(),
        FORMAT: byte(CODES["Gguf"]),
        "weight.dtype": word(GGML_CODES[storage.format]),
        "weight.shape": torch.tensor(storage.shape).to(torch.uint32),
    }


def afq(key: str, storage: Storage, saved: Tensors) -> dict[str, Tensor]:
    """MLX's affine format, with other names of scales and biases."""
    weight, scales, k = saved["weight"], saved["scales"], storage.shape[-1]
    return {
        "weight": weight,
        FORMAT: byte(CODES["Afq"]),
        "weight.scales": scales,
        "weight.biases": saved["biases"],
        "weight.bits": byte(weight.shape[-1] * 32 // k),
        "weight.group_size": byte(k // scales.shape[-1]),
    }


def fp8(key: str, storage: Storage, saved: Tensors) -> dict[str, Tensor]:
    """E4M3 with one scale; the scale of x is that of the weight, as in mistral.rs."""
    weight = saved["weight"]
    (scale,) = (saved[name].float() for name in FP8_SCALES if name in saved)
    first = scale.flatten()[0]
    if weight.dtype != torch.float8_e4m3fn or bool((scale != first).any()):
        raise refusal(key, storage, "its FP8 is E4M3 with one scale per weight")
    return {
        "weight": weight,
        FORMAT: byte(CODES["Fp8"]),
        "weight.dequant_w_scale": first.clone(),
        "weight.dequant_x_scale": first.clone(),
        "weight.quant_scale": first.reciprocal(),
        "weight.dtype": word(F8_E4M3),
    }


def mxfp4(key: str, storage: Storage, saved: Tensors) -> dict[str, Tensor]:
    """MXFP4 of the hub, with the blocks of a row in sequence."""
    return {
        "weight": saved["blocks"].flatten(-2),
        FORMAT: byte(CODES["Mxfp4"]),
        "weight.scales": saved["scales"],
    }


FORMS: tuple[tuple[frozenset[str], Callable[[str, Storage, Tensors], dict[str, Tensor]]], ...] = (
    (frozenset({"weight", "scales", "biases"}), afq),
    *((frozenset({"weight", name}), fp8) for name in FP8_SCALES),
    (frozenset({"blocks", "scales"}), mxfp4),
)
"""The suffixes of a storage's `save`, and the function that converts its tensors."""


def byte(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.uint8)


def word(value: int) -> Tensor:
    return torch.tensor(value).to(torch.uint32)


def stored_name(storage: Storage, tensors: Tensors) -> str:
    """mistral.rs's name of a format: "q4k", "q8_0", "afq4", "fp8", "unquant"..."""
    names = {"Unquant": "unquant", "Fp8": "fp8"}
    family = FAMILIES[int(tensors[FORMAT])].name
    return names.get(family) or storage.format.lower().replace("_k", "k")
