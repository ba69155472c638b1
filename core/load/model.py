"""Load a model: find it, say what it is, fill it, choose its kernels."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from ostro.core.config import ModelConfig, TextConfig
from ostro.core.errors import ConfigError, Unsupported, UsageError
from ostro.core.load import transformers_backend as body
from ostro.core.load.budget import read_budget
from ostro.core.load.components import join
from ostro.core.load.container import Container
from ostro.core.load.names import Names
from ostro.core.load.open import identify, open_container
from ostro.core.load.quantize import QuantizationPlan, read_plan
from ostro.core.load.weights import Progress, WeightReader, fill, slots, weigh
from ostro.core.nn import Embedding, Head, Linear, Model, Rope
from ostro.core.nn.experts import Stack
from ostro.core.ops import Choice, Op, Target
from ostro.core.placement.placement import Placement, choose_placement
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

logger = logging.getLogger(__name__)

LONGEST = 2**20
"""The context where none is asked for, at most: configs promise more than tables have room for."""

MAX_SEQS = 2**16


@dataclass(frozen=True, kw_only=True)
class LayerInfo:
    """How the weights of one module lie and multiply: `formats` of its parts, `kernel` and why."""

    path: str
    formats: tuple[str, ...]
    nbytes: int
    kernel: str


@dataclass
class LoadedModel:
    """A model that is filled and finalized for its device, with the facts that the engine needs."""

    model: Model
    config: ModelConfig
    raw_config: Mapping[str, Any]
    architecture: Architecture
    path: Path
    container: Container
    names: Names
    space: str
    device: torch.device
    dtype: torch.dtype
    context: int
    identity: str
    placement: Placement
    explain: list[str] = field(default_factory=list)
    layers: list[LayerInfo] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights on the device."""
        weights = (m for m in self.model.modules() if isinstance(m, Linear | Embedding | Stack))
        return sum(module.nbytes for module in weights)


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
    """Look at the checkpoint at a local path; where --quant is a budget, measure how to spend it.

    Raises as `load_model`.
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
    found = ModelOutline(
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
    if (budget := read_budget(settings.quant)) is None:
        return found
    from ostro.core.load.spending import spend  # which loads models itself

    return replace(found, plan=spend(found, budget, path, settings, plugins))


def load_model(
    path: Path, settings: Settings, plugins: PluginManager, progress: Progress | None = None
) -> LoadedModel:
    """Load the model at a local path.

    Raises an OstroError that names the file, tensor, field or plugin at fault.
    """
    found = outline(path, settings, plugins)
    model, container, dtype = found.model, found.container, found.dtype
    context = choose_context(settings.context, found.config)
    placement = choose_placement(
        settings.placement, model, found.device, choose_device, found.weigh, settings.memory
    )
    loaded = LoadedModel(
        model=model,
        config=found.config,
        raw_config=found.raw_config,
        architecture=found.architecture,
        path=path,
        container=container,
        names=found.names,
        space=found.space,
        device=found.device,
        dtype=dtype,
        context=context,
        identity=identity(container, dtype, settings),
        placement=placement,
        explain=body.explain(found.architecture, settings),
    )
    read_weights(loaded, found.plan, plugins, progress)
    compare_tied(model, container, found.names, found.space)
    placement.move()
    cast_biases(model, dtype)
    target = target_of(loaded, settings)
    finalize(loaded, target, placement)
    loaded.explain += placement.mark(target)
    return loaded


def target_of(loaded: LoadedModel | ModelOutline, settings: Settings) -> Target:
    """What the choice of the kernels of a model depends on."""
    return Target(
        device=loaded.device,
        dtype=loaded.dtype,
        deterministic=settings.deterministic,
        exact=settings.exact,
    )


def read_weights(
    loaded: LoadedModel,
    plan: QuantizationPlan | None,
    plugins: PluginManager,
    progress: Progress | None = None,
) -> None:
    """Fill the slots of a model from its container, brought to the formats of a plan."""
    reader = WeightReader(
        loaded.container,
        plugins,
        quantization(loaded.raw_config),
        loaded.device,
        loaded.dtype,
        placement=loaded.placement,
        plan=plan,
    )
    fill(
        loaded.model,
        loaded.container,
        loaded.names,
        reader,
        space=loaded.space,
        progress=progress,
        tied=tied_names(loaded.model, loaded.names, loaded.space),
    )
    loaded.explain += plan.told() if plan else ()


def requantize(
    loaded: LoadedModel,
    settings: Settings,
    plugins: PluginManager,
    progress: Progress | None = None,
) -> None:
    """Read the weights of a model again, in the formats that `settings` ask for now.

    From its checkpoint, not from the few bits that it had, and in place, one weight at a time.
    Nothing may run meanwhile; graphs captured before are void. Its name for block keys changes.
    """
    sensitive, places = loaded.architecture.sensitive, list(slots(loaded.model))
    plan = read_plan(settings, sensitive, loaded.names, places, plugins)
    if read_budget(settings.quant) is not None:
        plan = outline(loaded.path, settings, plugins).plan
    loaded.explain = body.explain(loaded.architecture, settings)
    read_weights(loaded, plan, plugins, progress)
    loaded.placement.move()
    cast_biases(loaded.model, loaded.dtype)
    finalize(loaded, target_of(loaded, settings), loaded.placement)
    loaded.identity = identity(loaded.container, loaded.dtype, settings)


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
    if settings.revision and Path(settings.reference or "").exists():
        raise UsageError(
            f"--revision {settings.revision}: files on this machine have none; leave it out"
        )
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


def tied_names(model: Model, names: Names, space: str) -> list[str]:
    """Heads that share the embedding's storage: a checkpoint may repeat their weight."""
    heads = [n for n, m in model.named_modules() if isinstance(m, Head) and m.tied]
    theirs = [names.write(f"{name}.weight", space).theirs for name in heads]
    return [*theirs, *(f"{name}.weight" for name in heads), *["output.weight"] * bool(heads)]


