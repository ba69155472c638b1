"""Examples: prompts on which a model is compared, with the arguments of its reference.

The record of a model with media declares `examples(folder, raw)`, which writes the files that its
Inputs read (preprocessor_config.json...) into the checkpoint's folder and yields the prompts that
these Inputs build:

    def examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
        (folder / "preprocessor_config.json").write_text(json.dumps({"size": 16}))
        inputs = Inputs(raw, folder)
        item = inputs.image(pixels(0, 30, 45))
        prompt = inputs.expand_placeholders([*words(9, 128), IMAGE, *words(9, 128)], [item])
        yield Example(prompt, {"pixel_values": item.arrays["pixels"].numpy()[None]})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ostro.core.messages.arrays import Array
from ostro.core.messages.prompt import Prompt

if TYPE_CHECKING:
    Values = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Example:
    """A prompt that ends in text, and the reference's keyword arguments besides the token ids.

    Integer arguments [1, T, ...] are per token (masks, token types); their last column is repeated
    for generated tokens.
    """

    prompt: Prompt
    reference: Mapping[str, Values] = field(default_factory=dict)

    def arguments(self, generated: int = 0) -> dict[str, Tensor]:
        """The keyword arguments for the prompt and `generated` further tokens."""
        size, arguments = len(self.prompt.tokens), {}
        for name, values in self.reference.items():
            if values.dtype.kind in "iub" and values.shape[:2] == (1, size):
                values = np.concatenate([values, values[:, -1:].repeat(generated, 1)], 1)
            arguments[name] = torch.from_numpy(values.copy())
        return arguments


def beginning(prompt: Prompt, count: int) -> Prompt:
    """The first `count` tokens of a prompt with their media, extended if it would cut a medium."""
    for item in prompt.items:
        if item.spans and item.first < count:
            count = max(count, sum(item.spans[-1]))
    positions = prompt.positions
    return Prompt(
        tokens=prompt.tokens[:count],
        items=[item for item in prompt.items if item.first < count],
        positions=positions and Array.of(positions.numpy()[:, :count]),
    )


def longest_span(prompt: Prompt) -> int:
    """The length of the longest run of placeholder tokens in a prompt."""
    return max((count for item in prompt.items for _, count in item.spans), default=0)


def words(count: int, vocab: int, *, first: int = 8, seed: int = 0) -> list[int]:
    """Random token ids from `first` to `vocab` - 1; ids below `first` are special tokens."""
    found: list[int] = np.random.default_rng(seed).integers(first, vocab, count).tolist()
    return found


def pixels(seed: int, *shape: int) -> Values:
    """Noise, uint8 [*shape, 3]: an image for shape (h, w), a video for (frames, h, w)."""
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), np.uint8)


def sound(seed: int, seconds: float, rate: int = 16000) -> Values:
    """A sine tone in noise, float32 [seconds * rate], mostly within -1..1."""
    random, n = np.random.default_rng(seed), int(rate * seconds)
    tone = np.sin(np.arange(n) * (0.05 + 0.03 * seed))
    return (0.3 * tone + 0.1 * random.standard_normal(n)).astype(np.float32)
