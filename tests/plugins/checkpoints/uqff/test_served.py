"""Models in UQFF, served: their logits are those of the dequantized weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny.projector import write_pair
from torch import Tensor

from ostro.core.errors import Unsupported
from ostro.core.load.quantize import makers
from ostro.core.nn.storage import Storage
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.entrypoints.cli.quantize import write as save
from ostro.plugins.checkpoints.uqff.write import Entry, write
from ostro.plugins.conformance.parity import Subject, deviation, subject

FORMATS = ("q4k", "afq4", "q8_0", "fp8", "mxfp4", "f8q8", "q6k")
"""Taken in turns."""

NOISE = 1e-4
"""What sums in another order, and of codes apart from offsets, make of models of this width."""


def quantize(tiny: Subject, formats: Sequence[str] = FORMATS, *, gguf: bool = False) -> list[Entry]:
    """Every matrix of a model in some format, its rows as in a GGUF file where that is said. The
    reference gets what then is in its place.
    """
    known, entries = makers(tiny.plugins), []
    matrices = [(n, t) for n, t in tiny.reference.state_dict().items() if t.dim() == 2]
    for i, (name, weight) in enumerate(matrices):
        order = tiny.names.write(name, "gguf").transform if gguf else None
        rows = weight if order is None else order.write(weight)
        storage = known[formats[i % len(formats)]].make(rows, torch.float32, None)
        made = storage.dequantize()
        weight.copy_(made if order is None else order.read(made))
        entries.append(Entry(name.removesuffix(".weight"), partial(given, storage)))
    return entries


def given(storage: Storage) -> Storage:
    return storage


def residual(tiny: Subject) -> dict[str, Tensor]:
    return {name: t for name, t in tiny.reference.state_dict().items() if t.dim() == 1}


def wide(name: str, plugins: PluginManager) -> dict[str, Any]:
    return dict(plugins.get("architectures", name).conformance.wide)


def answers(tiny: Subject, folder: Path, plain: Path) -> float:
    """How far what a folder says is from what the reference's weights say."""
    tiny.reference.save_pretrained(plain)
    ours, truth = replace(tiny, folder=folder), replace(tiny, folder=plain)
    loaded = ours.load(exact=True)
    return deviation(ours.answer(ours.engine(loaded)), truth.answer(truth.engine()))


@torch.inference_mode()
def test_a_mixture_of_families(plugins: PluginManager, tmp_path: Path) -> None:
    with subject(plugins, "llama", config=wide("llama", plugins)) as tiny:
        entries, folder = quantize(tiny), tmp_path / "out"
        write(
            folder, "mix", entries, residual=residual(tiny), config=tiny.raw_config, limit=1 << 18
        )
        assert len(list(folder.glob("*.uqff"))) > 2
        assert answers(tiny, folder, tmp_path / "plain") <= NOISE


@pytest.mark.sample(1)
@pytest.mark.parametrize("said", ["adjacent", "half_split"])
@torch.inference_mode()
def test_rows_in_gguf_order_are_read(said: str, plugins: PluginManager, tmp_path: Path) -> None:
    """What says that they lie as on the hub, though they do not, makes noise."""
    with subject(plugins, "llama", config=wide("llama", plugins)) as tiny:
        entries, folder = (
            quantize(tiny, ("q4k", "afq4", "mxfp4", "fp8"), gguf=True),
            tmp_path / "out",
        )
        write(folder, "mix", entries, residual=residual(tiny), config=tiny.raw_config)
        config = json.loads((folder / "config.json").read_text())
        config["_mistralrs_qk_rope_layout"] = said
        (folder / "config.json").write_text(json.dumps(config))
        off = answers(tiny, folder, tmp_path / "plain")
        assert off <= NOISE if said == "adjacent" else off > 0.1


@pytest.mark.sample(1)
@pytest.mark.parametrize("format", ["q4k", "afq4", "mxfp4"])
@torch.inference_mode()
def test_stacked_experts(format: str, plugins: PluginManager, tmp_path: Path) -> None:
    """transformers holds gate and up in one; UQFF has gate, up and down, each of all experts."""
    with subject(plugins, "qwen3_moe", config=wide("qwen3_moe", plugins)) as tiny:
        maker, entries, state = makers(plugins)[format], [], tiny.reference.state_dict()
        rest = dict(state)
        for name, weight in state.items():
            if weight.dim() != 3:
                continue
            del rest[name]
            path, _, last = name.rpartition(".")
            parts = {"gate_proj": 0, "up_proj": 1} if last == "gate_up_proj" else {"down_proj": 0}
            chunks = weight.chunk(len(parts), 1)
            for part, i in parts.items():
                stack = [maker.make(each, torch.float32, None) for each in chunks[i]]
                storage: Any = type(stack[0]).stack(stack)
                chunks[i].copy_(storage.dequantize().view(chunks[i].shape))
                entries.append(Entry(f"{path}.{part}", partial(given, storage)))
        assert len(entries) == 6, "two layers of three have experts"
        folder = tmp_path / "out"
        write(folder, "moe", entries, residual=rest, config=tiny.raw_config)
        assert answers(tiny, folder, tmp_path / "plain") <= NOISE


@torch.inference_mode()
def test_of_a_model_that_sees_its_folder_is_written_and_a_pair_of_files_refused(
    plugins: PluginManager, tmp_path: Path
) -> None:
    """llama.cpp's text and projector have no config.json, which mistral.rs asks for."""
    with subject(plugins, "qwen3_vl") as tiny:
        examples = tiny.examples  # which write what their Inputs read
        pair = tmp_path / "pair"
        pair.mkdir()
        asked = Settings(quant="q8_0", dtype="float32")
        for named in (write_pair(tiny, pair), pair / "mmproj-F32.gguf"):
            with pytest.raises(
                Unsupported,
                match=r"not a model folder with a config\.json.*quantize the model's folder",
            ):
                save(replace(asked, reference=str(named)), plugins, "uqff", tmp_path / "out")
        folder = save(replace(asked, reference=str(tiny.folder)), plugins, "uqff", tmp_path / "out")
        written, loaded = replace(tiny, folder=folder).load(), tiny.load(quant="q8_0")
        held = {layer.path: layer.formats for layer in written.layers}
        assert held["visual.blocks.0.attn.qkv"] == ("Q8_0",)
        engines = tiny.engine(written), tiny.engine(loaded)
        for example in examples:
            assert deviation(*(tiny.answer(engine, example) for engine in engines)) <= NOISE
