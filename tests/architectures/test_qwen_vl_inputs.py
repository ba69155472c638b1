"""What Qwen2.5-VL and Qwen3-VL make of pixels, frames and positions.

Numbers of videos are those that the reference's video processors gave, which need torchvision.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from ostro import Item
from ostro.architectures.qwen2_5_vl.grid import places, windows
from ostro.architectures.qwen2_5_vl.inputs import Inputs as Inputs25
from ostro.architectures.qwen3_vl.inputs import Inputs as Inputs3
from ostro.core.errors import ConfigError, RequestError

IMAGE, VIDEO, START, END = 151655, 151656, 151652, 151653
RNG = np.random.default_rng(0)
CHARACTERS = "<>. second0123456789"
HUB = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
}
HALF = {
    "size": {"shortest_edge": 4096, "longest_edge": 200704},
    "patch_size": 16,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def write(folder: Path, **files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def picture(height: int, width: int) -> np.ndarray[Any, Any]:
    return RNG.integers(0, 256, (height, width, 3), np.uint8)


def tokenized(folder: Path) -> Path:
    vocab = {character: 40 + i for i, character in enumerate(CHARACTERS)}
    Tokenizer(models.BPE(vocab, [])).save(str(folder / "tokenizer.json"))
    return folder


def spelled(tokens: Sequence[int]) -> str:
    """Tokens of `tokenized` as text: v for a row of a video, [ and ] around those of one group."""
    marks = {VIDEO: "v", START: "[", END: "]"}
    return "".join(marks.get(token) or CHARACTERS[token - 40] for token in tokens)


@pytest.mark.parametrize("settings", [HUB, HALF], ids=["hub", "half"])
@pytest.mark.parametrize("size", [(30, 50), (56, 56), (300, 211), (17, 900), (640, 481)])
def test_patches_of_images_equal_the_references(
    tmp_path: Path, settings: dict[str, Any], size: tuple[int, int]
) -> None:
    pil = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    pixels = picture(*size)
    expected = pil.Qwen2VLImageProcessorPil(**settings)(pixels, return_tensors="np")
    found = Inputs25({}, write(tmp_path, preprocessor_config=settings)).image(pixels)
    assert np.array_equal(found.arrays["grid"].numpy(), expected["image_grid_thw"][0])
    patches = found.arrays["patches"].numpy()
    np.testing.assert_allclose(patches, expected["pixel_values"], rtol=0, atol=1e-6)
    rows = expected["image_grid_thw"].prod() // 4
    assert found.tokens == (IMAGE,) * rows and found.cost == 4 * rows


def test_a_video_of_one_still_is_its_image(tmp_path: Path) -> None:
    maker = Inputs25({}, write(tmp_path, preprocessor_config=HALF))
    still = picture(64, 96)
    image, video = maker.image(still), maker.video(np.stack([still] * 4), 2.0)
    assert video.arrays["grid"].numpy().tolist() == [2, 4, 6]
    found = video.arrays["patches"].numpy().reshape(2, 24, -1)
    assert np.array_equal(found, np.stack([image.arrays["patches"].numpy()] * 2))


def test_a_group_of_frames_holds_them_in_order(tmp_path: Path) -> None:
    maker = Inputs25({}, write(tmp_path, preprocessor_config=HALF))
    frames = np.stack([np.full((64, 64, 3), 10 * i, np.uint8) for i in range(3)])
    patches, grid = maker.videos.patches(frames)
    values = patches.reshape(2, 16, 3, 2, 16, 16)
    assert grid == (2, 4, 4)
    darkness = np.round((values * 0.5 + 0.5) * 255).astype(int)
    assert [darkness[i, :, :, j].max() for i in (0, 1) for j in (0, 1)] == [0, 10, 20, 20]
    assert np.array_equal(darkness.min((1, 2, 4, 5)), darkness.max((1, 2, 4, 5)))


@pytest.mark.parametrize(
    ("maker", "total", "fps", "count", "first", "last"),
    [
        (Inputs25, 100, 25, 8, [0, 12, 25, 37, 50], 87),
        (Inputs25, 7, 2, 6, [0, 1, 2, 3, 4], 5),
        (Inputs25, 3, 1, 2, [0, 1], 1),
        (Inputs25, 1, 1, 1, [0], 0),
        (Inputs25, 2000, 30, 132, [0, 15, 30, 45, 60], 1984),
        (Inputs3, 100, 25, 8, [0, 14, 28, 42, 57], 99),
        (Inputs3, 7, 2, 7, [0, 1, 2, 3, 4], 6),
        (Inputs3, 3, 1, 3, [0, 1, 2], 2),
        (Inputs3, 2000, 30, 133, [0, 15, 30, 45, 61], 1999),
    ],
)
def test_frames_are_sampled_as_the_reference_does(
    tmp_path: Path,
    maker: type[Inputs25],
    total: int,
    fps: float,
    count: int,
    first: list[int],
    last: int,
) -> None:
    folder = write(tmp_path, video_preprocessor_config={"fps": 2})
    chosen = maker({}, folder).sample(total, fps).tolist()
    assert (len(chosen), chosen[:5], chosen[-1]) == (count, first, last)


@pytest.mark.parametrize(
    ("frames", "height", "width", "per_frame", "in_all"),
    [
        (8, 360, 640, (364, 644), (224, 416)),
        (64, 1080, 1920, (560, 1008), (64, 128)),
        (3, 20, 50, (224, 504), (160, 352)),
    ],
)
def test_videos_are_sized_as_the_reference_does(
    tmp_path: Path,
    frames: int,
    height: int,
    width: int,
    per_frame: tuple[int, int],
    in_all: tuple[int, int],
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, size in ((old, 14), (new, 16)):
        folder.mkdir()
        write(folder, video_preprocessor_config={"patch_size": size})
    assert Inputs25({}, old).video_size(frames, height, width) == per_frame
    assert Inputs3({}, new).video_size(frames, height, width) == in_all


def test_a_videos_times_follow_its_frames_per_second(tmp_path: Path) -> None:
    maker = Inputs25(
        {"vision_config": {"tokens_per_second": 2}}, write(tmp_path, preprocessor_config=HALF)
    )
    slow = maker.video(np.stack([picture(32, 32)] * 6), 1.0)
    fast = maker.video(np.stack([picture(32, 32)] * 6), 2.0)
    assert slow.arrays["times"].numpy().tolist() == [0, 4, 8]
    assert fast.arrays["times"].numpy().tolist() == [0, 2, 4]
    assert slow.key != fast.key


def test_qwen3_tells_the_time_before_each_group_of_frames(tmp_path: Path) -> None:
    write(tokenized(tmp_path), video_preprocessor_config={**HALF, "size": {}})
    maker = Inputs3({}, tmp_path)
    frames = np.stack([picture(64, 64)] * 7)
    video = maker.video(frames, 2.0)
    each = "v" * (video.cost // 4 // 4)
    times = ("0.2", "1.2", "2.2", "3.0")
    assert spelled(video.tokens) == "".join(f"<{time} seconds>[{each}]" for time in times)
    prompt = maker.expand_placeholders([7, START, VIDEO, END, 8], [video])
    assert prompt.tokens == [7, *video.tokens, 8]
    assert [count for _, count in prompt.items[0].spans] == [len(each)] * 4


def test_text_prompts_have_no_positions(tmp_path: Path) -> None:
    assert Inputs25({}, tmp_path).expand_placeholders([5, 6, 7], []).positions is None


def test_settings_may_be_in_one_file(tmp_path: Path) -> None:
    nested = {"image_processor": HALF, "video_processor": {**HALF, "fps": 4}}
    maker = Inputs25({}, write(tmp_path, processor_config=nested, preprocessor_config=HUB))
    assert maker.images.patch_size == 16 and maker.videos.fps == 4


@pytest.mark.parametrize(
    ("files", "raw", "said"),
    [
        ({}, {}, "preprocessor_config.json is missing"),
        ({"preprocessor_config": {"do_resize": False}}, {}, "do_resize=false"),
        ({"preprocessor_config": {"num_frames": 8}}, {}, "num_frames"),
        (
            {"preprocessor_config": {"patch_size": "big"}},
            {},
            "config.json.*patch_size",
        ),
        ({"preprocessor_config": {"patch_size": 0}}, {}, "patch_size=0"),
        ({"preprocessor_config": HUB}, {"vision_config": {"patch_size": 16}}, "patch_size=16"),
    ],
)
def test_files_that_cannot_be_followed_are_named(
    tmp_path: Path, files: dict[str, Any], raw: dict[str, Any], said: str
) -> None:
    maker = Inputs25(raw, write(tmp_path, **files))
    with pytest.raises(ConfigError, match=said):
        maker.image(picture(32, 32))


def test_images_that_are_too_slim_are_refused(tmp_path: Path) -> None:
    maker = Inputs25({}, write(tmp_path, preprocessor_config=HUB))
    with pytest.raises(RequestError, match="too narrow"):
        maker.image(picture(2, 401))
    with pytest.raises(RequestError, match="0 frames"):
        maker.video(np.empty((0, 8, 8, 3), np.uint8), 1.0)


def test_text_follows_the_last_of_a_videos_times(tmp_path: Path) -> None:
    """Qwen's code and transformers up to 5.0 go on behind the largest of all three axes."""
    write(tmp_path, preprocessor_config=HUB, config={})
    maker = Inputs25({"vision_config": {"tokens_per_second": 2}}, tmp_path)
    clip = maker.video(RNG.integers(0, 256, (16, 56, 56, 3), np.uint8), 2.0)
    prompt = maker.expand_placeholders([5, VIDEO, 6], [clip])
    assert prompt.positions is not None
    found = prompt.positions.numpy()
    assert found[0, 1:-1].max() == 1 + 7 * 2  # 8 patches in time, a second apart
    assert found[:, -1].tolist() == [16, 16, 16]


