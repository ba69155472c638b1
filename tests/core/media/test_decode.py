"""Files of pictures and videos: what is read, and what is refused before it is decoded."""

from __future__ import annotations

import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.WebPImagePlugin import WebPImageFile

from ostro.core.errors import RequestError, Unsupported
from ostro.core.media import decode
from ostro.core.media.decode import measure_image, measure_video, read_image, read_video


def picture(width: int = 5, height: int = 3, mode: str = "RGB") -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values).convert(mode)


def saved(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    file = BytesIO()
    image.save(file, format=format, **options)
    return file.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "1"])
def test_a_picture_of_any_mode_is_rgb(mode: str) -> None:
    image = picture(mode=mode)
    found = read_image(saved(image))
    assert found.dtype == np.uint8 and found.shape == (3, 5, 3)
    assert np.array_equal(found, np.asarray(image.convert("RGB")))


def test_a_picture_is_turned_as_its_camera_was() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    found = read_image(saved(picture(), "PNG", exif=exif))
    assert found.shape == (5, 3, 3)


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header promises more than its few bytes hold."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        check = zlib.crc32(kind + body)
        return len(body).to_bytes(4, "big") + kind + body + check.to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bomb(50_000, 50_000), "pixels"),
        (bomb(9000, 9000), "million pixels"),
        (bomb(100, 100), "cannot be read"),
        (saved(picture(64, 64))[:200], "cannot be read"),
        (b"", "cannot be read"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "cannot be read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "cannot be read"),
        (saved(picture(), "PDF"), "cannot be read"),
    ],
)
def test_what_is_no_picture_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(RequestError, match=said) as raised:
        read_image(data)
    assert "0x" not in str(raised.value) and "BytesIO" not in str(raised.value)


def animation(frames: int, **options: object) -> bytes:
    images = [picture(8, 8) for _ in range(frames)]
    for i, image in enumerate(images):
        image.putpixel((0, 0), (i * 10, 0, 0))
    return saved(images[0], "WEBP", save_all=True, append_images=images[1:], **options)


def test_a_video_has_frames_and_a_rate() -> None:
    frames, rate = read_video(animation(6, duration=250, lossless=True))
    assert frames.shape == (6, 8, 8, 3) and rate == pytest.approx(4.0)
    assert [int(frame[0, 0, 0]) for frame in frames] == [0, 10, 20, 30, 40, 50]
    fewer, slower = read_video(animation(6, duration=250, lossless=True), fps=2)
    assert len(fewer) == 3 and slower == pytest.approx(2.0)
    assert np.array_equal(fewer[1], frames[2])


def test_a_video_that_is_none_or_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="cannot be read") as raised:
        read_video(b"GIF89a")
    assert "0x" not in str(raised.value)
    with pytest.raises((RequestError, Unsupported)):
        read_video(b"")
    monkeypatch.setattr(decode, "MAX_FRAMES", 4)
    with pytest.raises(RequestError, match="more than 4 frames"):
        read_video(animation(5))
    monkeypatch.setattr(decode, "MAX_PIXELS", 100)
    with pytest.raises(RequestError, match="pixels"):
        read_video(animation(2))


def test_headers_have_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pixel is decoded. A GIF does not state how many frames it has."""
    film = animation(6)
    gif = saved(picture(8, 8), "GIF", save_all=True, append_images=[picture(8, 8, "1")] * 3)
    files = [saved(picture(7, 4), form) for form in decode.FORMATS]

    def refuse(*arguments: object) -> None:
        raise AssertionError("pixels are decoded")

    for kind in (WebPImageFile, ImageFile):
        monkeypatch.setattr(kind, "load", refuse)
    assert [measure_image(data) for data in files] == [(7, 4)] * len(files)
    assert measure_image(bomb(100, 100)) == (100, 100)
    assert measure_video(film) == 6 * 64 and measure_video(gif) == 64


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bomb(9000, 9000), "the image has 81 million pixels"),
        (b"", "the image cannot be read"),
        (saved(picture(), "PDF"), "the image cannot be read"),
    ],
)
def test_headers_are_refused_as_files(data: bytes, said: str) -> None:
    for read in (measure_image, read_image):
        with pytest.raises(RequestError, match=said):
            read(data)


def test_headers_of_videos_are_refused_as_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "MAX_FRAMES", 4)
    with pytest.raises(RequestError, match="more than 4 frames"):
        measure_video(animation(5))
    monkeypatch.setattr(decode, "MAX_PIXELS", 100)
    with pytest.raises(RequestError, match="the video has 0 million pixels"):
        measure_video(animation(2))
    for data in (b"GIF89a", b"no film"):
        with pytest.raises((RequestError, Unsupported), match="video"):
            measure_video(data)


def test_no_frames_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "animation", lambda data: ([], 1.0))
    with pytest.raises(RequestError, match="no frames"):
        read_video(b"GIF89a")
