"""Invalid or unsupported PEFT folders are rejected, and the error names the key, tensor or file."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor

from ostro import AdapterWeights, errors
from ostro.adapters.lora import config as lora_config
from ostro.adapters.lora import patterns

Read = Callable[[Path], AdapterWeights]
Write = Callable[..., AdapterWeights]

R, N, K = 2, 6, 5
FRONT = "base_model.model."
Q = "model.layers.0.self_attn.q_proj"
EXPERTS = "model.layers.0.mlp.experts"


def config(**changed: Any) -> dict[str, Any]:
    return {"peft_type": "LORA", "r": R, "lora_alpha": 4, "target_modules": ["q_proj"]} | changed


def factors(name: str = Q, rank: int = R) -> dict[str, Tensor]:
    a, b = torch.ones(rank, K), torch.ones(N, rank)
    return {f"{FRONT}{name}.lora_A.weight": a, f"{FRONT}{name}.lora_B.weight": b}


def table(name: str = "model.embed_tokens") -> dict[str, Tensor]:
    a, b = torch.ones(R, N), torch.ones(K, R)
    return {f"{FRONT}{name}.lora_embedding_A": a, f"{FRONT}{name}.lora_embedding_B": b}


def test_a_valid_adapter_is_read(write: Write) -> None:
    ours = write(factors(), config())
    assert ours.weights[Q].scale == 2.0 and torch.equal(
        ours.weights[Q].b @ ours.weights[Q].a, torch.full((N, K), 2.0)
    )


BAD_KEYS: dict[str, tuple[Any, Any]] = {
    "r": (0, R),
    "lora_alpha": (float("nan"), 4),
    "use_rslora": ("yes", False),
    "rank_pattern": ({"q_proj": -1}, {"k_proj": 3}),
    "alpha_pattern": ({"q_proj": float("inf")}, {"q_proj": 3}),
    "target_modules": ({"q_proj": 1}, "all-linear"),
    "exclude_modules": ("(", ".*k_proj"),
    "bias": ("some", "all"),
    "layers_to_transform": (["0"], [0]),
    "layers_pattern": ("(a+)+", "layers"),
    "target_parameters": ("experts", []),
    "modules_to_save": ("lm_head", ["lm_head"]),
    "alora_invocation_tokens": (["a"], [1]),
    "init_lora_weights": ("pissa_niter_16", "gaussian"),
    "trainable_token_indices": ([1], None),
    "layer_replication": ([[0, 2]], None),
    "megatron_config": ({"a": 1}, None),
    "use_qalora": (True, False),
    "use_bdlora": ({"a": 1}, None),
    "arrow_config": ({"a": 1}, None),
    "kasa_config": ({"beta": 1.0}, None),
    "monteclora_config": ({"a": 1}, None),
    "ensure_weight_tying": (True, False),
    "of_another_day": (3, 0),
}


@pytest.mark.parametrize("key", BAD_KEYS)
def test_a_bad_value_is_refused_by_its_key(key: str, write: Write) -> None:
    bad, good = BAD_KEYS[key]
    with pytest.raises(errors.AdapterError, match=key):
        write(factors(), config(**{key: bad}))
    assert write(factors(), config(**{key: good})).weights


@pytest.mark.parametrize("begun", ["pissa", "olora", "corda", "lora_ga", "loftq", "of another day"])
def test_beginnings_that_change_the_base_are_refused_with_the_way_out(
    begun: str, write: Write
) -> None:
    with pytest.raises(errors.AdapterError, match="path_initial_model_for_weight_conversion"):
        write(factors(), config(init_lora_weights=begun))


def test_every_key_of_peft_is_read_or_harmless_or_refused() -> None:
    theirs = {field.name for field in dataclasses.fields(peft.LoraConfig)}
    ours = [lora_config.READ, lora_config.HARMLESS, frozenset(lora_config.REFUSED)]
    assert theirs <= frozenset.union(*ours)
    assert sum(map(len, ours)) == len(frozenset.union(*ours))


@pytest.mark.parametrize("other", ["lora_bias", "alora_invocation_tokens"])
def test_dora_stands_alone(other: str, write: Write) -> None:
    with pytest.raises(errors.AdapterError, match=f"use_dora .* {other}"):
        write(factors(), config(use_dora=True, **{other: [1] if other[0] == "a" else True}))


def without(tensors: dict[str, Tensor], end: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(end)}


def with_(end: str, tensor: Tensor, name: str = Q) -> dict[str, Tensor]:
    return factors() | {f"{FRONT}{name}.{end}": tensor}


STACKS = {"target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}
BAD_TENSORS: dict[str, tuple[dict[str, Tensor], dict[str, Any], str]] = {
    "no B": (without(factors(), "B.weight"), {}, f"{Q}.lora_A.weight.*no lora_B.weight"),
    "no A": (without(factors(), "A.weight"), {}, f"{Q}.lora_B.weight.*no lora_A.weight"),
    "no B of a table": (
        without(table(), "B"),
        {"target_modules": ["embed_tokens"]},
        "embed_tokens.lora_embedding_A.*no lora_embedding_B",
    ),
    "unselected": (factors("model.layers.0.self_attn.k_proj"), {}, "k_proj.lora_A.*not select"),
    "excluded": (factors(), {"exclude_modules": ["q_proj"]}, "q_proj.lora_A.*not select"),
    "in no layer": (factors(), {"layers_to_transform": [3]}, "q_proj.lora_A.*not select"),
    "saved too": (factors(), {"modules_to_save": ["self_attn"]}, "q_proj.lora_A.*not select"),
    "rank": (factors(rank=3), {}, f"{Q}: .*not have the rank 2"),
    "rank by pattern": (factors(), {"rank_pattern": {"q_proj": 3}}, f"{Q}: .*not have the rank 3"),
    "shapes": (with_("lora_B.weight", torch.ones(N, 3)), {}, f"{Q}: A .* are not two factors"),
    "kernel": (with_("lora_B.weight", torch.ones(N, R, 3)), {}, f"{Q}: A .* are not two factors"),
    "nothing in it": (with_("lora_A.weight", torch.ones(R, 0)), {}, f"{Q}: A .* are not two"),
    "NaN": (with_("lora_A.weight", torch.full((R, K), torch.nan)), {}, "lora_A.*NaN"),
    "infinity": (with_("lora_B.weight", torch.full((N, R), torch.inf)), {}, "lora_B.*infinity"),
    "integers": (with_("lora_A.weight", torch.ones(R, K, dtype=torch.int8)), {}, "lora_A.*I8"),
    "bias unsaid": (with_("lora_B.bias", torch.ones(N)), {}, "has lora_B.bias.*lora_bias=False"),
    "bias lacking": (factors(), {"lora_bias": True}, "lacks lora_B.bias.*lora_bias=True"),
    "bias of others": (with_("lora_B.bias", torch.ones(K)), {"lora_bias": True}, "its bias"),
    "lengths unsaid": (with_("lora_magnitude_vector", torch.ones(N)), {}, "use_dora=False"),
    "lengths lacking": (factors(), {"use_dora": True}, "lacks lora_magnitude_vector.*use_dora=T"),
    "lengths of a table": (
        table() | {f"{FRONT}model.embed_tokens.lora_magnitude_vector": torch.ones(K)},
        {"target_modules": ["embed_tokens"], "use_dora": True},
        "embed_tokens.lora_magnitude_vector.*columns",
    ),
    "two adapters": (
        with_("lora_A.other.weight", torch.ones(R, K)),
        {},
        "lora_A.*of two adapters",
    ),
    "alien": (with_("vera_lambda_b", torch.ones(N)), {}, "vera_lambda_b.*not selected"),
    "bias of none": (with_("bias", torch.ones(N)), {}, "q_proj.bias.*not selected"),
    "bias of another": (
        with_("bias", torch.ones(N), "model.layers.0.self_attn.k_proj"),
        {"bias": "lora_only"},
        "k_proj.bias.*not selected",
    ),
    "unsaved": (with_("weight", torch.ones(N), "score"), {}, "score.weight.*not selected"),
    "experts of no rank": (factors(EXPERTS, 3), {"target_parameters": ["down_proj"]}, "rank 2"),
    "one wrapper of two": (factors(EXPERTS), STACKS, "down_proj, gate_up_proj.*factors for 1"),
    "unknown order": (
        factors(EXPERTS) | factors(f"{EXPERTS}.base_layer"),
        {"target_parameters": ["experts.first", "experts.second"]},
        "first, second.*do not assign them",
    ),
    "none": ({}, {}, "holds no LoRA tensor"),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_a_bad_tensor_is_refused_by_its_name(case: str, write: Write) -> None:
    tensors, changed, message = BAD_TENSORS[case]
    with pytest.raises(errors.AdapterError, match=message):
        write(tensors, config(**changed))
    assert write(factors(), config()).weights


def test_pickles_are_refused_by_name(tmp_path: Path, read: Read, write: Write) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(config()))
    with pytest.raises(errors.AdapterError, match=r"there is no adapter_model\.safetensors"):
        read(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"\x80")
    with pytest.raises(errors.AdapterError, match=r"adapter_model\.bin: is a pickle"):
        read(tmp_path)
    assert write(factors(), config()).weights


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        ([], "weight_map"),
        ({"x": "../a.safetensors"}, r"names '\.\./a"),
        ({"x": "absent.safetensors"}, "names 'absent"),
        ({"x": "a.safetensors"}, "tensor 'x' is not in a.safetensors"),
    ],
)
def test_an_inconsistent_index_is_rejected(
    owners: Any, message: str, tmp_path: Path, read: Read, write: Write
) -> None:
    index = tmp_path / "adapter_model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(factors(), "a.safetensors")}))
    assert write(factors(), config(), name="a.safetensors").weights
    index.write_text(json.dumps({"weight_map": owners}))
    with pytest.raises(errors.AdapterError, match=message):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("chat_template.jinja", b"\xff", "chat_template.jinja: cannot be read"),
        (
            "chat_template.jinja",
            b" " * 1_000_001,
            "chat_template.jinja: cannot be read: larger than 1 MB",
        ),
        ("tokenizer_config.json", b'{"chat_template": 3}', "chat_template must be a text"),
        ("tokenizer_config.json", b"[]", "tokenizer_config.json: is not a valid JSON"),
        ("added_tokens.json", b'{"a": "b"}', "added_tokens.json: 'a': 'b' is not a token id"),
    ],
)
def test_bad_files_beside_it_are_refused(
    name: str, text: bytes, message: str, tmp_path: Path, read: Read, write: Write
) -> None:
    write(factors(), config())
    (tmp_path / name).write_bytes(text)
    with pytest.raises(errors.AdapterError, match=message):
        read(tmp_path)


def test_expressions_that_take_for_ever_are_stopped(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit is passed to `subprocess.run`, whose error is reported."""
    limits, run = list[float](), subprocess.run

    def note(*args: Any, timeout: float, **options: Any) -> Any:
        limits.append(timeout)
        return run(*args, **options)  # without a limit: a busy machine may need longer

    def expire(*args: Any, timeout: float, **options: Any) -> Any:
        raise subprocess.TimeoutExpired(args, timeout)

    monkeypatch.setattr(subprocess, "run", note)
    assert write(factors(), config(target_modules=r"(\w+|\.)+")).weights
    assert limits == [10]
    monkeypatch.setattr(subprocess, "run", expire)
    with pytest.raises(errors.AdapterError, match=r"target_modules: matching takes more than 10 s"):
        write(factors(), config(target_modules=r"(\w+|\w|\.)+!"))


@pytest.mark.process
def test_expressions_that_take_for_ever_are_stopped_in_real_time(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns, "SECONDS", 1.0)
    with pytest.raises(errors.AdapterError, match=r"target_modules: matching takes more than 1 s"):
        write(factors(), config(target_modules=r"(\w+|\w|\.)+!"))


def test_alternatives_of_a_pattern_end_a_name_each() -> None:
    names = ["a.q_proj", "a.v_proj", "q_proj.a", "a.xq_proj"]
    found = patterns.first("rank_pattern", ["q_proj|v_proj"], names, ends=True)
    assert found == [0, 0, None, None]