def test_videos_that_last_longer_than_the_model_has_positions_are_refused(tmp_path: Path) -> None:
    write(tmp_path, preprocessor_config=HUB)
    maker = Inputs25({"text_config": {"max_position_embeddings": 4096}}, tmp_path)
    frames = np.stack([picture(56, 56)] * 6)
    assert maker.expand_placeholders([VIDEO], [maker.video(frames, 1.0)]).positions is not None
    with pytest.raises(RequestError, match=r"supports 4096"):
        maker.expand_placeholders([VIDEO], [maker.video(frames, 1e-3)])


def test_equal_media_have_equal_keys_and_others_do_not(tmp_path: Path) -> None:
    maker = Inputs25({}, write(tmp_path, preprocessor_config=HUB))
    pixels = picture(56, 84)
    other = pixels.copy()
    other[3, 4, 1] ^= 255
    keys: list[Item] = [maker.image(each) for each in (pixels, pixels.copy(), other)]
    assert keys[0].key == keys[1].key != keys[2].key


def test_windows_hold_neighbours() -> None:
    grids = [(1, 6, 10), (2, 4, 6)]
    order, bounds = windows(grids, 2, 2)
    spots = places(grids, 2).T.reshape(-1, 4, 2)[order].reshape(-1, 2)
    sizes = np.diff(bounds).tolist()
    assert sizes == [16, 16, 8, 8, 8, 4, 16, 8, 16, 8]
    for start, stop in pairwise(bounds):
        window = spots[start:stop] // 4
        assert (window == window[0]).all()
