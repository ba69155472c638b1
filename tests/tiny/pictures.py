"""Images, and messages with image parts in the format of OpenAI's API."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image


def picture(seed: int = 0, width: int = 40, height: int = 24) -> Image.Image:
    """An image of noise, different for each seed."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def saved(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    """The bytes of an image file."""
    file = BytesIO()
    image.save(file, format=format, **options)
    return file.getvalue()


def address(data: bytes, kind: str = "image/png") -> str:
    """The data URL of some bytes."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def shown(image: Image.Image, format: str = "PNG") -> dict[str, Any]:
    """An image part of a message in OpenAI's API."""
    return {"type": "image_url", "image_url": {"url": address(saved(image, format))}}


def text(words: str) -> dict[str, Any]:
    """A text part of a message."""
    return {"type": "text", "text": words}


def asked(*parts: dict[str, Any] | str, role: str = "user") -> dict[str, Any]:
    """A message with these parts; strings are text parts."""
    content = [text(part) if isinstance(part, str) else part for part in parts]
    return {"role": role, "content": content}
