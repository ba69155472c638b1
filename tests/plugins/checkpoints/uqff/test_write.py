"""Writing UQFF: shards that hold what was given, whole or not at all, and go on after a stop."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from ostro.core.errors import CheckpointError, UsageError
from ostro.core.load.quantize import makers
from ostro.core.nn.storage import Storage
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.checkpoints.uqff.reader import open_uqff
from ostro.plugins.checkpoints.uqff.write import METADATA, Entry, write

N, K = 16, 256
CONFIG = {
    "model_type": "llama",
    "quantization_config": {"bits": 4},
    "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
    "text_config": {"quantization_config": {}, "a": 1},
}
REST = {"model.norm.weight": torch.ones(K)}

Make = Callable[..., list[Entry]]


def weight(i: int) -> Tensor:
    return torch.randn(N, K, generator=torch.Generator().manual_seed(i))


@pytest.fixture
def entries(plugins: PluginManager) -> Make:
    """Layers of these formats; `made` counts the calls of each."""
    known = makers(plugins)

    def of(formats: Sequence[str], made: list[str] | None = None) -> list[Entry]:
        def make(i: int, format: str) -> Storage:
            if made is not None:
                made.append(f"layer.{i}")
            return known[format].make(weight(i), torch.float32, None)

        return [Entry(f"layer.{i}", partial(make, i, f)) for i, f in enumerate(formats)]

    return of


def put(folder: Path, layers: Iterable[Entry], **options: Any) -> Path:
    write(folder, "mix", layers, **{"residual": REST, "config": CONFIG, **options})
    return folder


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.uqff"))


FORMATS = ("q4k", "q8_0", "afq3", "afq8", "fp8", "f8q8", "mxfp4")


def test_what_is_written_is_read_as_it_was(
    entries: Make, read: Any, tmp_path: Path, plugins: PluginManager
) -> None:
    asset = tmp_path / "tokenizer.json"
    asset.write_text("{}")
    assets = {"tokenizer.json": asset, "additional_chat_templates/tool_use.jinja": asset}
    layers = entries(FORMATS)
    layers[1] = Entry(layers[1].key, layers[1].make, torch.arange(16.0))
    folder = put(tmp_path / "out", layers, assets=assets, base_model="org/name")
    container = open_uqff(folder)
    for entry in layers:
        ours = read(container, (N, K), entry.key)
        assert torch.equal(ours.dequantize(), entry.make().dequantize()), ours.format
    assert container.read("layer.1.bias").tolist() == list(range(16))
    assert torch.equal(container.read("model.norm.weight"), REST["model.norm.weight"])
    assert container.config() == {
        "model_type": "llama",
        "rope_parameters": CONFIG["rope_parameters"],
        "text_config": {"a": 1},
        "rope_theta": 5e5,
    }
    held = {path.name for path in folder.iterdir()}
    other = {"residual.safetensors", "config.json", "tokenizer.json", "uqff_report.json"}
    assert held == other | {"mix-0.uqff", "additional_chat_templates"}
    assert (folder / "additional_chat_templates" / "tool_use.jinja").read_text() == "{}"
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_the_report_says_what_is_where(entries: Make, tmp_path: Path) -> None:
    floats = Entry("head", lambda: Floats(weight(9)))
    folder = put(tmp_path / "out", [*entries(["q4k", "q8_0"]), floats], base_model="org/name")
    report = json.loads((folder / "uqff_report.json").read_text())
    assert (report["schema"], report["uqff_version"], report["base_model"]) == (
        1,
        "1.2.0",
        "org/name",
    )
    (output,) = report["outputs"]
    assert (output["quant"], output["shards"], output["layers"]) == ("mix", ["mix-0.uqff"], 3)
    assert output["actual_counts"] == {"q4k": 1, "q8_0": 1, "unquant": 1}
    assert output["fallback_count"] == 1 and output["fallbacks"][0]["module"] == "head"
    first = {"module": "layer.0", "stored": "q4k", "shape": [N, K]}
    assert output["layer_details"][0] == first


class Floats(Storage):
    """A weight that nobody has quantized."""

    def __init__(self, weight: Tensor, saved: dict[str, Tensor] | None = None) -> None:
        self.format, self.weight, self.saved = "dense", weight, saved or {"weight": weight}
        self.shape, self.dtype, self.device = tuple(weight.shape), weight.dtype, weight.device

    def dequantize(self, start: int = 0, stop: int | None = None) -> Tensor:
        return self.weight.flatten(0, -2)[start:stop]

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def save(self) -> dict[str, Tensor]:
        return self.saved


def test_shards_are_cut_between_layers(entries: Make, tmp_path: Path) -> None:
    """Three layers of 2304 bytes and a little fit in 8000, a fourth does not."""
    folder = put(tmp_path / "out", entries(["q4k"] * 7), limit=8000)
    assert [path.name for path in shards(folder)] == [f"mix-{i}.uqff" for i in range(3)]
    held = [load_file(path) for path in shards(folder)]
    assert [sum("format" in name for name in each) for each in held] == [3, 3, 1]
    assert [sum("uqff.version" in name for name in each) for each in held] == [3, 0, 0]
    assert all(sum(t.nbytes for t in each.values()) < 8000 for each in held)
    with safe_open(shards(folder)[1], "pt") as file:
        assert file.metadata() == METADATA
    assert len(open_uqff(folder).tensors) == 8


def test_every_tensor_is_aligned(entries: Make, tmp_path: Path) -> None:
    path = shards(put(tmp_path / "out", entries(["q2k", "afq3", "f8q8"])))[0]
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__")
    sizes = {"U8": 1, "U32": 4, "F32": 4}
    assert all(
        (8 + length + t["data_offsets"][0]) % sizes[t["dtype"]] == 0 for t in header.values()
    )


def cut_off(layers: Sequence[Entry], at: int) -> Iterator[Entry]:
    yield from layers[:at]
    raise KeyboardInterrupt


@pytest.mark.sample(1)
@pytest.mark.parametrize("at", range(8))
def test_a_run_that_was_cut_off_goes_on(at: int, entries: Make, tmp_path: Path) -> None:
    whole = put(tmp_path / "whole", entries(["q4k"] * 7), limit=8000)
    target, made = tmp_path / "out", list[str]()
    with pytest.raises(KeyboardInterrupt):
        put(target, cut_off(entries(["q4k"] * 7), at), limit=8000)
    assert not target.exists()
    assert not list((tmp_path / ".out.part").glob("*.part"))
    put(target, entries(["q4k"] * 7, made), limit=8000)
    kept = max(0, at - 1) // 3 * 3  # a shard is written when the next layer does not fit
    assert made == [f"layer.{i}" for i in range(kept, 7)]
    for path in whole.iterdir():
        assert (target / path.name).read_bytes() == path.read_bytes(), path.name
    assert {p.name for p in target.iterdir()} == {p.name for p in whole.iterdir()}


@pytest.mark.parametrize(
    "other", [{"config": {"model_type": "qwen3"}}, {"base_model": "org/other"}]
)
def test_what_another_run_left_is_not_taken_over(
    other: dict[str, Any], entries: Make, tmp_path: Path
) -> None:
    target, made = tmp_path / "out", list[str]()
    with pytest.raises(KeyboardInterrupt):
        put(target, cut_off(entries(["q4k"] * 7), 6), limit=8000)
    put(target, entries(["q8_0"] * 7, made), limit=8000, **other)
    assert len(made) == 7
    tensors = open_uqff(target).tensors.values()
    assert {info.format for info in tensors} == {"Q8_0", "F32"}


def test_layers_outside_the_plan_are_named(entries: Make, tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        put(target, cut_off(entries(["q4k"] * 7), 6), limit=8000)
    with pytest.raises(UsageError, match=r"out\.part has layer\.2, which is not among"):
        put(target, entries(["q4k"] * 2), limit=8000)
    (tmp_path / ".out.part" / "mix-0.uqff").unlink()
    put(target, entries(["q4k"] * 2), limit=8000)
    assert len(open_uqff(target).tensors) == 3


@contextmanager
def disk_of(nbytes: int) -> Iterator[None]:
    """No file may be larger: writing on fails as it does where the disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_nothing_half_written(entries: Make, tmp_path: Path) -> None:
    target, made = tmp_path / "out", list[str]()
    floats = Entry("floats", lambda: Floats(weight(9)))
    message = r"mix-1\.uqff cannot be written: .*; free space and run again"
    with disk_of(10_000), pytest.raises(CheckpointError, match=message):
        put(target, [*entries(["q4k"] * 3), floats], limit=8000)
    assert not target.exists()
    left = {path.name for path in (tmp_path / ".out.part").iterdir()}
    assert left == {"config.json", "mix-0.uqff", "uqff_report.json"}
    put(target, [*entries(["q4k"] * 3, made), floats], limit=8000)
    assert not made and len(open_uqff(target).tensors) == 5


