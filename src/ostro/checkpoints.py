"""Checkpoint formats: containers of named tensors, names of weights, and saving."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ostro.core.load.components import JoinedContainer
from ostro.core.load.container import (
    DTYPES,
    MAX_NAME,
    MappedContainer,
    MappedFile,
    TensorLocation,
    read_config,
    tensor_fault,
)
from ostro.core.load.open import PROJECTOR
from ostro.core.paths import atomic_path, read_regular, refuse_existing, resolve_path
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.checkpoints.gguf.ggml import GGML_BY_NAME, GGML_TYPES, GGML_WITHDRAWN, GgmlType

if TYPE_CHECKING:
    from ostro.core.device import format_bytes, parse_size
    from ostro.core.load.experts import Expert
    from ostro.core.load.names import Named, Transform
    from ostro.core.load.planning import (
        PlanInterrupted,
        PlannedFormats,
        PlannedWeight,
        PlanRequest,
        Probe,
    )
    from ostro.core.load.quantize import FLOAT_FORMAT, Maker
    from ostro.core.load.saving import Saving, SavingProgress
    from ostro.core.load.sizes import WeightShape
    from ostro.core.load.weights import weight_slots
    from ostro.core.nn.linear import WeightSlot

_LAZY = {
    "Expert": "ostro.core.load.experts",
    "Named": "ostro.core.load.names",
    "Transform": "ostro.core.load.names",
    "FLOAT_FORMAT": "ostro.core.load.quantize",
    "Maker": "ostro.core.load.quantize",
    "PlanInterrupted": "ostro.core.load.planning",
    "PlanRequest": "ostro.core.load.planning",
    "PlannedFormats": "ostro.core.load.planning",
    "Probe": "ostro.core.load.planning",
    "PlannedWeight": "ostro.core.load.planning",
    "WeightShape": "ostro.core.load.sizes",
    "format_bytes": "ostro.core.device",
    "parse_size": "ostro.core.device",
    "Saving": "ostro.core.load.saving",
    "SavingProgress": "ostro.core.load.saving",
    "weight_slots": "ostro.core.load.weights",
    "WeightSlot": "ostro.core.nn.linear",
}
"""Imported on first use: these modules need torch or Triton."""

__all__ = [
    "DTYPES",
    "FLOAT_FORMAT",
    "GGML_BY_NAME",
    "GGML_TYPES",
    "GGML_WITHDRAWN",
    "MAX_NAME",
    "PROJECTOR",
    "Expert",
    "GgmlType",
    "JoinedContainer",
    "Maker",
    "MappedContainer",
    "MappedFile",
    "Named",
    "PlanInterrupted",
    "PlanRequest",
    "PlannedFormats",
    "PlannedWeight",
    "PluginManager",
    "Probe",
    "Saving",
    "SavingProgress",
    "TensorLocation",
    "Transform",
    "WeightShape",
    "WeightSlot",
    "atomic_path",
    "format_bytes",
    "parse_size",
    "read_config",
    "read_regular",
    "refuse_existing",
    "resolve_path",
    "tensor_fault",
    "weight_slots",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
