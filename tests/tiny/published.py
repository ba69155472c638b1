"""Checkpoints of a tiny subject in other layouts: as published, or with a hostile config."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from ostro.core.errors import OstroError
from ostro.core.load.model import LoadedModel, load_model
from ostro.core.settings import Settings
from ostro.plugins.conformance.parity import Subject, deviation

HOSTILE: tuple[Any, ...] = (
    *(None, True, "x", [], ["x"], {}, {"x": 1}),
    *(-1, 0, 3, 7, 1 << 40, 0.3, -0.5, 1e300, float("nan"), float("inf")),
)
Tensors = dict[str, Tensor]


def publish(
    tiny: Subject,
    folder: Path,
    config: Mapping[str, Any],
    change: Callable[[Tensors], Tensors] = dict,
    dropped: tuple[str, ...] = (),
) -> LoadedModel:
    """Load a checkpoint whose config.json and tensors differ from those of the subject.

    config: values that replace those of the config.json; dropped: its keys to leave out; change:
    a function of the tensors by name.
    """
    raw = {key: value for key, value in tiny.raw_config.items() if key not in dropped}
    (folder / "config.json").write_text(json.dumps(raw | dict(config)))
    tensors = change(load_file(tiny.folder / "model.safetensors"))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return load_model(folder, Settings(dtype="float32", device="cpu"), tiny.plugins)


def published_deviation(tiny: Subject, loaded: LoadedModel) -> float:
    """The deviation of a loaded model from the subject's reference."""
    return deviation(tiny.answer(tiny.engine(loaded)), tiny.expected)


def refuse_or_run(tiny: Subject, folder: Path, field: str) -> list[Any]:
    """The hostile values of a field that are accepted; each must load and give finite logits."""
    accepted = []
    for value in HOSTILE:
        try:
            loaded = publish(tiny, folder, {field: value})
        except OstroError:
            continue
        assert tiny.answer(tiny.engine(loaded)).isfinite().all(), f"{field}={value!r}"
        accepted.append(value)
    return accepted


def rename(old: str, new: str) -> Callable[[Tensors], Tensors]:
    """A change of tensors for `publish`: `new` in place of `old` in every name."""
    return lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()}
