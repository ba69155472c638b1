"""Adapter folders of mlx-lm, compared with its formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro import AdapterWeights, errors

Write = Callable[..., AdapterWeights]

R, N, K, E = 3, 6, 5, 4
Q = "model.layers.0.self_attn.q_proj"


def config(**changed: Any) -> dict[str, Any]:
    parameters = {"rank": R, "scale": 2.5, "dropout": 0.1}
    said = {"fine_tune_type": "lora", "num_layers": 1, "model": "org/base"}
    return said | {"lora_parameters": parameters} | changed


def factors(name: str = Q) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {f"{name}.lora_a": torch.randn(K, R), f"{name}.lora_b": torch.randn(R, N)}


@pytest.fixture
def mlx(write: Write) -> Write:
    def run(tensors: dict[str, Tensor], said: dict[str, Any] | None = None) -> AdapterWeights:
        return write(tensors, said or config(), name="adapters.safetensors")

    return run


def test_a_linears_rows_add_what_mlx_adds(mlx: Write) -> None:
    tensors = factors()
    ours, x = mlx(tensors), torch.randn(2, K)
    made = ours.weights[Q]
    theirs = 2.5 * (x @ tensors[f"{Q}.lora_a"] @ tensors[f"{Q}.lora_b"])
    torch.testing.assert_close(x @ (made.scale * made.b @ made.a).mT, theirs)
    assert (ours.base, ours.space, made.rank) == ("org/base", "tree", R)


def test_an_embeddings_rows_add_what_mlx_adds(mlx: Write) -> None:
    name = "model.embed_tokens"
    a, b = torch.randn(N, R), torch.randn(R, K)
    made = mlx({f"{name}.lora_a": a, f"{name}.lora_b": b}).weights[name]
    torch.testing.assert_close(made.scale * made.b @ made.a, 2.5 * a @ b)


def test_dora_has_lengths(mlx: Write) -> None:
    lengths = torch.rand(N)
    made = mlx(factors() | {f"{Q}.m": lengths}, config(fine_tune_type="dora")).weights[Q]
    assert made.magnitude is not None and torch.equal(made.magnitude, lengths)


@pytest.mark.parametrize(
    ("block", "theirs", "ours"),
    [
        ("mlp", "gate_proj", "gate_proj"),
        ("block_sparse_moe", "gate_proj", "w1"),
        ("block_sparse_moe", "down_proj", "w2"),
        ("block_sparse_moe", "up_proj", "w3"),
    ],
)
def test_experts_are_called_as_checkpoints_have_them(
    block: str, theirs: str, ours: str, mlx: Write
) -> None:
    front = f"model.layers.0.{block}"
    a, b = torch.randn(E, R, K), torch.randn(E, N, R)
    stack = f"{front}.switch_mlp.{theirs}"
    weights = mlx({f"{stack}.lora_a": a, f"{stack}.lora_b": b}).weights
    assert [*weights] == [f"{front}.experts.{e}.{ours}" for e in range(E)]
    for e, made in enumerate(weights.values()):
        assert torch.equal(made.b @ made.a, b[e] @ a[e]) and made.scale == 2.5


BAD: dict[str, tuple[dict[str, Tensor], dict[str, Any], str]] = {
    "full": (factors(), config(fine_tune_type="full"), "fine_tune_type='full'"),
    "no scale": (factors(), config(lora_parameters={"rank": R}), "lora_parameters.scale"),
    "no rank": (factors(), config(lora_parameters={"scale": 1.0}), "lora_parameters.rank"),
    "parameters": (factors(), config(lora_parameters=[]), "lora_parameters must be"),
    "rank": (factors(), config(lora_parameters={"rank": 2, "scale": 1.0}), f"{Q}.*rank 2"),
    "half": ({f"{Q}.lora_a": torch.ones(K, R)}, config(), f"{Q}.lora_a.*no lora_b"),
    "alien": (factors() | {"model.norm.weight": torch.ones(K)}, config(), "model.norm.weight"),
    "dora": (factors(), config(fine_tune_type="dora"), f"{Q} has no m"),
    "lengths": (factors() | {f"{Q}.m": torch.ones(N)}, config(), f"{Q} has an m"),
    "lengths of others": (
        factors() | {f"{Q}.m": torch.ones(N + 1)},
        config(fine_tune_type="dora"),
        f"{Q}: its magnitude",
    ),
    "experts": (
        {"x.lora_a": torch.ones(E, R, K), "x.lora_b": torch.ones(E, N, R)},
        config(),
        "module x has experts",
    ),
    "nothing": ({}, config(), "holds no LoRA tensor"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_named(case: str, mlx: Write) -> None:
    tensors, said, message = BAD[case]
    with pytest.raises(errors.AdapterError, match=message):
        mlx(tensors, said)
    assert mlx(factors()).weights
