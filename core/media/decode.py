"""Decode image and video files to pixels; size limits are checked before decoding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ostro.core.errors import RequestError, Unsupported

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
ANIMATIONS = ("GIF", "WEBP")
MAX_PIXELS = 64 << 20
"""Pixels of one image, or of all decoded frames of a video."""
MAX_FRAMES = 768

Pixels = NDArray[np.uint8]


def read_image(data: bytes) -> Pixels:
    """Decode an image file to uint8 [height, width, 3] in RGB.

    The EXIF orientation is applied; alpha is dropped. Raises RequestError for an unknown format,
    a truncated file, and too many pixels.
    """
    from PIL import ImageOps

    with readable("image", FORMATS), open_image(data, FORMATS, "image") as image:
        check_pixels(image.width * image.height, "image")
        image.load()
        turned = ImageOps.exif_transpose(image)
        return np.asarray(turned.convert("RGB"))


def measure_image(data: bytes) -> tuple[int, int]:
    """The width and height of an image file by its header, as stored.

    Raises RequestError as `read_image`, as far as the header shows it.
    """
    with readable("image", FORMATS), open_image(data, FORMATS, "image") as image:
        check_pixels(image.width * image.height, "image")
        return image.width, image.height


def read_video(data: bytes, fps: float | None = None) -> tuple[Pixels, float]:
    """Decode a video file to frames uint8 [n, height, width, 3] and their rate per second.

    Pillow decodes GIF and WebP; PyAV, if installed, decodes the rest. `fps` is the wanted rate:
    every k-th frame is kept so that the rate comes near it. Raises RequestError for files that
    cannot be decoded or are too large, Unsupported where PyAV is required and missing.
    """
    with readable("video"):
        frames, rate = animation(data) if is_animation(data) else film(data)
    if not frames:
        raise RequestError("the video has no frames", param="messages")
    stride = max(1, round(rate / fps)) if fps else 1
    return np.stack(frames[::stride]), rate / stride


def measure_video(data: bytes) -> int:
    """The pixels of all frames of a video file by its header; fewer where the header does not
    state the number of frames, as in GIF.

    Raises RequestError and Unsupported as `read_video`, as far as the header shows it.
    """
    with readable("video"):
        if is_animation(data):
            with open_image(data, ANIMATIONS, "video") as image:
                # Pillow counts the frames of a GIF by reading all of it.
                frames = 1 if image.format == "GIF" else getattr(image, "n_frames", 1)
                pixels = image.width * image.height
        else:
            with open_film(data) as container:
                stream = container.streams.video[0]
                frames, pixels = max(1, stream.frames), stream.width * stream.height
        check_frames(frames, pixels)
    return frames * pixels


@contextmanager
def readable(what: str, formats: tuple[str, ...] = ()) -> Iterator[None]:
    """Turn the errors of libraries into a RequestError, which names the formats to send."""
    try:
        yield
    except (RequestError, Unsupported):
        raise
    except Exception as error:
        advice = f"; send {', '.join(formats)}" if formats else ""
        raise RequestError(
            f"the {what} cannot be read: {reason(error)}{advice}", param="messages"
        ) from None


def open_image(data: bytes, formats: tuple[str, ...], what: str) -> Image:
    """Open an image file with Pillow. Raises RequestError unless it has one of the formats."""
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(BytesIO(data), formats=formats)
    except UnidentifiedImageError:  # its text contains the address of the BytesIO
        raise RequestError(
            f"the {what} cannot be read: unknown format; send {', '.join(formats)}",
            param="messages",
        ) from None


def is_animation(data: bytes) -> bool:
    return data[:4] == b"GIF8" or data[8:12] == b"WEBP"


def animation(data: bytes) -> tuple[list[Pixels], float]:
    """Decode a GIF or WebP file to its frames and their rate per second."""
    from PIL import ImageSequence

    frames, times = list[Pixels](), list[float]()
    with open_image(data, ANIMATIONS, "video") as image:
        for frame in ImageSequence.Iterator(image):
            check_frames(len(frames) + 1, frame.width * frame.height)
            frames.append(np.asarray(frame.convert("RGB")))
            times.append(float(frame.info.get("duration") or 100) / 1000)
    return frames, len(times) / sum(times) if times else 1.0


def film(data: bytes) -> tuple[list[Pixels], float]:
    """Decode a video file with PyAV to its frames and their rate per second."""
    frames = list[Pixels]()
    with open_film(data) as container:
        stream = container.streams.video[0]
        for frame in container.decode(stream):
            check_frames(len(frames) + 1, frame.width * frame.height)
            frames.append(frame.to_ndarray(format="rgb24"))
        rate = float(stream.average_rate or 25)
    return frames, rate


def open_film(data: bytes) -> Any:
    """Open a video file with PyAV. Raises Unsupported if it is missing."""
    try:
        import av
    except ImportError:
        raise Unsupported(
            "videos other than GIF and WebP require PyAV: pip install 'ostro[video]'",
            param="messages",
        ) from None
    return av.open(BytesIO(data))


def check_pixels(pixels: int, what: str) -> None:
    if pixels > MAX_PIXELS:
        raise RequestError(
            f"the {what} has {pixels / 1e6:.0f} million pixels; the limit is "
            f"{MAX_PIXELS / 1e6:.0f} million: make it smaller",
            param="messages",
        )


def check_frames(frames: int, pixels: int) -> None:
    check_pixels(frames * pixels, "video")
    if frames > MAX_FRAMES:
        raise RequestError(
            f"the video has more than {MAX_FRAMES} frames; shorten it or lower its frame rate",
            param="messages",
        )


def reason(error: Exception) -> str:
    """The first line of a library's error, at most 120 characters."""
    return (str(error) or type(error).__name__).partition("\n")[0][:120]
