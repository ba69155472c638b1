"""Describe a model before its weights are read: its config, modules, names, device and dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from ostro.core.config import ModelConfig, TextConfig
from ostro.core.errors import ConfigError, Unsupported, UsageError
from ostro.core.load import transformers_backend as body
from ostro.core.load.components import join
from ostro.core.load.container import Container
from ostro.core.load.names import Names
from ostro.core.load.open import identify, open_container
from ostro.core.load.quantize import QuantizationPlan, read_plan
from ostro.core.load.weights import slots, weigh
from ostro.core.nn import Model
from ostro.core.ops import Target
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, Settings, resolve

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "f32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "f16": torch.float16,
}

LONGEST = 2**20
"""The context where none is asked for, at most: configs promise more than tables have room for."""

MAX_SEQS = 2**16


@dataclass(frozen=True, kw_only=True)
class ModelOutline:
    """A checkpoint as its headers have it: what its model will be, of which no weight is read."""

    container: Container
    raw_config: Mapping[str, Any]
    architecture: Architecture
    config: ModelConfig
    model: Model
    names: Names
    space: str
    device: torch.device
    dtype: torch.dtype
    plan: QuantizationPlan | None

    def weigh(self) -> dict[Module, int]:
        """Bytes that the weights of each module will take."""
        model, names = self.model, self.names
        return weigh(model, self.container, names, self.dtype, space=self.space, plan=self.plan)


def outline(path: Path, settings: Settings, plugins: PluginManager) -> ModelOutline:
    """Describe the checkpoint at a local path.

    Raises an OstroError that names the file, tensor, field or plugin at fault.
    """
    container = open_container(path, plugins, dummy=settings.dummy_weights is not None)
    raw, architecture, space = identify(container, settings, plugins)
    check_settings(settings, architecture)
    container, raw = join(container, raw, architecture, settings, plugins)
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, raw, container, device)
    config, model_class, names = parts(architecture, raw, dtype, settings, plugins)
    check_sizes(config, container)
    model = model_class(config)
    plan = read_plan(settings, architecture.sensitive, names, list(slots(model)), plugins)
    return ModelOutline(
        container=container,
        raw_config=raw,
        architecture=architecture,
        config=config,
        model=model.eval(),
        names=names,
        space=space,
        device=device,
        dtype=dtype,
        plan=plan,
    )


def parts(
    architecture: Architecture,
    raw: Mapping[str, Any],
    dtype: torch.dtype,
    settings: Settings,
    plugins: PluginManager,
) -> tuple[ModelConfig, Callable[[ModelConfig], Model], Names]:
    """The config, the class of the model and the names of an architecture.

    Those of a body are made by its plugin; its class casts its weights itself, to `dtype`.
    """
    if not body.is_body(architecture):
        config = resolve(architecture.config).from_hf(raw, allow=tuple(settings.allow_config))
        names = resolve(architecture.names)(config) if architecture.names else Names()
        return config, resolve(architecture.model), names
    served = plugins.get("architectures", body.BODY)
    typed = {**raw, "dtype": str(dtype).removeprefix("torch.")}
    config = resolve(served.config).of_record(architecture, typed)
    return config, resolve(served.model), resolve(architecture.names or served.names)(config)


def check_settings(settings: Settings, architecture: Architecture) -> None:
    """Refuse what is asked for and would not be done."""
    if settings.task not in (None, *architecture.tasks):
        tasks = ", ".join(architecture.tasks)
        raise UsageError(f"--task {settings.task!r}: {architecture.name} does {tasks}")
    if not 1 <= settings.max_seqs <= MAX_SEQS:
        raise UsageError(f"--max-seqs {settings.max_seqs} is not within 1..{MAX_SEQS}")


def check_sizes(config: ModelConfig, container: Container) -> None:
    """Refuse sizes that the checkpoint cannot hold, before anything is made of them."""
    if not isinstance(config, TextConfig):
        return
    layers, d, held = config.num_hidden_layers, config.hidden_size, len(container.tensors)
    if layers > held:
        raise ConfigError(
            f"num_hidden_layers={layers}, but {container.path.name} holds only {held} tensors"
        )
    widest = max(config.intermediate_size, config.num_attention_heads * config.head_dim)
    weights = d * (config.vocab_size + layers * widest)
    nbytes = sum(info.nbytes for info in container.tensors.values())
    if weights > 8 * nbytes:
        raise ConfigError(
            f"the sizes in the config make {weights:.1e} weights, for which the {nbytes} bytes of "
            f"{container.path.name} are too few: hidden_size={d}, vocab_size={config.vocab_size}, "
            f"intermediate_size={config.intermediate_size}, num_hidden_layers={layers}, "
            f"num_attention_heads={config.num_attention_heads}, head_dim={config.head_dim}"
        )


def quantization(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the config says of its weights' formats. Raises ConfigError where it is no object."""
    found = raw.get("quantization_config") or {}
    if not isinstance(found, Mapping):
        raise ConfigError(f"config.json: quantization_config={found!r:.80} is not an object")
    return found


