"""What UQFF holds of a storage: the tensors that it saves, as the family has them that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ostro import Storage
from ostro.errors import Unsupported
from ostro.plugins.checkpoints.uqff.families import FAMILIES, FORMAT, GGML

Tensors = Mapping[str, Tensor]
"""By suffix."""

CODES = {family.name: code for code, family in enumerate(FAMILIES)}
GGML_CODES = {kind.name: code for code, kind in GGML.items()}
F8_E4M3 = 9
"""The number of mistral.rs's own table of types that a layer of FP8 has as its dtype."""

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
FP8_SCALES = ("weight_scale", "weight_scale_inv")
INSTEAD = "bring the model to another format, such as q4k, afq4 or fp8"


def tensors(key: str, storage: Storage) -> dict[str, Tensor]:
    """The tensors of a layer by suffix: "weight", "weight.format"...

    They are asked for by what `save` gives, not by class, so that any storage of these forms can be
    written. Raises Unsupported for what no family of UQFF 1.2 holds.
    """
    saved = storage.save()
    made = dict(saved) if FORMAT in saved else family_of(key, storage, saved)
    family = FAMILIES[int(made[FORMAT])]
    if len(storage.shape) != 2 and not family.stacks:
        raise refusal(key, storage, f"UQFF holds no experts in {family.name}")
    if made.keys() != {*family.parts, FORMAT}:
        raise refusal(key, storage, f"its tensors are not those of {family.name}")
    return made


def family_of(key: str, storage: Storage, saved: Tensors) -> dict[str, Tensor]:
    """The tensors of a storage that did not come from a UQFF file."""
    for suffixes, make in FORMS:
        if suffixes <= saved.keys():
            return make(key, storage, saved)
    if saved.keys() == {"weight"}:
        return plain(key, storage, saved)
    raise refusal(key, storage, "UQFF has no family for it")


def refusal(key: str, storage: Storage, why: str) -> Unsupported:
    return Unsupported(f"{key} is {storage.format}, which cannot be written: {why}; {INSTEAD}")


def plain(key: str, storage: Storage, saved: Tensors) -> dict[str, Tensor]:
    """Floats, or blocks of ggml's."""
    weight = saved["weight"]
    if weight.dtype in FLOATS:
        return {"weight": weight, FORMAT: byte(CODES["Unquant"])}
    if weight.dtype != torch.uint8 or storage.format not in GGML_CODES:
        raise refusal(key, storage, f"UQFF has only {', '.join(GGML_CODES)} of ggml's types")
    return {
        "weight": weight.flatten(),
        FORMAT: byte(CODES["Gguf"]),
        "weight.dtype": word(GGML_CODES[storage.format]),
        "weight.shape": torch.tensor(storage.shape).to(torch.uint32),
    }


def afq(key: str, storage: Storage, saved: Tensors) -> dict[str, Tensor]:
    """MLX's, whose scales and biases have other names."""
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
    """Eight-bit floats with one scale. That of x is the weight's, as mistral.rs has it."""
    weight = saved["weight"]
    (scale,) = (saved[name].float() for name in FP8_SCALES if name in saved)
    first = scale.flatten()[0]
    if weight.dtype != torch.float8_e4m3fn or bool((scale != first).any()):
        raise refusal(key, storage, "UQFF has E4M3 with one scale for the whole weight")
    return {
        "weight": weight,
        FORMAT: byte(CODES["Fp8"]),
        "weight.dequant_w_scale": first.clone(),
        "weight.dequant_x_scale": first.clone(),
        "weight.quant_scale": first.reciprocal(),
        "weight.dtype": word(F8_E4M3),
    }


def mxfp4(key: str, storage: Storage, saved: Tensors) -> dict[str, Tensor]:
    """The hub's, whose blocks lie in rows."""
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
"""Suffixes that a storage saves, and what makes UQFF's of them."""


def byte(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.uint8)


def word(value: int) -> Tensor:
    return torch.tensor(value).to(torch.uint32)


def stored_name(storage: Storage, made: Tensors) -> str:
    """What mistral.rs calls the format: "q4k", "q8_0", "afq4", "fp8", "unquant"..."""
    names = {"Unquant": "unquant", "Fp8": "fp8"}
    family = FAMILIES[int(made[FORMAT])].name
    return names.get(family) or storage.format.lower().replace("_k", "k")
