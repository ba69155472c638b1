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
from ostro.plugins.checkpoints.gguf.ggml import BY_NAME as GGML_BY_NAME
from ostro.plugins.checkpoints.gguf.ggml import TYPES as GGML_TYPES
from ostro.plugins.checkpoints.gguf.ggml import WITHDRAWN as GGML_WITHDRAWN
from ostro.plugins.checkpoints.gguf.ggml import GgmlType

if TYPE_CHECKING:
    from ostro.core.device import format_bytes, parse_size
    from ostro.core.load.experts import Expert
    from ostro.core.load.names import Named, Transform
    from ostro.core.load.planning import PlanInterrupted, PlanRequest, Probe
    from ostro.core.load.planning import Planned as PlannedFormats
    from ostro.core.load.planning import Weight as PlannedWeight
    from ostro.core.load.quantize import FLOAT as FLOAT_FORMAT
    from ostro.core.load.quantize import Maker
    from ostro.core.load.saving import Saving, SavingProgress
    from ostro.core.load.sizes import Shape as WeightShape
    from ostro.core.load.weights import slots as weight_slots
    from ostro.core.nn.linear import Slot as WeightSlot

_LAZY = {
    "Expert": ("ostro.core.load.experts", "Expert"),
    "Named": ("ostro.core.load.names", "Named"),
    "Transform": ("ostro.core.load.names", "Transform"),
    "FLOAT_FORMAT": ("ostro.core.load.quantize", "FLOAT"),
    "Maker": ("ostro.core.load.quantize", "Maker"),
    "PlanInterrupted": ("ostro.core.load.planning", "PlanInterrupted"),
    "PlanRequest": ("ostro.core.load.planning", "PlanRequest"),
    "PlannedFormats": ("ostro.core.load.planning", "Planned"),
    "Probe": ("ostro.core.load.planning", "Probe"),
    "PlannedWeight": ("ostro.core.load.planning", "Weight"),
    "WeightShape": ("ostro.core.load.sizes", "Shape"),
    "format_bytes": ("ostro.core.device", "format_bytes"),
    "parse_size": ("ostro.core.device", "parse_size"),
    "Saving": ("ostro.core.load.saving", "Saving"),
    "SavingProgress": ("ostro.core.load.saving", "SavingProgress"),
    "weight_slots": ("ostro.core.load.weights", "slots"),
    "WeightSlot": ("ostro.core.nn.linear", "Slot"),
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
    module, attribute = _LAZY[name]
    return getattr(import_module(module), attribute)