def choose_device(asked: str) -> torch.device:
    """The device asked for, or the best there is. Never another than asked."""
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise UsageError(f"--device {asked!r}: write cpu, cuda or cuda:1") from None
    if device.type not in ("cpu", "cuda"):
        raise Unsupported(f"--device {asked}: ostro runs on cpu and cuda (ROCm calls itself cuda)")
    seen = torch.get_device_module(device).device_count()
    if (device.index or 0) >= seen:
        raise Unsupported(f"--device {asked}: torch sees no such device; `ostro doctor` says more")
    return device


def choose_dtype(
    asked: str, raw: Mapping[str, Any], container: Container, device: torch.device
) -> torch.dtype:
    """What the model computes in: what is asked for, else what its checkpoint was saved in.

    Where the device has no fast arithmetic for that, float32.
    """
    if asked != "auto":
        if asked not in DTYPES:
            raise UsageError(f"--dtype {asked!r}: write one of {', '.join(sorted(DTYPES))}")
        return DTYPES[asked]
    stored = stored_dtype(raw, container)
    if device.type == "cuda":
        fast = stored != torch.bfloat16 or torch.cuda.get_device_capability(device) >= (8, 0)
        return stored if fast else torch.float16
    return stored if stored == torch.bfloat16 and cpu_has_bf16() else torch.float32


def stored_dtype(raw: Mapping[str, Any], container: Container) -> torch.dtype:
    """What the config says its weights are in, it or the one of its text part; else what most of
    their bytes are in, float32 where that is no plain type.
    """
    text = raw.get("text_config")
    for said in (raw, text if isinstance(text, Mapping) else {}):
        if (named := said.get("dtype") or said.get("torch_dtype")) is not None:
            return DTYPES.get(str(named), torch.float32)
    sizes: dict[str, int] = {}
    for info in container.tensors.values():
        sizes[info.format] = sizes.get(info.format, 0) + info.nbytes
    most = max(sizes, key=lambda name: sizes[name], default="F32")
    return DTYPES.get(most.lower(), torch.float32)


def cpu_has_bf16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def choose_context(asked: int | None, config: ModelConfig) -> int:
    """The context: what is asked for, at most what the model was made for; else LONGEST at most."""
    most = int(getattr(config, "max_position_embeddings", 2048))
    if asked is None:
        return min(most, LONGEST)
    if not 1 <= asked <= most:
        raise UsageError(f"--context {asked}: this model was made for 1..{most} positions")
    return asked


def target_of(device: torch.device, dtype: torch.dtype, settings: Settings) -> Target:
    """What the kernels of a model are chosen for."""
    return Target(
        device=device,
        dtype=dtype,
        deterministic=settings.deterministic,
        exact=settings.exact,
    )
