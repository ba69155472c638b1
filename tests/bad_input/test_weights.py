"""Weights that are cut short, malformed, missing, too many, misshapen or no numbers."""

from __future__ import annotations

import json

import pytest
import torch
from tiny.cli_runner import CliRunner
from tiny.model import change_config, change_weights, make_gguf, make_weights

from ostro.core.errors import (
    CheckpointError,
    ConfigError,
    OstroError,
    TokenizerError,
    UnsupportedArchitecture,
)


@pytest.mark.parametrize("size", [0, 4, 100, -1, -1000])
def test_truncated_weights_are_rejected(runner: CliRunner, size: int) -> None:
    file = runner.folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    runner.assert_rejected(CheckpointError, "model.safetensors")


def test_weights_of_another_file_type_are_rejected(runner: CliRunner) -> None:
    (runner.folder / "model.safetensors").write_bytes(b"<!DOCTYPE html>" * 100)
    runner.assert_rejected(CheckpointError, "model.safetensors")


def test_an_index_with_a_missing_shard_is_rejected(runner: CliRunner) -> None:
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (runner.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    runner.assert_rejected(CheckpointError, "model-00002-of-00002.safetensors", "is missing")


def test_missing_and_left_over_tensors_are_listed(runner: CliRunner) -> None:
    change_weights(runner.folder, model__norm__weight=None, model__norm2__weight=torch.ones(3))
    runner.assert_rejected(
        CheckpointError, "missing: model.norm.weight", "left over: model.norm2.weight"
    )


def test_a_wrong_number_of_layers_lists_the_tensors(runner: CliRunner) -> None:
    change_config(runner.folder, num_hidden_layers=1)
    runner.assert_rejected(CheckpointError, "left over: model.layers.1.")
    change_config(runner.folder, num_hidden_layers=3)
    runner.assert_rejected(CheckpointError, "missing: model.layers.2.")


@pytest.mark.parametrize(
    ("tensor", "shape", "expected"),
    [
        ("model__norm__weight", (31,), ("model.norm.weight", "(31,)", "(32,)")),
        ("model__embed_tokens__weight", (321, 32), ("embed_tokens", "(321, 32)", "(320, 32)")),
        ("model__layers__1__mlp__up_proj__weight", (48, 33), ("up_proj", "(48, 33)", "(48, 32)")),
        ("lm_head__weight", (320,), ("lm_head", "(320,)", "(320, 32)")),
    ],
)
def test_a_tensor_of_the_wrong_shape_is_rejected(
    runner: CliRunner, tensor: str, shape: tuple[int, ...], expected: tuple[str, ...]
) -> None:
    change_weights(runner.folder, **{tensor: torch.ones(shape)})
    runner.assert_rejected(CheckpointError, *expected)


def test_a_tensor_of_an_unsupported_type_is_rejected(runner: CliRunner) -> None:
    weight = torch.ones(48, 32, dtype=torch.int8)
    change_weights(runner.folder, model__layers__0__mlp__up_proj__weight=weight)
    runner.assert_rejected(CheckpointError, "layers.0.mlp.up_proj", "I8", "`ostro models`")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_weights_warn(
    runner: CliRunner, caplog: pytest.LogCaptureFixture, value: float
) -> None:
    """Only texts with that token are noise: the others are answered."""
    assert runner.run()[0] == 0 and not caplog.text
    weight = make_weights()["model.embed_tokens.weight"]
    weight[0] = value
    change_weights(runner.folder, model__embed_tokens__weight=weight)
    assert runner.run()[0] == 0
    assert "m: 1 tensor(s) contain NaN or Inf" in caplog.text
    assert "first: model.embed_tokens.weight;" in caplog.text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("tensor", "row"),
    [
        ("model__norm__weight", 7),
        ("lm_head__weight", 150),
        ("model__layers__1__mlp__down_proj__weight", 5),
        ("model__layers__0__self_attn__v_proj__weight", -1),
    ],
)
def test_weights_with_nan_logits_are_rejected(
    runner: CliRunner, tensor: str, row: int, value: float
) -> None:
    weight = make_weights()[tensor.replace("__", ".")]
    weight[row] = value
    change_weights(runner.folder, **{tensor: weight})
    runner.assert_rejected(CheckpointError, "m: ", "NaN or Inf", "download its files again")


