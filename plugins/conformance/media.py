"""The check of media encoders: batched features against single ones."""

from __future__ import annotations

import torch

from ostro.core.step import ROWS
from ostro.plugins.conformance.checks import check, has_examples
from ostro.plugins.conformance.parity import BAR, Subject, deviation


@check(has_examples)
def media_features_do_not_depend_on_the_batch(tiny: Subject) -> None:
    runner = tiny.engine().runner
    items = [item for example in tiny.examples for item in example.prompt.items]
    media = [runner.medium(item) for item in items]
    assert len(media) > 1, f"{tiny.name}: its examples contain fewer than two media"
    with torch.inference_mode():
        together = runner.model.encode(media, ROWS)
        for medium, features in zip(media, together, strict=True):
            [alone] = runner.model.encode([medium], ROWS)
            for ours, expected in zip(features, alone, strict=True):
                assert deviation(ours, expected) <= BAR / 10
