"""Models that see or hear in two GGUF files, a text's and a projector's (mmproj)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest
from tiny.projector import TYPES, projector_keys, rounded, stored, write, write_pair

from ostro.core.errors import CheckpointError, ConfigError, Unsupported
from ostro.core.load.model import LoadedModel, load_model
from ostro.core.load.open import open_container
from ostro.core.media.inputs import Inputs
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.core.settings import Settings
from ostro.entrypoints.cli.quantize import write as quantize
from ostro.entrypoints.open import find_model
from ostro.plugins.conformance.examples import Example, pixels
from ostro.plugins.conformance.parity import BAR, Subject, deviation, subject

FAMILIES = tuple(TYPES)
CHANGES: dict[str, dict[str, Any]] = {
    "gemma3_images": {"text_config": {"query_pre_attn_scalar": 16}},
    "qwen2_vl": {"text_config": {"use_sliding_window": False}},
    "qwen2_5_vl": {
        "text_config": {"use_sliding_window": False},
        "vision_config": {"patch_size": 28, "window_size": 112},
    },
    "qwen3_vl": {"vision_config": {"deepstack_visual_indexes": [0, 2]}},
    "qwen2_audio": {"text_config": {"use_sliding_window": False}},
}
"""What a file cannot say, at the value that it stands for, and windows of several patches."""


@pytest.fixture(scope="module", params=FAMILIES)
def made(request: pytest.FixtureRequest, plugins: PluginManager) -> Iterator[Subject]:
    yield from family(request.param, plugins)


@pytest.fixture(scope="module")
def sighted(plugins: PluginManager) -> Iterator[Subject]:
    yield from family("qwen3_vl", plugins)


def family(name: str, plugins: PluginManager) -> Iterator[Subject]:
    shape = dict(plugins.get("architectures", name).conformance.tiny)
    for part, said in CHANGES.get(name, {}).items():
        shape[part] = {**shape[part], **said}
    if name == "qwen2_audio":
        shape["audio_token_index"] = 1
    with subject(plugins, name, config=shape) as found:
        yield found


def load(path: Path, plugins: PluginManager, **more: Any) -> LoadedModel:
    return load_model(path, Settings(dtype="float32", device="cpu", exact=True, **more), plugins)


def examples(made: Subject, raw: dict[str, Any]) -> list[Example]:
    """Prompts with media as the files say that these are made ready; the first two of a family."""
    found = resolve(str(made.record.conformance.examples))(made.folder, raw)
    return [next(found), next(found)]


def off(made: Subject, loaded: LoadedModel) -> float:
    """How far a model is from the reference on prompts with media."""
    engine = made.engine(loaded)
    return max(
        deviation(
            made.answer(engine, each), made.reference_output(each)[:, : loaded.config.vocab_size]
        )
        for each in examples(made, dict(loaded.raw_config))
    )


@pytest.mark.sample(1)
def test_a_folder_of_both_takes_media(
    made: Subject, plugins: PluginManager, tmp_path: Path
) -> None:
    write_pair(made, tmp_path)
    loaded = load(tmp_path, plugins)
    assert loaded.architecture.name == made.name
    assert off(made, loaded) <= BAR


@pytest.mark.parametrize("text", ["phi3", "qwen2", "qwen3"])
def test_llava_has_several_texts(
    plugins: PluginManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setitem(TYPES, "llava", (text, "mlp"))
    tiny = dict(plugins.get("architectures", "llava").conformance.tiny)
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    more = {"model_type": text, "sliding_window": None, "rope_parameters": rope}
    tiny["text_config"] = {**plugins.get("architectures", text).conformance.tiny, **more}
    with subject(plugins, "llava", config=tiny) as made:
        write_pair(made, tmp_path)
        loaded = load(tmp_path, plugins)
        assert loaded.architecture.name == "llava"
        assert off(made, loaded) <= BAR


def test_a_float16_projector_serves_a_quantized_text(
    plugins: PluginManager, tmp_path: Path
) -> None:
    for made in family("gemma3_images", plugins):
        rounded(made, "Q8_0", "F16")
        file = write_pair(made, tmp_path, "Q8_0", "F16")
        loaded = load(file, plugins)
        held = {layer.path: layer.formats for layer in loaded.layers}
        assert held["model.layers.0.mlp.down_proj"] == ("Q8_0",)
        assert off(made, loaded) <= BAR


def test_towers_are_quantized_at_load(
    sighted: Subject, plugins: PluginManager, tmp_path: Path
) -> None:
    write_pair(sighted, tmp_path)
    ours, hub = load(tmp_path, plugins, quant="q8_0"), sighted.load(quant="q8_0", exact=True)
    held = {layer.path: layer.formats for layer in ours.layers}
    assert held["visual.blocks.0.attn.qkv"] == ("Q8_0",)
    assert held == {layer.path: layer.formats for layer in hub.layers}
    asked = examples(sighted, dict(ours.raw_config))[0]
    said = [sighted.answer(sighted.engine(each), asked) for each in (ours, hub)]
    assert deviation(*said) <= BAR < deviation(said[0], sighted.reference_output(asked))


def test_the_text_alone_stays_a_model_of_text(
    sighted: Subject, plugins: PluginManager, tmp_path: Path
) -> None:
    file = write_pair(sighted, tmp_path)
    assert load(file, plugins, arch="qwen3_vl_text").architecture.name == "qwen3_vl_text"
    projector = tmp_path / "mmproj-F32.gguf"
    for named in (file, projector):
        assert load(named, plugins).architecture.name == "qwen3_vl"
    projector.unlink()
    assert load(file, plugins).architecture.name == "qwen3_vl_text"


def test_of_several_projectors_one_is_named(
    sighted: Subject, plugins: PluginManager, tmp_path: Path
) -> None:
    file = write_pair(sighted, tmp_path)
    write_pair(sighted, tmp_path, projector="F16")
    with pytest.raises(CheckpointError, match=r"mmproj-F16\.gguf, mmproj-F32\.gguf; give the path"):
        load(file, plugins)
    chosen = load(tmp_path / "mmproj-F16.gguf", plugins)
    assert chosen.container.tensors["mmproj.v.patch_embd.weight"].format == "F16"


def test_a_projector_of_another_width_is_left_aside(
    sighted: Subject, plugins: PluginManager, tmp_path: Path
) -> None:
    file, other = write_pair(sighted, tmp_path), tmp_path / "mmproj-F32.gguf"
    tensors = {"mm.0.weight": sighted.reference.lm_head.weight.detach()[:7, :7]}
    write(other, "clip", projector_keys(sighted, "qwen3vl_merger"), tensors, "F32")
    assert load(file, plugins).architecture.name == "qwen3_vl_text"
    with pytest.raises(
        CheckpointError, match=r"not the projector of model\.gguf: their widths differ"
    ):
        load(other, plugins)


def test_a_text_model_loads_without_an_unsupported_projector(
    sighted: Subject, plugins: PluginManager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, other = write_pair(sighted, tmp_path), tmp_path / "mmproj-F32.gguf"
    tensors = {"mm.1.weight": sighted.reference.lm_head.weight.detach()}
    keys = projector_keys(sighted, "qwen3vl_merger")
    write(other, "clip", {**keys, "clip.projector_type": "pixtral"}, tensors, "F32")
    assert load(file, plugins).architecture.name == "qwen3_vl_text"
    assert "(qwen3vl+pixtral); loading the text model only" in caplog.text
    del keys["clip.projector_type"]
    write(other, "clip", keys, tensors, "F32")
    with pytest.raises(CheckpointError, match=r"clip\.projector_type is missing"):
        load(file, plugins)


def test_what_a_projector_does_not_say_is_named(
    sighted: Subject, plugins: PluginManager, tmp_path: Path
) -> None:
    container = open_container(write_pair(sighted, tmp_path), plugins)
    metadata: dict[str, Any] = container.metadata  # type: ignore[assignment]
    read = resolve(str(sighted.record.gguf_config))
    metadata["tokenizer.ggml.tokens"][1] = "<image>"
    with pytest.raises(ConfigError, match=r"no '<\|image_pad\|>'"):
        read(container)
    metadata["clip.vision.patch_size"] = 0
    with pytest.raises(ConfigError, match=r"clip\.vision\.patch_size=0"):
        read(container)


def test_a_kernel_of_one_frame_is_refused(
    sighted: Subject, plugins: PluginManager, tmp_path: Path
) -> None:
    file, other = write_pair(sighted, tmp_path), tmp_path / "mmproj-F32.gguf"
    kernel = sighted.reference.lm_head.weight.detach()[:32, :48].reshape(32, 3, 4, 4)
    tensors = {"v.patch_embd.weight.1": kernel}
    write(other, "clip", projector_keys(sighted, "qwen3vl_merger"), tensors, "F32")
    with pytest.raises(CheckpointError, match=r"v\.patch_embd\.weight: expected 2 tensors"):
        load(file, plugins)


def test_inputs_need_nothing_but_what_crosses_to_their_process(
    sighted: Subject, plugins: PluginManager, tmp_path: Path
) -> None:
    loaded = load(write_pair(sighted, tmp_path), plugins)
    raw = msgspec.msgpack.decode(msgspec.msgpack.encode(loaded.raw_config))
    inputs: Inputs = resolve(str(sighted.record.inputs))(raw, loaded.path)
    item = inputs.image(pixels(0, 24, 40))
    assert item.arrays["grid"].numpy().tolist() == [1, 6, 10]
    plain = pixels(0, 24, 40)[0, 0] / 255
    expected = (plain - [0.4, 0.5, 0.6]) / [0.25, 0.3, 0.2]
    first = item.arrays["patches"].numpy()[0].reshape(3, 2, 4, 4)[:, 0, 0, 0]
    assert first == pytest.approx(expected, rel=1e-5)
    with pytest.raises(Unsupported, match="has no video settings"):
        inputs.video(pixels(2, 6, 16, 24), 2.0)


def test_the_server_and_the_engine_use_the_same_inputs(
    sighted: Subject, plugins: PluginManager, tmp_path: Path
) -> None:
    file = write_pair(sighted, tmp_path)
    loaded = load(file, plugins)
    examples(sighted, dict(loaded.raw_config))  # which write a tokenizer
    words = str(sighted.folder / "tokenizer.json")
    found = find_model(Settings(reference=str(tmp_path), tokenizer=words), plugins)
    assert (found.architecture.name, found.raw_config) == ("qwen3_vl", loaded.raw_config)


def test_a_pair_is_not_written_as_one_file(
    sighted: Subject, plugins: PluginManager, tmp_path: Path
) -> None:
    write_pair(sighted, tmp_path)
    asked = Settings(reference=str(tmp_path), quant="q8_0", dtype="float32")
    with pytest.raises(Unsupported, match=r"with its --arch"):
        quantize(asked, plugins, "gguf", tmp_path / "made")
    alone = replace(asked, arch="qwen3_vl_text")
    assert load(quantize(alone, plugins, "gguf", tmp_path / "made"), plugins).layers


def test_an_importance_file_beside_a_projector_is_itself(
    sighted: Subject, plugins: PluginManager, tmp_path: Path
) -> None:
    write_pair(sighted, tmp_path)
    file = tmp_path / "imatrix.gguf"
    writer = gguf.GGUFWriter(file, "")
    writer.add_type("imatrix")
    data, _ = stored(sighted.reference.lm_head.weight.detach(), "F32")
    writer.add_tensor("blk.0.attn_q.weight.in_sum2", data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shutil.copy(file, tmp_path / "other.gguf")
    assert list(open_container(file, plugins).tensors) == ["blk.0.attn_q.weight.in_sum2"]
