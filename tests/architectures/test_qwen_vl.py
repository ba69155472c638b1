"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL against transformers, with images and videos in the prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ostro import Medium, Prompt
from ostro.core.step import ROWS
from ostro.plugins.conformance import ArchitectureTests
from ostro.plugins.conformance.examples import Example
from ostro.plugins.conformance.parity import BAR, Subject, deviation


class SightTests(ArchitectureTests):
    """What a family with a tower must hold to, beyond what the kit asks."""

    def test_the_tower_equals_the_references(self, tiny: Subject) -> None:
        media = [medium for example in tiny.examples for medium in shown(tiny, example.prompt)]
        assert {medium.kind for medium in media} == {"image", "video"}
        with torch.inference_mode():
            encoded = tiny.load().model.encode(media, ROWS)
        ours = [torch.cat(level) for level in zip(*encoded, strict=True)]
        for level, expected in zip(ours, tower(tiny, media), strict=True):
            assert deviation(level, expected) <= BAR

    def test_positions_equal_the_references(self, tiny: Subject) -> None:
        for example in seeing(tiny):
            prompt, asked = example.prompt, example.arguments()
            asked = {name: value for name, value in asked.items() if "pixel" not in name}
            ids = torch.tensor([prompt.tokens])
            expected, after = tiny.reference.model.get_rope_index(input_ids=ids, **asked)
            assert prompt.positions is not None
            found = prompt.positions.numpy()
            assert np.array_equal(found, expected[:, 0].numpy())
            assert found.max() + 1 - len(prompt.tokens) == int(after)

    def test_greedy_equals_what_the_reference_generates(self, tiny: Subject) -> None:
        """With its own cache and positions, not anew for every token."""
        for example in seeing(tiny):
            tiny.reference.model.rope_deltas = None
            ids = torch.tensor([example.prompt.tokens])
            out = tiny.reference.generate(
                ids, **example.arguments(), max_new_tokens=8, do_sample=False, eos_token_id=-1
            )
            truth = tiny.reference_tokens(example, 8)
            assert out[0, ids.shape[1] :].tolist()[: len(truth)] == truth


class TestQwen25VL(SightTests):
    name = "qwen2_5_vl"


class TestQwen2VL(SightTests):
    name = "qwen2_vl"


class TestQwen3VL(SightTests):
    name = "qwen3_vl"


class TestQwen35VL(SightTests):
    name = "qwen3_5_vl"


def seeing(tiny: Subject) -> Iterator[Example]:
    """The examples that have media."""
    return (example for example in tiny.examples if example.prompt.items)


def shown(tiny: Subject, prompt: Prompt) -> list[Medium]:
    runner = tiny.engine().runner
    return [runner.medium(item) for item in prompt.items]


@torch.inference_mode()
def tower(tiny: Subject, media: Sequence[Medium]) -> list[Tensor]:
    patches = torch.cat([each.arrays["patches"] for each in media])
    grids = torch.stack([each.arrays["grid"] for each in media])
    out = tiny.reference.model.visual(patches, grid_thw=grids)
    return [out.pooler_output, *getattr(out, "deepstack_features", [])]
