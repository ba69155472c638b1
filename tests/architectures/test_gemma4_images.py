"""Gemma 4 with images, videos and sound against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from ostro.architectures.gemma4 import HEARING, SIGHT, TINY_TEXT, TOWER
from ostro.architectures.gemma4.examples import MEDIA, prompted
from ostro.architectures.gemma4.inputs import Inputs
from ostro.architectures.gemma4.projector import ChannelsLast, Depthwise, InverseSoftplus, Scalar
from ostro.architectures.gemma4.vision import Config
from ostro.core.errors import (
    CheckpointError,
    ConfigError,
    OstroError,
    RequestError,
    TokenizerError,
    Unsupported,
)
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.examples import pixels
from ostro.plugins.conformance.parity import BAR, Subject, subject

RAW = {**SIGHT, "text_config": TINY_TEXT, "model_type": "gemma4"}


class TestGemma4Images(ArchitectureTests):
    name = "gemma4_images"

    def test_an_image_stands_between_marks_and_a_frame_behind_its_time(self, tiny: Subject) -> None:
        image = prompted(tiny.inputs, (0,))
        assert image.items[0].spans == ((10, 8),) and image.items[0].atomic
        assert image.tokens[9] == 4 and image.tokens[18] == 5
        video = prompted(tiny.inputs, (3,))
        assert [span for item in video.items for span in item.spans] == [(16, 6), (31, 6), (46, 6)]
        # "00:00 ", " 00:00 " and " 00:01 " of characters: frames 0, 1 and 3 of five, two per second
        space, colon, zero, one = range(40, 44)
        start = [zero, zero, colon, zero, zero, space]
        assert video.tokens[9:16] == [*start, 4] and video.tokens[23:31] == [space, *start, 4]
        assert video.tokens[38:46] == [space, *start[:4], one, space, 4]

    def test_models_without_two_way_attention(self, tiny: Subject) -> None:
        """The smaller models are causal within an image."""
        text = {**TINY_TEXT, "use_bidirectional_attention": None}
        with subject(tiny.plugins, self.name, config={**RAW, "text_config": text}) as made:
            assert not made.examples[1].prompt.items[0].atomic
            assert made.off(made.engine()) <= BAR

    def test_models_without_sound(self, tiny: Subject) -> None:
        """The larger models have no sound encoder; other weights of it are skipped."""
        with subject(tiny.plugins, self.name, config={**RAW, "audio_config": None}) as made:
            file = made.folder / "model.safetensors"
            tensors = load_file(file)
            key = "model.language_model.layers.0.self_attn.k_proj.weight"
            extra = ("model.audio_tower.output_proj.weight", key.replace("layers.0", "layers.2"))
            assert key in tensors and not {*extra} & tensors.keys()
            more = {name: tensors[key].clone() for name in extra}
            save_file({**tensors, **more}, file, {"format": "pt"})
            assert made.off(made.engine()) <= BAR
            assert "audio" not in made.inputs.placeholders
            with pytest.raises(Unsupported, match="does not support audio"):
                made.inputs.audio(np.zeros(16000, np.float32))

    def test_too_long_and_too_short_sounds_are_refused(self, tiny: Subject) -> None:
        for samples in (0, 100, 30 * 16000 + 1):
            with pytest.raises(RequestError, match="is not supported"):
                tiny.inputs.audio(np.zeros(samples, np.float32))


@pytest.mark.parametrize("samples", [161, 320, 321, 5000, 16000, 16001])
def test_spectra_equal_those_of_the_reference(tmp_path: Path, samples: int) -> None:
    from transformers import Gemma4AudioFeatureExtractor

    sound = np.random.default_rng(0).normal(0, 0.1, samples).astype(np.float32)
    expected = Gemma4AudioFeatureExtractor()([sound], return_tensors="np")
    mask = expected["input_features_mask"][0]
    maker = Inputs({**RAW, "audio_config": {}, "audio_token_id": 3}, tmp_path)
    item = maker.audio(sound)
    ours = item.arrays["spectrum"].numpy()
    assert len(ours) == mask.sum() and mask[: len(ours)].all()
    assert np.abs(ours - expected["input_features"][0][: len(ours)]).max() < 1e-4
    assert item.tokens == (6, *[3] * -(-len(ours) // 4), 7)


@pytest.mark.parametrize(
    "settings",
    [
        {"preemphasis": 0.97},
        {"dither": 0.1},
        {"sampling_rate": 8000},
        {"feature_size": 0},
        {"hop_length_ms": 0},
        {"max_frequency": 9000.0},
        {"per_bin_mean": [0.0]},
        {"mel_floor": 0},
        {"feature_size": "x"},
    ],
    ids=str,
)
def test_impossible_settings_of_sound_are_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "processor_config.json").write_text(json.dumps({"feature_extractor": settings}))
    with pytest.raises(ConfigError):
        Inputs(RAW, tmp_path).audio(np.zeros(16000, np.float32))


def inputs_of(folder: Path, *, whole: bool = False, **settings: Any) -> Inputs:
    """Inputs with published sizes; `whole`: the layout of transformers 5."""
    stated = {"max_soft_tokens": 70, "patch_size": 16, "pooling_kernel_size": 3, **settings}
    found: dict[str, Any] = {"image_processor": stated, "video_processor": stated}
    if whole:
        (folder / "processor_config.json").write_text(json.dumps(found))
    else:
        (folder / "preprocessor_config.json").write_text(json.dumps(stated))
        (folder / "video_preprocessor_config.json").write_text(json.dumps(stated))
    vision = {"patch_size": 16, "pooling_kernel_size": 3}
    return Inputs({"vision_config": vision, "text_config": {}}, folder)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 1), (30, 45), (480, 640), (7, 700), (700, 7), (20000, 10)], ids=str
)
def test_images_equal_those_of_the_reference(
    tmp_path: Path, shape: tuple[int, int], whole: bool
) -> None:
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    image = pixels(1, *shape)
    item = inputs_of(tmp_path, whole=whole).image(image)
    processor = Gemma4ImageProcessorPil(max_soft_tokens=70)
    expected = processor(Image.fromarray(image), return_tensors="np")
    _, h, w = item.arrays["grid"].numpy().tolist()
    assert item.spans == () and len(item.tokens) == 2 + h * w // 9
    assert expected["num_soft_tokens_per_image"] == [h * w // 9]
    theirs, places = expected["pixel_values"][0], expected["image_position_ids"][0]
    ours = item.arrays["patches"].numpy()
    assert np.abs(ours - theirs[: h * w]).max() < 1e-6
    assert places[h * w - 1].tolist() == [w - 1, h - 1]


def test_frames_equal_those_of_the_reference(tmp_path: Path) -> None:
    """The indices of sampled frames; a video with fewer frames is used as a whole."""
    from transformers.video_utils import VideoMetadata, default_sample_indices_fn

    for settings in ({}, {"num_frames": None, "fps": 2.0}):
        maker = inputs_of(tmp_path, **settings)
        counts = {"num_frames": 32, "fps": None} | settings
        for total in (32, 33, 100, 1000):
            metadata = VideoMetadata(total_num_frames=total, fps=24.0)
            theirs = default_sample_indices_fn(metadata=metadata, **counts).tolist()
            assert maker.sample(total, 24.0) == theirs
    assert inputs_of(tmp_path).sample(3, 24.0) == [0, 1, 2]


def test_impossible_media_are_refused(tmp_path: Path) -> None:
    maker = inputs_of(tmp_path)
    with pytest.raises(RequestError, match="frames"):
        maker.video(pixels(1, 0, 4, 4), 2.0)
    for fps in (0.0, float("nan"), float("inf"), -1.0):
        with pytest.raises(RequestError, match="per second"):
            maker.video(pixels(1, 2, 8, 8), fps)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing"):
        maker.video(pixels(1, 2, 8, 8), 2.0)
    narrow = Inputs({"vision_config": {"position_embedding_size": 8}}, tmp_path)
    with pytest.raises(RequestError, match="8 patches per side"):
        narrow.image(pixels(1, 30, 45))


@pytest.mark.parametrize(
    "settings",
    [
        {"do_resize": False},
        {"max_soft_tokens": 0},
        {"max_soft_tokens": 10**9},
        {"patch_size": 14},
        {"pooling_kernel_size": 0},
        {"resample": 99},
        {"image_std": [0, 0, 0]},
        {"max_soft_tokens": "x"},
    ],
    ids=str,
)
def test_impossible_settings_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        inputs_of(tmp_path, **settings).image(MEDIA[0])


HOSTILE: tuple[dict[str, Any], ...] = (
    {"vision_config": None},
    {"vision_config": {**TOWER, "model_type": "clip_vision_model"}},
    {"text_config": {**TINY_TEXT, "model_type": "llama"}},
    {"image_token_id": 128},
    {"image_token_id": -1},
    {"video_token_id": -1},
    {"boi_token_id": "x"},
    *({"vision_config": {**TOWER, "head_dim": value}} for value in (0, 6, -4, 2**40, "x")),
    *({"vision_config": {**TOWER, "num_key_value_heads": value}} for value in (0, 3, [2])),
    *({"vision_config": {**TOWER, "pooling_kernel_size": value}} for value in (0, -3, "x")),
    *({"vision_config": {**TOWER, "position_embedding_size": value}} for value in (0, 2**40)),
    *({"vision_config": {**TOWER, "rms_norm_eps": value}} for value in (-1.0, 2.0, float("nan"))),
    *({"audio_config": {**HEARING, "hidden_size": value}} for value in (0, 33, 2**40, "x")),
    *({"audio_config": {**HEARING, "attention_context_left": value}} for value in (0, 1, 9, -5)),
    *(
        {"audio_config": {**HEARING, "subsampling_conv_channels": value}}
        for value in ([], [8], [0, 4], [8, -1], "x", ["x", 4])
    ),
    {"audio_config": {**HEARING, "attention_context_right": 1}},
    {"audio_config": {**HEARING, "hidden_act": "gelu"}},
    {"audio_config": {**HEARING, "gradient_clipping": 0.0}},
    {"audio_config": {**HEARING, "conv_kernel_size": 0}},
    {"audio_config": {**HEARING, "model_type": "gemma3n_audio"}},
    {"audio_config": 3},
    *(
        {"vision_config": {**TOWER, "rope_parameters": value}}
        for value in ({"rope_type": "yarn"}, {"rope_theta": 0}, {"rope_theta": "x"}, 3)
    ),
)


@pytest.mark.parametrize("changes", HOSTILE, ids=lambda changes: str(changes)[-60:])
def test_impossible_configs_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(OstroError):
        Config.from_hf({**RAW, **changes})


def test_a_projector_has_no_video_settings(tmp_path: Path) -> None:
    maker = Inputs({**RAW, "preprocessor_config": {"patch_size": 4}}, tmp_path)
    with pytest.raises(Unsupported, match="no video settings"):
        maker.video(pixels(1, 2, 8, 8), 2.0)


def test_tensors_of_projectors_are_reshaped() -> None:
    """Kernels have channels first, bounds are vectors of one element."""
    kernel = torch.arange(2 * 3 * 4, dtype=torch.float32).view(2, 3, 2, 2)
    flat = ChannelsLast(2).read(kernel)
    assert flat[1].tolist() == kernel[1].permute(1, 2, 0).flatten().tolist()
    assert torch.equal(ChannelsLast(2).write(flat), kernel)
    assert Scalar().read(torch.tensor([2.0])).shape == ()
    scale = torch.tensor([-2.0, 0.0, 3.0])
    assert torch.allclose(InverseSoftplus().read(torch.nn.functional.softplus(scale)), scale)
    assert Depthwise().read(torch.zeros(4, 3)).shape == (4, 1, 3)
    for transform in (ChannelsLast(3), Scalar()):
        with pytest.raises(CheckpointError):
            transform.read(kernel)
