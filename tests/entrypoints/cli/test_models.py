"""`ostro models`: what the records say, and how the weights of a model lie and multiply."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from tiny.model import CONFIG, gguf_name, make_gguf, make_weights, rotated

from ostro.plugins.checkpoints.gguf.ggml import GGML_BY_NAME
from ostro.quant.gguf.quantize import quantize

PLUGIN = """
from ostro import Architecture, hookimpl

@hookimpl
def ostro_architectures():
    yield Architecture(
        name="loris", api=(0, 2), classes=("LorisForCausalLM",), config="x:C", model="x:M"
    )
"""


def test_architectures_and_formats_are_listed(ostro) -> None:
    ran = ostro("models", "--json")
    assert ran.code == 0
    found = json.loads(ran.out)
    rows = {row["name"]: row for row in found["architectures"]}
    assert rows["qwen2"] == {
        "name": "qwen2",
        "tasks": ["text", "embed"],
        "classes": ["Qwen2ForCausalLM"],
        "gguf": ["qwen2"],
        "body": "ostro",
    }
    assert {"mistral", "qwen3", "gemma3"} <= rows.keys()
    assert "dense" in found["formats"] and {"gguf", "safetensors"} <= set(found["checkpoints"])


def test_the_default_output_is_a_table(ostro) -> None:
    ran = ostro("models")
    assert ran.code == 0
    row = next(line for line in ran.out.splitlines() if "Qwen2ForCausalLM" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == [
        "qwen2", "text, embed", "Qwen2ForCausalLM", "qwen2", "ostro",
    ]  # fmt: skip
    assert "checkpoints: diffusers, dummy, gguf, safetensors" in ran.out


def test_a_plugin_s_architecture_is_among_them(ostro, tmp_path: Path) -> None:
    file = tmp_path / "loris_of_a_test.py"
    file.write_text(PLUGIN)
    try:
        found = json.loads(ostro("models", "--json", "--plugin", str(file)).out)
    finally:
        sys.modules.pop(file.stem, None)
    assert "loris" in [row["name"] for row in found["architectures"]]
    assert "loris" not in ostro("models").out


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A GGUF file in which values have more bits than queries and keys, as Q4_K_M has it."""
    file = tmp_path_factory.mktemp("models") / "mixture.gguf"
    shape: Mapping[str, Any] = {**CONFIG, "hidden_size": 256, "intermediate_size": 256}
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(shape["hidden_size"])
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(shape["rms_norm_eps"])
    for name, tensor in make_weights(shape).items():
        if tensor.dim() == 1:
            writer.add_tensor(gguf_name(name), tensor.numpy())
            continue
        format = "Q6_K" if "v_proj" in name else "Q4_K"
        rows = quantize(rotated(name, tensor), format, None).numpy()
        kind = GGMLQuantizationType(GGML_BY_NAME[format].id)
        writer.add_tensor(gguf_name(name), rows, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(file)


def explained(ostro: Any, *words: str) -> dict[str, Any]:
    ran = ostro("models", "--explain", *words, "--dtype", "float32", "--json")
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    found["layers"] = {layer.pop("path"): layer for layer in found["layers"]}
    return found


def test_a_float_model_is_explained(ostro, tiny: str) -> None:
    found = explained(ostro, tiny)
    assert (found["model"], found["architecture"], found["dtype"]) == ("tiny", "llama", "float32")
    assert {tuple(layer["formats"]) for layer in found["layers"].values()} == {("dense",)}
    down = found["layers"]["model.layers.1.mlp.down_proj"]
    assert down["bytes"] == 4 * 32 * 48 and down["kernel"]
    assert found["bytes"] == sum(layer["bytes"] for layer in found["layers"].values())
    assert any("attention: " in line for line in found["notes"])
    assert not any(line.endswith(down["kernel"]) for line in found["notes"])


def test_the_sampling_defaults_and_their_sources_are_explained(ostro, tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "stated.gguf", sampling={"temp": 0.25, "top_k": 7})
    stated = "sampling: temperature 0.25, top_k 7 (GGUF general.sampling)"
    assert stated in explained(ostro, str(file))["notes"]
    assert stated in ostro("models", "--explain", str(file)).out
    neutral = explained(ostro, str(file), "--generation-config", "none")
    assert "sampling: temperature 1, all tokens" in neutral["notes"]


def test_a_mixture_in_one_linear_is_explained(ostro, mixture: str) -> None:
    layers = explained(ostro, mixture)["layers"]
    qkv = layers["model.layers.0.self_attn.qkv"]
    assert qkv["formats"] == ["Q4_K", "Q6_K"]
    assert qkv["bytes"] >= (256 + 128) * 144 + 128 * 210
    q4, q6 = qkv["kernel"].split("; Q6_K")
    assert q4.startswith("Q4_K (4 bits") and "6 bits" in q6
    assert layers["model.layers.0.mlp.gate_up"]["formats"] == ["Q4_K"]
    ran = ostro("models", mixture, "--explain", "--dtype", "float32")
    rows = [line for line in ran.out.splitlines() if "model.layers.0.self_attn.qkv" in line]
    assert len(rows) == 1 and "Q4_K, Q6_K" in rows[0]
    number = rows[0].split("\u2502")[4].strip()
    assert f"{number} Q4_K (4 bits" in ran.out and "bytes of weights" in ran.out


def test_what_a_plan_did_not_do_is_explained(ostro, tiny: str) -> None:
    found = explained(ostro, tiny, "--quant", "afq4")
    note = "quantize: model.layers.0.mlp.down_proj: 48 columns are not a multiple of afq4's block"
    assert any(line.startswith(note) for line in found["notes"])
    assert found["layers"]["model.layers.0.mlp.down_proj"]["formats"] == ["dense"]
    found = explained(ostro, tiny, "--quant", "q8_0", "--topology", "o_proj = float")
    assert found["layers"]["model.layers.0.mlp.gate_up"]["formats"] == ["Q8_0"]
    assert found["layers"]["model.layers.0.self_attn.o_proj"]["formats"] == ["dense"]
    assert (
        "quantize: model.layers.0.mlp.down_proj"
        in ostro("models", "--explain", "-m", tiny, "--quant", "4").out
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-m", "a-model"), "a-model: add --explain"),
        (("--explain", "one", "-m", "two"), "got one and -m two"),
        (("--explain", "/nowhere/at/all"), "/nowhere/at/all"),
    ],
)
def test_invalid_options_of_explain_are_rejected(
    ostro, words: tuple[str, ...], message: str
) -> None:
    ran = ostro("models", *words)
    assert ran.code != 0 and message in ran.err


@pytest.mark.parametrize("words", [("--quant", "4.5bpw"), ("qwen", "--dtype", "float32")])
def test_options_of_a_model_need_explain(ostro, words: tuple[str, ...]) -> None:
    ran = ostro("models", *words)
    assert ran.code == 2 and "--explain" in ran.err and not ran.out