def test_float16_overflow_is_an_error_with_a_hint(runner: CliRunner) -> None:
    weight = make_weights()["model.layers.0.mlp.down_proj.weight"] * 1e5
    change_weights(runner.folder, model__layers__0__mlp__down_proj__weight=weight)
    assert runner.run("--dtype", "float32")[0] == 0
    expected = ("m: ", "NaN or Inf", "float16 overflows", "--dtype bfloat16 or float32")
    runner.assert_rejected(CheckpointError, *expected, options=("--dtype", "float16"))


@pytest.mark.parametrize("tokens", [slice(3, 4), slice(100, 110)], ids=["BOS", "others"])
def test_float16_overflow_of_some_tokens(runner: CliRunner, tokens: slice) -> None:
    """Of the first dimension, which the other tokens do not have."""
    made = make_weights()
    embedding, out, gate, up = (
        made[f"model.{name}.weight"]
        for name in (
            "embed_tokens",
            "layers.0.self_attn.o_proj",
            "layers.0.mlp.gate_proj",
            "layers.0.mlp.up_proj",
        )
    )
    embedding[:, 0], out[0], gate[:, 0], up[:, 0] = 0, 0, 1e3, 1e3
    embedding[tokens, 0] = 50
    change_weights(
        runner.folder,
        model__embed_tokens__weight=embedding,
        model__layers__0__self_attn__o_proj__weight=out,
        model__layers__0__mlp__gate_proj__weight=gate,
        model__layers__0__mlp__up_proj__weight=up,
    )
    change_config(runner.folder, bos_token_id=3)
    assert runner.run("--dtype", "float32")[0] == 0
    expected = ("m: ", "NaN or Inf", "float16 overflows")
    runner.assert_rejected(CheckpointError, *expected, options=("--dtype", "float16"))


def test_a_tied_head_that_differs_from_the_embedding_warns(
    runner: CliRunner, caplog: pytest.LogCaptureFixture
) -> None:
    change_config(runner.folder, tie_word_embeddings=True)
    assert runner.run()[0] == 0
    assert "lm_head.weight differs from model.embed_tokens.weight" in caplog.text
    caplog.clear()
    same = make_weights()["model.embed_tokens.weight"]
    for head in (same, None):
        change_weights(runner.folder, lm_head__weight=head)
        assert runner.run()[0] == 0 and not caplog.text


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf").read_bytes()


@pytest.mark.parametrize("size", [None, 0, 3, 20, 500, -1, -100_000])
def test_a_truncated_gguf_file_is_rejected(
    runner: CliRunner, gguf: bytes, size: int | None
) -> None:
    file = runner.folder.parent / "m.gguf"
    file.write_bytes(gguf[:size])
    if size is None:
        assert runner.run(model=file)[0] == 0
    else:
        runner.assert_rejected(CheckpointError, "m.gguf", model=file)


LLAMA = (5).to_bytes(8, "little") + b"llama"
"""The value of general.architecture, as a GGUF string."""


@pytest.mark.parametrize(
    ("old", "new", "kind", "expected"),
    [
        (b"GGUF", b"GGMF", CheckpointError, ("m.gguf",)),
        (b"general.architecture", b"general.architectura", ConfigError, ("m.gguf",)),
        (LLAMA, LLAMA.replace(b"ll", b"ff"), UnsupportedArchitecture, ("'ffama'", "nearest")),
        (b"llama.embedding_length", b"llama.embedding_lengtx", ConfigError, ("hidden_size",)),
        (b"output_norm.weight", b"output_norn.weight", CheckpointError, ("output_norn.weight",)),
        (b"tokenizer.ggml.model", b"tokenizer.ggml.modem", TokenizerError, ("tokenizer",)),
    ],
)
def test_a_malformed_gguf_file_is_rejected(
    runner: CliRunner,
    gguf: bytes,
    old: bytes,
    new: bytes,
    kind: type[OstroError],
    expected: tuple[str, ...],
) -> None:
    file = runner.folder.parent / "m.gguf"
    assert gguf.count(old) >= 1
    file.write_bytes(gguf.replace(old, new, 1))
    runner.assert_rejected(kind, *expected, model=file)
