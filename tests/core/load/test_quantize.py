"""Quantization at load: names, rules, promotion, stand-ins, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.errors import CheckpointError, UsageError
from ostro.core.load.model import LoadedModel, requantize
from ostro.core.load.quantize import SHORT, find, makers
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.conformance.formats import (
    assert_grid,
    falls_with_bits,
    formats,
    sample_formats,
    wide,
)
from ostro.plugins.conformance.parity import Subject, deviation, greedy


@pytest.fixture(scope="module")
def llama(plugins: PluginManager) -> Iterator[Subject]:
    with wide(plugins, plugins.get("architectures", "llama")) as made:
        yield made


@pytest.fixture(scope="module")
def mixtral(plugins: PluginManager) -> Iterator[Subject]:
    with wide(plugins, plugins.get("architectures", "mixtral")) as made:
        yield made


def test_importance_weighs_the_errors_of_columns(llama: Subject, tmp_path: Path) -> None:
    shape = llama.config
    k, down = shape.hidden_size, shape.intermediate_size
    for name, columns, path in (
        ("blk.0.attn_output.weight", k, "model.layers.0.self_attn.o_proj"),
        ("model.layers.1.mlp.down_proj", down, "model.layers.1.mlp.down_proj"),
    ):
        importance = torch.ones(columns)
        importance[::8] = 1000
        file = tmp_path / "model.cimatrix"
        entry = pack("<Q", len(name)) + name.encode() + pack("<Q", columns)
        file.write_bytes(pack("<Q", 1) + entry + importance.numpy().tobytes())
        float_weight = storage(llama.load(), path)
        plain, weighed = (
            (storage(llama.load(quant="q2k", importance=asked), path) - float_weight).square()
            for asked in (None, str(file))
        )
        first = slice(None, None, 8)
        assert weighed[:, first].mean() < 0.8 * plain[:, first].mean()
        assert weighed.mean() > plain.mean()


def storage(loaded: LoadedModel, path: str) -> Tensor:
    """The weight of a linear, dequantized."""
    (one,) = loaded.model.get_submodule(path).active_storages  # type: ignore[operator]
    return one.dequantize()  # type: ignore[no-any-return]


def test_importance_of_another_model_or_of_nothing_is_refused(
    llama: Subject, tmp_path: Path
) -> None:
    name, file = b"model.layers.0.mlp.down_proj", tmp_path / "model.cimatrix"
    entry = pack("<Q", len(name)) + name + pack("<Q", 7)
    file.write_bytes(pack("<Q", 1) + entry + torch.ones(7).numpy().tobytes())
    with pytest.raises(CheckpointError, match=r"model.cimatrix: entry .* has 7 values, but model"):
        llama.load(quant="q4k", importance=str(file))
    with pytest.raises(UsageError, match="requires --quant"):
        llama.load(importance=str(file))


def held(loaded: LoadedModel) -> dict[str, tuple[str, ...]]:
    return {layer.path: layer.formats for layer in loaded.layers}


def test_every_short_name_means_a_format(plugins: PluginManager) -> None:
    known = makers(plugins)
    for short, name in SHORT.items():
        assert find(short, known).format.name == name
    assert find("Q4_K", known).format.name == find("q4k", known).format.name == "q4k"
    assert find("AFQ-4", known).format.name == "afq4"


def test_every_promotion_and_stand_in_is_a_format(plugins: PluginManager) -> None:
    known = makers(plugins)
    for maker in known.values():
        mine, instead, sensitive = maker.format, maker.format.instead, maker.format.sensitive
        assert instead is None or known[instead].format.block < mine.block
        assert sensitive is None or known[sensitive].format.bits >= min(mine.bits, 8.5)


@pytest.mark.parametrize("name", ["q9", "", "4.5", "q4_k_x"])
def test_other_names_are_refused(name: str, llama: Subject) -> None:
    with pytest.raises(UsageError, match=r"unknown format .* or bits per weight \(4.5bpw\)"):
        llama.load(quant=name)


def test_embeddings_and_heads_keep_more_bits(llama: Subject) -> None:
    found = held(llama.load(quant="afq4"))
    assert found["model.embed_tokens"] == ("AFQ6",)
    assert found["model.layers.0.self_attn.qkv"] == ("AFQ4",)
    assert found["model.layers.1.mlp.down_proj"] == ("AFQ4",)


def test_rules_come_before_the_usual_and_the_last_one_wins(llama: Subject, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(
        '"model.layers.[0-7].*" = "afq8"\n"*.mlp.down_proj" = "float"\n"v_proj" = "afq2"\n'
    )
    found = held(llama.load(quant="afq4", topology=str(file)))
    assert found["model.layers.0.mlp.gate_up"] == ("AFQ8",)
    assert found["model.layers.0.mlp.down_proj"] == ("dense",)
    assert set(found["model.layers.0.self_attn.qkv"]) == {"AFQ8", "AFQ2"}
    assert found["model.embed_tokens"] == ("AFQ6",)


def test_rules_alone_leave_the_rest(llama: Subject) -> None:
    found = held(llama.load(topology="o_proj = afq4"))
    assert found["model.layers.0.self_attn.o_proj"] == ("AFQ4",)
    assert found["model.layers.0.self_attn.qkv"] == ("dense",)


def test_rules_that_name_no_format_are_refused(llama: Subject) -> None:
    with pytest.raises(UsageError, match="--topology: unknown format 'afq5'"):
        llama.load(topology="o_proj = afq5")
    with pytest.raises(UsageError, match="--topology: 'o_prj' matches no weight"):
        llama.load(topology="o_prj = afq4")
    with pytest.raises(UsageError, match=r"--topology nothing.toml: there is no such file"):
        llama.load(topology="nothing.toml")


def test_routers_stay_and_experts_do_not(mixtral: Subject) -> None:
    found = held(mixtral.load(quant="afq4"))
    routers = {path: formats for path, formats in found.items() if path.endswith("gate")}
    assert routers and set(routers.values()) == {("dense",)}
    experts = {formats for path, formats in found.items() if ".experts." in path}
    assert experts == {("AFQ4",)}


def test_rows_that_are_no_whole_blocks_are_reported(plugins: PluginManager) -> None:
    record = plugins.get("architectures", "llama")
    shape = {**record.conformance.wide, "intermediate_size": 96}
    from ostro.plugins.conformance.parity import subject

    with subject(plugins, "llama", config=shape) as odd:
        loaded = odd.load(quant="afq4")
        assert held(loaded)["model.layers.0.mlp.down_proj"] == ("dense",)
        said = [line for line in loaded.explain if line.startswith("quantize: ")]
        assert said == [
            f"quantize: model.layers.{i}.mlp.down_proj: 96 columns are not a multiple of afq4's "
            "block of 64: not quantized"
            for i in range(shape["num_hidden_layers"])
        ]


def test_it_takes_the_bytes_that_its_bits_say(llama: Subject) -> None:
    whole = llama.load().nbytes
    eight, four = (llama.load(quant=f"afq{bits}", exact=True).nbytes for bits in (8, 4))
    assert four < eight < 0.3 * whole


def test_block_keys_tell_formats_apart(llama: Subject) -> None:
    names = {llama.load(**asked).identity for asked in VARIANTS}
    assert len(names) == len(VARIANTS)


VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"quant": "afq4"},
    {"quant": "afq8"},
    {"quant": "afq4", "exact": True},
    {"topology": "o_proj = afq4"},
)


def test_weights_are_brought_to_another_format_in_place(
    llama: Subject, plugins: PluginManager
) -> None:
    loaded = llama.load(quant="afq2", exact=True)
    coarse, name = llama.answer(llama.engine(loaded)), loaded.identity
    requantize(loaded, Settings(quant="afq8", exact=True), plugins)
    assert held(loaded)["model.layers.0.self_attn.qkv"] == ("AFQ8",) and loaded.identity != name
    fresh = llama.load(quant="afq8", exact=True)
    again = llama.answer(llama.engine(loaded))
    assert torch.equal(again, llama.answer(llama.engine(fresh)))
    assert deviation(again, llama.expected) < deviation(coarse, llama.expected) / 4
    requantize(loaded, Settings(), plugins)
    assert deviation(llama.answer(llama.engine(loaded)), llama.expected) < 2e-4
    assert greedy(llama.engine(loaded), [llama.prompt], 8)


def test_the_quick_grid_has_every_format_somewhere(plugins: PluginManager) -> None:
    records = plugins.collect("architectures")
    names = [name for name, record in records.items() if record.conformance.wide]
    met = {format for name in names for format in sample_formats(plugins, name)}
    assert met == set(formats(plugins))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["afq", "gguf", "hqq"])
def test_error_falls_with_bits(family: str, llama: Subject, plugins: PluginManager) -> None:
    known = makers(plugins)
    mine = [name for name in formats(plugins) if known[name].quantizer.name == family]
    errors = [(known[name].format.bits, assert_grid(llama, name)) for name in mine]
    assert falls_with_bits(errors), errors
    assert not falls_with_bits([(bits, -error) for bits, error in errors])