def compare_tied(model: Model, container: Container, names: Names, space: str) -> None:
    """Warn where a file holds a head of its own that is not the embedding it is tied to."""
    paths = {module: path for path, module in model.named_modules()}
    for head in [module for module in paths if isinstance(module, Head) and module.tied]:
        pair = [names.write(f"{paths[m]}.weight", space).theirs for m in (head, *head.tied)]
        if not all(name in container.tensors for name in pair):
            continue
        ours, theirs = (container.read(name) for name in pair)
        if ours.shape == theirs.shape and torch.equal(ours[[0, -1]], theirs[[0, -1]]):
            continue
        logger.warning(
            "%s: %s differs from %s, which is used in its place, as tie_word_embeddings says; if "
            "answers are noise, set it to false in the config",
            container.path.name,
            *pair,
        )


def cast_biases(model: Model, dtype: torch.dtype) -> None:
    """Biases compute in the model's dtype; norms stay in float32."""
    for module in model.modules():
        if isinstance(module, Linear) and module.bias is not None:
            module.bias.data = module.bias.data.to(dtype)


def finalize(loaded: LoadedModel, target: Target, placement: Placement | None = None) -> None:
    """Fix everything that depends on the device: packing, tables, kernels; note the choices."""
    placement = placement or Placement(loaded.model, target.device)
    reasons: dict[str, int] = {}
    loaded.layers = []
    for path, module in loaded.model.named_modules():
        here = replace(target, device=placement.device(module))
        if isinstance(module, Linear | Embedding | Stack):
            with placement.lent(module):
                reason = module.finalize(here)
            note(reasons, f"{type(module).__name__.lower()}: {reason}")
            formats = tuple(dict.fromkeys(storage.format for storage in module.held))
            loaded.layers.append(
                LayerInfo(path=path, formats=formats, nbytes=module.nbytes, kernel=reason)
            )
        elif isinstance(module, Rope):
            module.finalize(loaded.context, here.device)
        for op in vars(module).values():
            if isinstance(op, Op):
                note(reasons, describe(op.select(here)))
    loaded.explain += [f"{count} x {reason}" for reason, count in reasons.items()]


def note(reasons: dict[str, int], reason: str) -> None:
    reasons[reason] = reasons.get(reason, 0) + 1


def describe(choice: Choice) -> str:
    return f"{choice.op}: {choice.kernel.name} ({choice.reason})"


def identity(container: Container, dtype: torch.dtype, settings: Settings) -> str:
    """A name for these weights as they compute: what roots the keys of their K/V."""
    asked = (settings.quant, settings.topology, settings.exact)
    facts = [(i.name, i.shape, i.format, i.file) for i in container.tensors.values()]
    stamp = (container.path.resolve(), container.path.stat().st_mtime_ns, dtype, facts, asked)
    return hashlib.blake2b(repr(stamp).encode(), digest_size=16).hexdigest()
