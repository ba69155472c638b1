"""The names of multi-token heads in checkpoints."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny.heads import HEADS, with_head

from ostro.core.errors import CheckpointError, UsageError
from ostro.core.load.multi_token import MultiTokenNames
from ostro.core.load.names import Names, Pair
from ostro.core.load.weights import weight_slots
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.names import fault_of
from ostro.plugins.conformance.parity import Subject, subject

NAMES = MultiTokenNames(
    model=Names(hub=[Pair("model.layers.{i}.attn", "model.layers.{i}.self_attn")], ignore=("a.b",)),
    path="model.layers.4",
    moved=("mtp.layers.0", "model.layers.4"),
    hub=[Pair("mtp.fc", "mtp.eh_proj")],
    gguf=[Pair("blk.4.nextn.eh_proj", "mtp.eh_proj")],
    ignore=("mtp.layers.0.embed.{any}",),
)


def test_the_layer_has_the_names_of_a_layer_of_the_model() -> None:
    for theirs, ours in (
        ("mtp.layers.0.attn.weight", "mtp.layer.self_attn.weight"),
        ("mtp.layers.0.mlp.weight", "mtp.layer.mlp.weight"),
        ("mtp.fc.weight", "mtp.eh_proj.weight"),
        ("model.layers.3.attn.weight", "model.layers.3.self_attn.weight"),
        ("model.norm.weight", "model.norm.weight"),
    ):
        [named], left = NAMES.read([theirs])
        assert (named.name, named.theirs, left) == (ours, theirs, [])
        assert NAMES.find(theirs, "hub") == [named]
        assert NAMES.write(ours).theirs == theirs
    assert NAMES.read(["blk.4.nextn.eh_proj.weight", "blk.9.x"], "gguf")[1] == ["blk.9.x"]


def test_copies_of_tables_are_ignored() -> None:
    for name in ("a.b", "mtp.layers.0.embed.weight"):
        assert NAMES.ignored(name) and NAMES.read([name]) == ([], [])
    assert not NAMES.ignored("mtp.layers.0.mlp.weight")


@pytest.mark.sample(4)
@pytest.mark.parametrize("space", ["hub", "gguf"])
@pytest.mark.parametrize("name", HEADS)
def test_every_weight_of_a_head_has_a_name(name: str, space: str, plugins: PluginManager) -> None:
    """Apart from experts in GGUF files, which are stacked there."""
    with with_head(plugins, name) as (tiny, _):
        loaded = tiny.load(speculate="heads")
    own = [slot for slot in weight_slots(loaded.model) if slot.name.startswith("mtp.")]
    assert own
    if space == "gguf":
        single = [slot for slot in own if slot.expert is None and ".experts." not in slot.name]
        assert not [fault for slot in single if (fault := fault_of(loaded.names, slot))]
        return
    for slot in own:
        ours = slot.name if slot.kind == "tensor" else f"{slot.name}.weight"
        theirs = loaded.names.write(ours).theirs
        assert ours in {named.name for named in loaded.names.find(theirs, "hub")}


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (
            "llama",
            "multi-token heads of llama are not implemented; use ngram, a draft model, or the",
        ),
        ("qwen3_5", "has no multi-token head; converters may have dropped it: use another file"),
    ],
)
def test_a_checkpoint_without_a_head_is_refused(
    name: str, fault: str, plugins: PluginManager
) -> None:
    with subject(plugins, name) as tiny, pytest.raises(UsageError, match=fault):
        tiny.load(speculate="heads")


def test_a_head_that_lacks_a_tensor_is_refused(plugins: PluginManager) -> None:
    with with_head(plugins, "qwen3_5") as (tiny, _):
        drop(tiny, "mtp.layers.0.mlp.up_proj.weight")
        with pytest.raises(CheckpointError, match=r"mtp\.layer\.mlp\.up_proj"):
            tiny.load(speculate="heads")
        tiny.load()


@pytest.mark.parametrize("name", ["qwen3_5", "glm4_moe"])
def test_further_heads_are_ignored(name: str, plugins: PluginManager) -> None:
    with with_head(plugins, name) as (tiny, _):
        n = len(tiny.reference.model.layers)
        old, new = {
            "qwen3_5": ("mtp.layers.0.", "mtp.layers.1."),
            "glm4_moe": (f"model.layers.{n}.", f"model.layers.{n + 1}."),
        }[name]
        file, config = tiny.folder / "model.safetensors", tiny.folder / "config.json"
        tensors = load_file(file)
        tensors |= {k.replace(old, new): t.clone() for k, t in tensors.items() if old in k}
        save_file(tensors, file, {"format": "pt"})
        stated = json.loads(config.read_text())
        config.write_text(json.dumps(stated | {"num_nextn_predict_layers": 2}))
        assert tiny.load(speculate="heads").nbytes > tiny.load().nbytes


def test_a_head_is_quantized_with_its_model(plugins: PluginManager) -> None:
    with with_head(plugins, "qwen3_5") as (tiny, _):
        loaded = tiny.load(speculate="heads", quant="q8_0")
    formats = {info.path: info.formats for info in loaded.layers if info.path.startswith("mtp.")}
    assert formats and {*formats.values()} == {("Q8_0",)}


def test_a_model_without_its_head_ignores_the_tensors(plugins: PluginManager) -> None:
    with with_head(plugins, "qwen3_5") as (tiny, _):
        loaded = tiny.load()
        assert not any("mtp" in path for path, _ in loaded.model.named_modules())
        assert tiny.load(speculate="heads").nbytes > loaded.nbytes


def drop(tiny: Subject, name: str) -> None:
    file = tiny.folder / "model.safetensors"
    tensors: dict[str, torch.Tensor] = load_file(file)
    del tensors[name]
    save_file(tensors, file, {"format": "pt"})
