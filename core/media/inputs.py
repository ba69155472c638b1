"""The media processor of an architecture: converts decoded media to the items of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec.structs import replace

from ostro.core.errors import RequestError, Unsupported
from ostro.core.messages.arrays import Array
from ostro.core.messages.prompt import Item, Prompt

if TYPE_CHECKING:
    import numpy as np


class Inputs:
    """The media processor of an architecture: a subclass overrides the kinds that it supports.

    It runs in a worker process apart from the server and the engine, and imports no torch. raw: the
    parsed config.json. folder: the folder of the model.
    """

    rate: ClassVar[int] = 16000
    """Sample rate of `audio`, in Hz."""
    voices: ClassVar[Sequence[str]] = ()
    """Names of the voices of `speech`."""

    def __init__(self, raw: Mapping[str, Any], folder: Path) -> None:
        self.raw, self.folder = raw, folder

    @property
    def placeholders(self) -> Mapping[str, int]:
        """For each supported kind the token id that a chat template writes for one item."""
        return {}

    def image(self, pixels: np.ndarray[Any, Any]) -> Item:
        """Make an item of one image, uint8 [height, width, 3] in RGB."""
        raise Unsupported("this model does not support images", param="messages")

    def image_tokens(self, width: int, height: int) -> int | None:
        """The number of tokens of `image` for an image of that size in pixels, computed without
        the image; in a prompt it takes no fewer. None if it is unknown. Long prompts are refused
        by it before images are decoded: a class that changes `image` changes it as well.
        """
        return None

    def video(self, frames: np.ndarray[Any, Any], fps: float) -> Item:
        """Make an item of one video, uint8 [frames, height, width, 3] at `fps` per second."""
        raise Unsupported("this model does not support video", param="messages")

    def audio(self, samples: np.ndarray[Any, Any]) -> Item:
        """Make an item of one audio, float32 [n] in -1..1 at `rate` Hz."""
        raise Unsupported("this model does not support audio", param="messages")

    def drawing(
        self, prompt: str, second: str | None, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The engine request for an image: the prompt's tokens, width, height and further options,
        as requested or as the model's defaults. `second` is the prompt of a second text encoder.
        """
        raise Unsupported("this model does not generate images")

    def count_tokens(
        self, prompt: str, second: str | None, width: int, height: int
    ) -> tuple[int, int]:
        """The tokens of a prompt of `drawing`, and of an image of this size: the usage of a
        request. 0 for a model without tokens.
        """
        return 0, 0

    def speech(self, text: str, voice: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """The engine request for speech: the text's tokens, max_seconds, temperature, top_p and
        guidance, as requested or as the model's defaults.

        Raises RequestError for an unknown voice.
        """
        raise Unsupported("this model does not synthesize speech")

    def expand_placeholders(self, tokens: Sequence[int], items: Sequence[Item]) -> Prompt:
        """Replace the placeholders in a prompt by the tokens of items, in order.

        Raises RequestError if the number of placeholders differs from the number of items.
        """
        kinds = {token: kind for kind, token in self.placeholders.items()}
        out, placed, left = list[int](), list[Item](), list(items)
        for token in tokens:
            if token not in kinds:
                out.append(token)
            elif not left or kinds[token] not in (left[0].kind, "media"):
                raise RequestError(
                    f"item {len(placed) + 1} of the prompt is {kinds[token]}, got "
                    f"{'nothing' if not left else left[0].kind}; send media in the order of their "
                    "placeholders",
                    param="messages",
                )
            else:
                placed.append(set_spans(left.pop(0), len(out)))
                out += placed[-1].tokens
        if left:
            raise RequestError(
                f"{len(left)} of {len(items)} media have no placeholder in the prompt; the model's "
                "chat template does not write one for them",
                param="messages",
            )
        placed = [replace(item, tokens=(), pad=-1) for item in placed]
        return Prompt(tokens=out, items=placed, positions=self.positions(out, placed))

    def positions(self, tokens: Sequence[int], items: Sequence[Item]) -> Array | None:
        """Positions [axes, T] int32 of a prompt, None for 0, 1, 2, ..."""
        return None


def set_spans(item: Item, start: int) -> Item:
    """Set the spans of an item whose tokens begin at `start`."""
    spans = list[tuple[int, int]]()
    for i, token in enumerate(item.tokens, start):
        if token != item.pad:
            continue
        if spans and sum(spans[-1]) == i:
            spans[-1] = (spans[-1][0], spans[-1][1] + 1)
        else:
            spans.append((i, 1))
    return replace(item, spans=tuple(spans))
