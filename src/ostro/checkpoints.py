"""Checkpoint formats: containers of named tensors, names of weights, and saving."""

from __future__ import annotations

from ostro.core.device import format_bytes, parse_size
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
from ostro.core.load.ggml import BY_NAME as GGML_BY_NAME
from ostro.core.load.ggml import TYPES as GGML_TYPES
from ostro.core.load.ggml import WITHDRAWN as GGML_WITHDRAWN
from ostro.core.load.ggml import GgmlType
from ostro.core.load.names import Named, Transform
from ostro.core.load.open import PROJECTOR
from ostro.core.load.planning import Planned as PlannedFormats
from ostro.core.load.planning import PlanRequest, Probe
from ostro.core.load.planning import Weight as PlannedWeight
from ostro.core.load.quantize import FLOAT as FLOAT_FORMAT
from ostro.core.load.quantize import Maker
from ostro.core.load.saving import Saving, refuse_existing
from ostro.core.load.saving import Told as SavingProgress
from ostro.core.load.saving import whole as atomic_path
from ostro.core.load.sizes import Shape as WeightShape
from ostro.core.load.weights import slots as weight_slots
from ostro.core.nn.linear import Slot as WeightSlot
from ostro.core.paths import resolve_path
from ostro.core.plugins.manager import PluginManager

__all__ = [
    "DTYPES",
    "FLOAT_FORMAT",
    "GGML_BY_NAME",
    "GGML_TYPES",
    "GGML_WITHDRAWN",
    "MAX_NAME",
    "PROJECTOR",
    "GgmlType",
    "JoinedContainer",
    "Maker",
    "MappedContainer",
    "MappedFile",
    "Named",
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
    "refuse_existing",
    "resolve_path",
    "tensor_fault",
    "weight_slots",
]
