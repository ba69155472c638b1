"""GGUF adapters, written with llama.cpp's gguf package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from ostro import AdapterWeights, errors

Read = Callable[[Path], AdapterWeights]

R, N, K, E = 3, 6, 5, 4
Q = "blk.0.attn_q"
GOOD = {
    "general.type": "adapter",
    "adapter.type": "lora",
    "adapter.lora.alpha": 6.0,
    "general.base_model.0.name": "Base",
}


def factors(name: str = Q) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {
        f"{name}.weight.lora_a": torch.randn(R, K),
        f"{name}.weight.lora_b": torch.randn(N, R),
    }


@pytest.fixture
def adapter(tmp_path: Path, read: Read) -> Callable[..., AdapterWeights]:
    def run(tensors: Mapping[str, Tensor], **changed: Any) -> AdapterWeights:
        writer = gguf.GGUFWriter(tmp_path / "adapter.gguf", "llama")
        for key, value in (GOOD | changed).items():
            if isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            elif value is not None:
                writer.add_array(key, value)
        for name, tensor in tensors.items():
            if tensor.dtype == torch.uint8:
                kind = gguf.GGMLQuantizationType.Q8_0
                writer.add_tensor(name, np.asarray(tensor), raw_dtype=kind)
            else:
                writer.add_tensor(name, tensor.numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return read(tmp_path)

    return run


Adapter = Callable[..., AdapterWeights]


def test_a_linear_is_scaled_by_alpha_over_rank(adapter: Adapter) -> None:
    tensors = factors()
    ours = adapter(tensors)
    made = ours.weights[Q]
    assert (ours.space, ours.base, made.scale) == ("gguf", "Base", 2.0)
    assert torch.equal(made.a, tensors[f"{Q}.weight.lora_a"])
    assert torch.equal(made.b, tensors[f"{Q}.weight.lora_b"])


def test_no_alpha_is_no_scale(adapter: Adapter) -> None:
    assert adapter(factors(), **{"adapter.lora.alpha": 0.0}).weights[Q].scale == 1.0


def test_experts_are_stacked(adapter: Adapter) -> None:
    name = "blk.0.ffn_up_exps"
    a, b = torch.randn(E, R, K), torch.randn(E, N, R)
    made = adapter({f"{name}.weight.lora_a": a, f"{name}.weight.lora_b": b}).weights[name]
    assert torch.equal(made.a, a) and torch.equal(made.b, b) and made.scale == 2.0


def test_an_embeddings_row_is_that_of_lora_a(adapter: Adapter) -> None:
    """llama.cpp multiplies lora_b by the token's row of lora_a."""
    a, b = torch.randn(N, R), torch.randn(K, R)
    tensors = {"token_embd.weight.lora_a": a, "token_embd.weight.lora_b": b}
    made = adapter(tensors).weights["token_embd"]
    rows = torch.stack([2.0 * (b @ row) for row in a])
    torch.testing.assert_close(made.scale * made.b @ made.a, rows)


def test_an_activated_adapter_names_its_invocation(adapter: Adapter) -> None:
    key = "adapter.alora.invocation_tokens"
    assert adapter(factors(), **{key: [3, 1, 4]}).invocation == (3, 1, 4)


BAD: dict[str, tuple[dict[str, Tensor], dict[str, Any], str]] = {
    "model": (factors(), {"general.type": "model"}, "general.type is 'model'"),
    "other": (factors(), {"adapter.type": "control_vector"}, "adapter.type is"),
    "no alpha": (factors(), {"adapter.lora.alpha": None}, "adapter.lora.alpha must be"),
    "alpha": (factors(), {"adapter.lora.alpha": float("nan")}, "adapter.lora.alpha must be"),
    "half": ({f"{Q}.weight.lora_a": torch.ones(R, K)}, {}, f"{Q}.weight.lora_a.*no lora_b"),
    "norm": (factors() | {"output_norm.weight": torch.ones(K)}, {}, "output_norm.weight"),
    "shapes": (factors() | {f"{Q}.weight.lora_b": torch.ones(N, R + 1)}, {}, f"{Q}: A .* and B"),
    "format": (
        factors() | {f"{Q}.weight.lora_a": torch.zeros(R, 34, dtype=torch.uint8)},
        {},
        f"{Q}.weight.lora_a.*Q8_0",
    ),
    "invocation": (
        factors(),
        {"adapter.alora.invocation_tokens": ["a"]},
        "adapter.alora.invocation_tokens must be",
    ),
    "nothing": ({}, {}, "holds no LoRA tensor"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_named(case: str, adapter: Adapter) -> None:
    tensors, changed, message = BAD[case]
    with pytest.raises(errors.AdapterError, match=message):
        adapter(tensors, **changed)
    assert adapter(factors()).weights
