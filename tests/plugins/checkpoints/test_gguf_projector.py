"""A model folder with media becomes two GGUF files: the text, and the projector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from tiny.model import make_tokenizer

from ostro.core.errors import CheckpointError, ConfigError, UsageError
from ostro.core.load.model import load_model
from ostro.core.load.planning import plan_model
from ostro.core.load.saving import Saving
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.core.settings import Settings
from ostro.plugins.checkpoints.gguf.mmproj import preprocessor
from ostro.plugins.checkpoints.gguf.write import write_gguf
from ostro.plugins.conformance.parity import BAR, Subject, deviation, subject

MARKS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
SETTINGS = {
    "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.25, 0.3, 0.2],
    "min_pixels": 8**2,
    "max_pixels": 40**2,
}


def shape(plugins: PluginManager, name: str, **vision: Any) -> dict[str, Any]:
    tiny = plugins.get("architectures", name).conformance.tiny
    assert tiny is not None
    text = {**tiny["text_config"], "vocab_size": 320}
    return {**tiny, "text_config": text, "vision_config": {**tiny["vision_config"], **vision}}


def write(tiny: Subject, out: Path, quant: str | None = None) -> tuple[Path, Path]:
    """The files of a folder: the text, and the projector."""
    make_tokenizer(MARKS).save(str(tiny.folder / "tokenizer.json"))
    (tiny.folder / "preprocessor_config.json").write_text(json.dumps(SETTINGS))
    found = plan_model(tiny.folder, Settings(device="cpu", quant=quant), tiny.plugins)
    text = write_gguf(Saving(found, out, quant or "", tiny.plugins, None), lambda *step: None)
    (projector,) = out.glob("mmproj-*.gguf")
    return text, projector


def test_both_files_are_the_model_of_the_folder(plugins: PluginManager, tmp_path: Path) -> None:
    with subject(plugins, "qwen2_vl", config=shape(plugins, "qwen2_vl")) as tiny:
        text, projector = write(tiny, tmp_path / "out")
        name = tiny.folder.name
        assert text.name == f"{name}-F32.gguf" and projector.name == f"mmproj-{name}-F32.gguf"
        loaded = load_model(text, Settings(dtype="float32", device="cpu"), plugins)
        assert loaded.architecture.name == "qwen2_vl"
        stated = loaded.raw_config["preprocessor_config"]
        assert (stated["min_pixels"], stated["max_pixels"]) == (8**2, 40**2)
        examples = resolve(tiny.record.conformance.examples)
        example = next(iter(examples(tiny.folder, loaded.raw_config)))
        prompt = example.prompt
        assert prompt.items
        logits = tiny.engine(loaded).runner.logits(
            prompt.tokens, items=prompt.items, positions=prompt.positions
        )
        assert deviation(logits, tiny.reference_output(example)) <= BAR


def test_a_projector_stays_in_floats(plugins: PluginManager, tmp_path: Path) -> None:
    with subject(plugins, "qwen2_vl", config=shape(plugins, "qwen2_vl")) as tiny:
        text, projector = write(tiny, tmp_path / "out", "q8_0")
        assert "Q8_0" in {each.tensor_type.name for each in GGUFReader(text).tensors}
        assert {each.tensor_type.name for each in GGUFReader(projector).tensors} == {"F32"}
        with pytest.raises(UsageError, match=r"q8_0\.gguf exists"):
            write(tiny, tmp_path / "out", "q8_0")
        text.unlink()
        with pytest.raises(UsageError, match=r"mmproj-.*-F32\.gguf exists"):
            write(tiny, tmp_path / "out", "q8_0")
        assert not text.exists()


@pytest.mark.parametrize(
    ("vision", "fault"),
    [
        ({"window_size": 64}, "visual.window is 8, the file states 14"),
        ({"window_size": 112, "fullatt_block_indexes": [0, 1]}, "visual.whole is frozenset"),
    ],
    ids=["window", "layers"],
)
def test_an_encoder_without_keys_is_refused(
    vision: dict[str, Any], fault: str, plugins: PluginManager, tmp_path: Path
) -> None:
    with subject(plugins, "qwen2_5_vl", config=shape(plugins, "qwen2_5_vl", **vision)) as tiny:
        with pytest.raises(CheckpointError, match=f"cannot state the config .*{fault}"):
            write(tiny, tmp_path / "out")
        assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000, '{"image_processor": 3}'])
def test_settings_that_are_no_object_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "processor_config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"^processor_config\.json: "):
        preprocessor(tmp_path)
