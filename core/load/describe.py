"""Describe a model before its weights are read: its config, modules, names, device and dtype."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from ostro.core.config import ModelConfig, TextConfig
from ostro.core.device import choose_device
from ostro.core.errors import ConfigError, UsageError
from ostro.core.load import bare, transformers_backend
from ostro.core.load.components import join
from ostro.core.load.container import Container
from ostro.core.load.heads import untie_own_heads
from ostro.core.load.multi_token import HEADS, add_head
from ostro.core.load.names import FLOATS, Named, Names
from ostro.core.load.open import identify, open_container
from ostro.core.load.quantize import QuantizationPlan, read_plan
from ostro.core.load.weights import WeightReader, arrange, weight_slots
from ostro.core.nn import Model
from ostro.core.ops import Target
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, resolve
from ostro.core.settings import Settings

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

MAX_DEFAULT_CONTEXT = 2**20
"""Limit of the context without --context: some configs state more than rope tables can hold."""

MAX_SEQS = 2**16


@dataclass(kw_only=True)
class ModelOutline:
    """A model described from the headers of its checkpoint, on the meta device, without weights.

    `own_heads` are heads that the config ties to an embedding and the checkpoint does not: names of
    their tensors and of the embeddings'.
    """

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
    own_heads: Sequence[tuple[str, str]] = ()

    def arrange(self) -> tuple[dict[str, dict[str, Named]], dict[str, Named], list[str]]:
        """Assign the tensors of the checkpoint to slots; see `weights.arrange`."""
        return arrange(self.model, self.container, self.names, self.space)

    def reader(self, plugins: PluginManager, **options: Any) -> WeightReader:
        """A reader of the weights, as floats by default; `options` are fields of `WeightReader`."""
        options = {"device": self.device, "dtype": self.dtype, **options}
        return WeightReader(self.container, plugins, quantization(self.raw_config), **options)

    def weigh(self) -> dict[Module, int]:
        """Estimated bytes of the weights of each module; floats in `dtype` or the plan's format."""
        by_slot, singles, _ = self.arrange()
        found: dict[Module, int] = defaultdict(int)
        for slot in weight_slots(self.model):
            items = [*by_slot.get(slot.name, {}).values(), *filter(None, [singles.get(slot.name)])]
            for info in (self.container.tensors[item.theirs] for item in items):
                floats = info.format in FLOATS
                nbytes = prod(info.shape) * self.dtype.itemsize if floats else info.nbytes
                if floats and self.plan is not None and slot.kind == "storage":
                    nbytes = self.plan.nbytes(slot) or nbytes
                found[slot.module] += nbytes
        return found


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
    record = plugins.get("architectures", architecture.name)
    headless = space == "hub" and bare.is_headless(record, container, raw)
    model = bare.build(config, model_class) if headless else model_class(config)
    if headless and "text" not in architecture.tasks:
        raw = bare.bare_class(raw)
    if headless and bare.is_bare(container):
        container, names = bare.add_prefix(model, container, names)
    if settings.speculate == HEADS:
        names = add_head(model, config, architecture, container, space)
    own_heads = untie_own_heads(model, container, names, space)
    plan = read_plan(settings, architecture.sensitive, names, list(weight_slots(model)), plugins)
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
        own_heads=own_heads,
    )


def parts(
    architecture: Architecture,
    raw: Mapping[str, Any],
    dtype: torch.dtype,
    settings: Settings,
    plugins: PluginManager,
) -> tuple[ModelConfig, Callable[[ModelConfig], Model], Names]:
    """The config, the model class and the names of an architecture.

    For the transformers backend, its plugin makes all three, and its model class casts weights to
    `dtype` itself.
    """
    if not transformers_backend.is_body(architecture):
        config = resolve(architecture.config).from_hf(raw, allow=tuple(settings.allow_config))
        names = resolve(architecture.names)(config) if architecture.names else Names()
        return config, resolve(architecture.model), names
    backend = plugins.get("architectures", transformers_backend.BODY)
    typed = {**raw, "dtype": str(dtype).removeprefix("torch.")}
    config = resolve(backend.config).of_record(architecture, typed)
    return config, resolve(backend.model), resolve(architecture.names or backend.names)(config)


def check_settings(settings: Settings, architecture: Architecture) -> None:
    """Raise UsageError for settings that the architecture does not support."""
    if settings.task not in (None, *architecture.tasks):
        tasks = ", ".join(architecture.tasks)
        raise UsageError(f"--task {settings.task!r}: {architecture.name} supports {tasks}")
    if not 1 <= settings.max_seqs <= MAX_SEQS:
        raise UsageError(f"--max-seqs {settings.max_seqs}: expected 1..{MAX_SEQS}")


