"""Filling a model from a checkpoint: every tensor has one place, every place one tensor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ostro.core.errors import CheckpointError
from ostro.core.load.model import load_model
from ostro.core.load.weights import ends_finite
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.conformance.parity import BAR, Subject, deviation, subject


@pytest.fixture(scope="module")
def reference(plugins: PluginManager) -> Iterator[Subject]:
    with subject(plugins, "llama") as made:
        yield made


class Folder:
    """A copy of a checkpoint, to be spoiled."""

    def __init__(self, reference: Subject, path: Path, plugins: PluginManager) -> None:
        self.reference, self.path, self.plugins = reference, path, plugins
        self.tensors: dict[str, Tensor] = load_file(reference.folder / "model.safetensors")
        self.config: dict[str, Any] = json.loads((reference.folder / "config.json").read_text())

    def write(self, *shards: dict[str, Tensor]) -> None:
        (self.path / "config.json").write_text(json.dumps(self.config))
        if not shards:
            save_file(self.tensors, self.path / "model.safetensors")
            return
        owners = {}
        for i, shard in enumerate(shards, 1):
            file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
            save_file(shard, self.path / file)
            owners |= dict.fromkeys(shard, file)
        index = {"metadata": {}, "weight_map": owners}
        (self.path / "model.safetensors.index.json").write_text(json.dumps(index))

    def load(self, **settings: Any) -> Any:
        asked = Settings(dtype="float32", device="cpu", **settings)
        return load_model(self.path, asked, self.plugins)

    def deviation(self) -> float:
        prompt = self.reference.prompt
        logits = self.reference.engine(self.load()).runner.logits(prompt)
        return deviation(logits, self.reference.run_reference(prompt))


@pytest.fixture
def folder(reference: Subject, tmp_path: Path, plugins: PluginManager) -> Folder:
    return Folder(reference, tmp_path, plugins)


def test_a_missing_tensor_is_named(folder: Folder) -> None:
    del folder.tensors["model.layers.1.self_attn.k_proj.weight"]
    del folder.tensors["model.norm.weight"]
    folder.write()
    with pytest.raises(
        CheckpointError, match=r"does not match the architecture; missing: "
    ) as raised:
        folder.load()
    assert "model.layers.1.self_attn.k_proj" in str(raised.value)
    assert "model.norm.weight" in str(raised.value) and "left over" not in str(raised.value)


def test_ten_of_many_missing_are_named(folder: Folder) -> None:
    folder.tensors = {k: v for k, v in folder.tensors.items() if ".layers.1." not in k}
    folder.config["num_hidden_layers"] = 4
    folder.write()
    with pytest.raises(CheckpointError, match=r"missing: (\S+, ){9}\S+ and 17 more$"):
        folder.load()


def test_a_tensor_with_no_place_is_named(folder: Folder) -> None:
    folder.tensors["model.layers.0.extra.weight"] = torch.zeros(3, 3)
    folder.write()
    with pytest.raises(CheckpointError, match=r"left over: model\.layers\.0\.extra\.weight$"):
        folder.load()


def test_a_layer_too_many_is_left_over(folder: Folder) -> None:
    folder.config["num_hidden_layers"] = 1
    folder.write()
    with pytest.raises(CheckpointError, match=r"left over: model\.layers\.1"):
        folder.load()


def test_a_bias_that_the_config_denies_is_refused(folder: Folder) -> None:
    folder.tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
    folder.write()
    with pytest.raises(CheckpointError, match=r"self_attn\.q_proj.*bias"):
        folder.load()


def test_tables_that_follow_from_the_config_may_be_there(folder: Folder) -> None:
    folder.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    folder.write()
    assert folder.deviation() <= BAR


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.mlp.up_proj.weight", (96, 32)),
        ("model.layers.0.mlp.up_proj.weight", (96,)),
        ("model.layers.0.input_layernorm.weight", (63,)),
        ("model.layers.0.input_layernorm.weight", (1,)),
        ("model.embed_tokens.weight", (127, 64)),
    ],
)
def test_a_shape_that_the_config_denies_is_refused(
    name: str, shape: tuple[int, ...], folder: Folder
) -> None:
    folder.tensors[name] = torch.zeros(shape)
    folder.write()
    with pytest.raises(CheckpointError) as raised:
        folder.load()
    said = str(raised.value)
    assert name.removesuffix(".weight") in said and f"shape {shape}" in said
    assert "the config requires" in said


@pytest.mark.parametrize(
    "names",
    [
        ("k_scale", "v_scale", "q_scale", "prob_output_scale"),
        ("k_scale", "v_scale", "k_zero_point", "v_zero_point"),
        ("kv_scale",),
        ("k_proj.k_scale", "v_proj.v_scale"),
        ("k_proj.output_scale", "v_proj.output_scale"),
        ("qkv_proj.k_scale", "qkv_proj.v_scale"),
        ("attn.k_scale", "attn.v_scale"),
    ],
)
def test_scales_of_a_cache_are_not_used(
    names: tuple[str, ...], folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    for name in names:
        folder.tensors[f"model.layers.1.self_attn.{name}"] = torch.tensor([0.02])
    folder.write()
    with caplog.at_level("INFO"):
        assert folder.deviation() <= BAR
    assert sum("scales of keys and values are not used" in text for text in caplog.messages) == 1


@pytest.mark.parametrize("name", ["x_scale", "o_proj.output_scale", "k_scale.weight", "my_k_scale"])
def test_other_scales_are_left_over(name: str, folder: Folder) -> None:
    folder.tensors[f"model.layers.1.self_attn.{name}"] = torch.tensor([0.02])
    folder.write()
    with pytest.raises(CheckpointError, match=r"left over|no installed format"):
        folder.load()


def test_a_format_without_a_reader_is_named(folder: Folder) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    folder.tensors[name] = torch.zeros(96, 64, dtype=torch.int32)
    folder.write()
    with pytest.raises(CheckpointError, match=r"up_proj consists of weight \(I32\)"):
        folder.load()


@pytest.fixture(scope="module")
def tied(plugins: PluginManager) -> Iterator[Subject]:
    config = {**plugins.get("architectures", "llama").conformance.tiny, "tie_word_embeddings": True}
    with subject(plugins, "llama", config=config) as made:
        yield made


@pytest.mark.parametrize("repeated", [False, True])
def test_a_tied_head_may_be_repeated(
    repeated: bool, tied: Subject, tmp_path: Path, plugins: PluginManager
) -> None:
    folder = Folder(tied, tmp_path, plugins)
    assert "lm_head.weight" not in folder.tensors
    if repeated:
        folder.tensors["lm_head.weight"] = folder.tensors["model.embed_tokens.weight"].clone()
    folder.write()
    assert folder.deviation() <= BAR
    model = folder.load().model
    assert model.lm_head.fused is model.model.embed_tokens.storage and model.lm_head.nbytes == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tied_head_that_differs_is_used(
    dtype: torch.dtype,
    tied: Subject,
    tmp_path: Path,
    plugins: PluginManager,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = Folder(tied, tmp_path, plugins)
    table = folder.tensors["model.embed_tokens.weight"]
    folder.tensors["lm_head.weight"] = table.flip(0).to(dtype)
    folder.write()
    loaded = folder.load()
    head = loaded.model.lm_head
    assert not head.tied and torch.equal(head.fused.dequantize(), table.flip(0).to(dtype).float())
    (said,) = (record.getMessage() for record in caplog.records)
    assert "tie_word_embeddings=true, but lm_head.weight differs from model.embed_tokens" in said
    weights = loaded.weigh()
    assert weights[head] == weights[loaded.model.model.embed_tokens]


def test_an_untied_head_must_be_there(folder: Folder) -> None:
    del folder.tensors["lm_head.weight"]
    folder.write()
    with pytest.raises(CheckpointError, match=r"missing: lm_head$"):
        folder.load()


def test_shards_are_one_checkpoint(folder: Folder) -> None:
    names = sorted(folder.tensors)
    shards = [{n: folder.tensors[n] for n in names[i::3]} for i in range(3)]
    folder.write(*shards)
    assert folder.deviation() <= BAR


def test_a_missing_shard_is_named(folder: Folder) -> None:
    names = sorted(folder.tensors)
    folder.write(*({n: folder.tensors[n] for n in names[i::2]} for i in range(2)))
    (folder.path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00002"):
        folder.load()


def test_formats_may_differ_from_tensor_to_tensor(folder: Folder) -> None:
    """Here in the parts of one linear: they are cast, then fused."""
    for i, (name, tensor) in enumerate(sorted(folder.tensors.items())):
        exact = tensor.bfloat16().to((torch.float32, torch.bfloat16, torch.float64)[i % 3])
        folder.tensors[name] = exact
        parameter = dict(folder.reference.reference.named_parameters())[name]
        parameter.data.copy_(exact)
    folder.write()
    assert folder.deviation() <= BAR


def test_progress_ends_at_the_whole(folder: Folder) -> None:
    folder.write()
    steps: list[tuple[str, int, int]] = []
    asked = Settings(dtype="float32", device="cpu")
    load_model(folder.path, asked, folder.plugins, lambda *step: steps.append(step))
    reports = [(done, total) for stage, done, total in steps if stage == "reading weights"]
    assert reports == sorted(reports) and reports[-1][0] == reports[-1][1]
    assert reports[-1][1] == sum(t.nbytes for t in folder.tensors.values())


@pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 3, 4), ()])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_the_first_and_the_last_row_must_be_finite(shape: tuple[int, ...], value: float) -> None:
    assert ends_finite(torch.zeros(shape))
    for index in (0, -1):
        tensor = torch.zeros(shape)
        tensor.view(-1)[index] = value
        assert not ends_finite(tensor)


def test_integers_and_empty_tensors_are_finite() -> None:
    assert ends_finite(torch.zeros(0, 3)) and ends_finite(torch.ones(3, dtype=torch.int8))
