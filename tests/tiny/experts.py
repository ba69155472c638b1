"""Checkpoints of mixtures of experts in both layouts: each expert separate, and stacked."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from ostro.core.load.model import load_model
from ostro.core.settings import Settings
from ostro.plugins.conformance.parity import BAR, Subject, deviation


class ExpertLayouts:
    """Tests of both layouts, for test classes with the fixture `tiny`.

    `published` is the name of a tensor of a published checkpoint, `stacked` one of a checkpoint
    with the names in memory of transformers 5.
    """

    published: ClassVar[str]
    stacked: ClassVar[str]

    def test_published_layout(self, tiny: Subject) -> None:
        assert_layout(tiny, tiny.folder, self.published)

    def test_layout_of_transformers_5(self, tiny: Subject, tmp_path: Path) -> None:
        tiny.reference.save_pretrained(tmp_path, save_original_format=False)
        assert_layout(tiny, tmp_path, self.stacked)


def assert_layout(tiny: Subject, folder: Path, name: str) -> None:
    """A checkpoint in `folder` that has the tensor `name` gives the logits of the reference."""
    loaded = load_model(folder, Settings(dtype="float32", device="cpu"), tiny.plugins)
    assert name in loaded.container.tensors, sorted(loaded.container.tensors)
    logits = tiny.engine(loaded).runner.logits(tiny.prompt)
    assert deviation(logits, tiny.run_reference(tiny.prompt)) <= BAR