def check_sizes(config: ModelConfig, container: Container) -> None:
    """Raise ConfigError for sizes too large for the checkpoint, before memory is allocated."""
    if not isinstance(config, TextConfig):
        return
    layers, d, count = config.num_hidden_layers, config.hidden_size, len(container.tensors)
    if layers > count:
        raise ConfigError(
            f"num_hidden_layers={layers}, but {container.path.name} has only {count} tensors"
        )
    widest = max(config.intermediate_size, config.num_attention_heads * config.head_dim)
    weights = d * (config.vocab_size + layers * widest)
    nbytes = sum(info.nbytes for info in container.tensors.values())
    if weights > 8 * nbytes:
        raise ConfigError(
            f"the sizes in the config require {weights:.1e} weights, too many for the {nbytes} "
            f"bytes of {container.path.name}: hidden_size={d}, vocab_size={config.vocab_size}, "
            f"intermediate_size={config.intermediate_size}, num_hidden_layers={layers}, "
            f"num_attention_heads={config.num_attention_heads}, head_dim={config.head_dim}"
        )


def quantization(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `quantization_config` of the config, or {}. Raises ConfigError if it is not an object."""
    found = raw.get("quantization_config") or {}
    if not isinstance(found, Mapping):
        raise ConfigError(f"config.json: quantization_config={found!r:.80} is not an object")
    return found


def choose_dtype(
    name: str, raw: Mapping[str, Any], container: Container, device: torch.device
) -> torch.dtype:
    """The compute dtype: the one named, or for "auto" the checkpoint's.

    On CUDA, "auto" computes in bfloat16 in the place of float32, and in float16 on devices without
    bfloat16, if `open_weights` finds no overflow; on CPUs without fast bfloat16 in float32.
    """
    if name != "auto":
        if name not in DTYPES:
            raise UsageError(f"--dtype {name!r}: expected one of {', '.join(sorted(DTYPES))}")
        return DTYPES[name]
    stored = stored_dtype(raw, container)
    if device.type == "cuda":
        has_bf16 = torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if has_bf16 and stored != torch.float16 else torch.float16
    return stored if stored == torch.bfloat16 and cpu_has_bf16() else torch.float32


def explain_dtype(found: ModelOutline, settings: Settings) -> list[str]:
    """The line of --explain about a dtype that "auto" chose in the place of the checkpoint's."""
    stored = stored_dtype(found.raw_config, found.container)
    if settings.dtype != "auto" or found.dtype == stored:
        return []
    used, replaced = (str(dtype).removeprefix("torch.") for dtype in (found.dtype, stored))
    return [f"dtype: {used} in the place of {replaced}; --dtype chooses another"]


def stored_dtype(raw: Mapping[str, Any], container: Container) -> torch.dtype:
    """The dtype in the config or its text_config, else the format of most of the bytes.

    Anything but a float dtype (a quantized format) counts as float32.
    """
    text = raw.get("text_config")
    for config in (raw, text if isinstance(text, Mapping) else {}):
        if (name := config.get("dtype") or config.get("torch_dtype")) is not None:
            return DTYPES.get(str(name), torch.float32)
    sizes: dict[str, int] = {}
    for info in container.tensors.values():
        sizes[info.format] = sizes.get(info.format, 0) + info.nbytes
    most = max(sizes, key=lambda name: sizes[name], default="F32")
    return DTYPES.get(most.lower(), torch.float32)


def cpu_has_bf16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def choose_context(requested: int | None, config: ModelConfig) -> int:
    """The context length: `requested`, or the model's limit up to `MAX_DEFAULT_CONTEXT`.

    Raises UsageError if `requested` exceeds the model's limit.
    """
    fallback = getattr(config, "max_position_embeddings", 2048)
    limit = int(getattr(config, "context_limit", fallback))
    if requested is None:
        return min(limit, MAX_DEFAULT_CONTEXT)
    if not 1 <= requested <= limit:
        raise UsageError(f"--context {requested}: this model supports 1..{limit} positions")
    return requested


def target_of(device: torch.device, dtype: torch.dtype, settings: Settings) -> Target:
    """The target for which the kernels of a model are selected."""
    return Target(
        device=device, dtype=dtype, deterministic=settings.deterministic, exact=settings.exact
    )