def test_a_folder_that_is_there_is_left_alone(entries: Make, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exists; remove it, or choose another folder"):
        put(tmp_path, entries(["q4k"]))
    twice = [*entries(["q4k"]), *entries(["q4k"])]
    with pytest.raises(UsageError, match=r"layer\.0 is repeated"):
        put(tmp_path / "out", twice)


def stacked(format: str, plugins: PluginManager) -> Storage:
    maker = makers(plugins)[format]
    parts = [maker.make(weight(i), torch.float32, None) for i in range(3)]
    made = type(parts[0]).stack(parts)
    assert made is not None, f"{format = } does not stack"
    return made


@pytest.mark.parametrize("format", ["q4k", "afq4", "mxfp4"])
def test_experts_are_written_in_one(
    format: str, plugins: PluginManager, read: Any, tmp_path: Path
) -> None:
    storage = stacked(format, plugins)
    folder = put(tmp_path / "out", [Entry("mlp.experts.up_proj", lambda: storage)])
    names = load_file(shards(folder)[0]).keys()
    assert {n for n in names if n.startswith("mlp")} >= {"mlp.experts.up_proj.weight"}
    container = open_uqff(folder)
    mine = [read(container, (N, K), f"mlp.experts.{i}.up_proj") for i in range(3)]
    assert torch.equal(torch.cat([m.dequantize() for m in mine]), storage.dequantize())


def test_what_uqff_has_no_family_for_is_refused(plugins: PluginManager, tmp_path: Path) -> None:
    known, bad = makers(plugins), dict[str, tuple[Storage, str]]()
    for format in ("iq4_xs", "tq2_0", "hqq4"):
        bad[format] = known[format].make(weight(0), torch.float32, None), "UQFF has"
    scales = torch.rand(N, 1)
    eight = weight(0).to(torch.float8_e4m3fn)
    rows = {"weight": eight, "weight_scale": scales}
    bad["rows"] = Floats(weight(0), rows), "with one scale"
    bad["stack"] = stacked("f8q8", plugins), "no stacked experts in F8Q8"
    bad["double"] = Floats(weight(0).double()), "UQFF has only the ggml types"
    for name, (storage, why) in bad.items():
        message = f"key is {storage.format}, which UQFF cannot store: .*{why}.*quantize to"
        with pytest.raises(Exception, match=message) as caught:
            put(tmp_path / name, [Entry("key", lambda storage=storage: storage)])  # type: ignore[misc]
        assert type(caught.value).__name__ == "Unsupported", name
        assert not (tmp_path / name).exists()
