"""Load a model: describe its checkpoint, read its weights, place them, select kernels."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ostro.core.device import choose_device, compute_in_float32
from ostro.core.load import transformers_backend
from ostro.core.load.container import Container
from ostro.core.load.describe import ModelOutline, choose_context, explain_dtype, target_of
from ostro.core.load.heads import tied_names
from ostro.core.load.planning import OpenProbe, plan_model
from ostro.core.load.quantize import QuantizationPlan, read_plan
from ostro.core.load.weights import fill, weight_slots
from ostro.core.nn import Embedding, Linear, Model, Rope
from ostro.core.nn.experts import ExpertLinear
from ostro.core.ops import Choice, Op, Target
from ostro.core.placement.offload import with_storages
from ostro.core.placement.placement import Placement, choose_placement
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import ProgressCallback, Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LayerInfo:
    """Formats, bytes and kernel (with the reason for the choice) of one module's weights."""

    path: str
    formats: tuple[str, ...]
    nbytes: int
    kernel: str


@dataclass(kw_only=True)
class LoadedModel(ModelOutline):
    """A model with weights, finalized for its device, and everything else the engine needs.

    `draft` is the draft model of `--speculate`, or the assistant.
    """

    path: Path
    context: int
    identity: str
    placement: Placement
    explain: list[str] = field(default_factory=list)
    layers: list[LayerInfo] = field(default_factory=list)
    draft: LoadedModel | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all weights on the device, those of the draft model included."""
        own = sum(module.nbytes for module in with_storages(self.model.modules()))
        return own + (0 if self.draft is None else self.draft.nbytes)

    def close(self) -> None:
        """Close the files of the model and of its draft model."""
        self.container.close()
        if self.draft is not None:
            self.draft.close()


def load_model(
    path: Path,
    settings: Settings,
    plugins: PluginManager,
    progress: ProgressCallback | None = None,
    *,
    open_probe: OpenProbe | None = None,
    check: Callable[[ModelOutline], None] | None = None,
) -> LoadedModel:
    """Load the model at a local path; a planner of formats runs the model through `open_probe`.

    `check` may refuse the model before its weights are read. Raises an OstroError that names the
    file, tensor, field or plugin at fault.
    """
    found = plan_model(path, settings, plugins, open_probe, progress)
    if check is not None:
        check(found)
    compute_in_float32(found.device)
    model, container = found.model, found.container
    origin = plugins.origin("architectures", found.architecture.name)
    model.origin = f"architecture {found.architecture.name}" + (origin and f", {origin}")
    placement = choose_placement(
        settings.placement, model, found.device, choose_device, found.weigh, settings.memory
    )
    loaded = LoadedModel(
        **vars(replace(found, plan=None)),
        path=path,
        context=choose_context(settings.context, found.config),
        identity=identity(container, found.dtype, settings),
        placement=placement,
        explain=transformers_backend.explain(found.architecture, settings),
    )
    target = read_weights(loaded, found.plan, settings, plugins, progress)
    for head, table in found.own_heads:
        logger.warning(
            "%s: the config has tie_word_embeddings=true, but %s differs from %s and is used; set "
            "tie_word_embeddings to false",
            container.path.name,
            head,
            table,
        )
    loaded.explain += placement.install_transfers(target)
    return loaded


def read_weights(
    loaded: LoadedModel,
    plan: QuantizationPlan | None,
    settings: Settings,
    plugins: PluginManager,
    progress: ProgressCallback | None,
) -> Target:
    """Read the weights of a model, in the formats of the plan if there is one; place and finalize
    them. Returns the target of their kernels.
    """
    model, names, space = loaded.model, loaded.names, loaded.space
    reader = loaded.reader(plugins, placement=loaded.placement, plan=plan)
    tied = tied_names(model, names, space)
    fill(model, loaded.container, names, reader, space=space, progress=progress, tied=tied)
    loaded.explain += explain_dtype(loaded, settings)
    loaded.explain += plan.describe() if plan else ()
    loaded.placement.move()
    cast_biases(model, loaded.dtype)
    target = target_of(loaded.device, loaded.dtype, settings)
    finalize(loaded, target, loaded.placement, progress)
    return target


def requantize(
    loaded: LoadedModel,
    settings: Settings,
    plugins: PluginManager,
    progress: ProgressCallback | None = None,
    *,
    open_probe: OpenProbe | None = None,
) -> None:
    """Read the weights of a model again from its checkpoint, in the formats of `settings`.

    The model must not run meanwhile, and graphs captured before must not be replayed. The model's
    identity changes, so that no cached block of the old weights is reused.
    """
    sensitive, places = loaded.architecture.sensitive, list(weight_slots(loaded.model))
    plan = read_plan(settings, sensitive, loaded.names, places, plugins)
    if plan is not None and plan.planner is not None:
        # The dtype of the model may be another than the one that "auto" chooses.
        same = replace(settings, dtype=str(loaded.dtype).removeprefix("torch."))
        plan = plan_model(loaded.path, same, plugins, open_probe, progress).plan
    loaded.explain = transformers_backend.explain(loaded.architecture, settings)
    read_weights(loaded, plan, settings, plugins, progress)
    loaded.identity = identity(loaded.container, loaded.dtype, settings)


def cast_biases(model: Model, dtype: torch.dtype) -> None:
    """Cast the biases of linears to the model's dtype; norms stay in float32."""
    for module in model.modules():
        if isinstance(module, Linear) and module.bias is not None:
            module.bias.data = module.bias.data.to(dtype)


def finalize(
    loaded: LoadedModel,
    target: Target,
    placement: Placement | None = None,
    progress: ProgressCallback | None = None,
) -> None:
    """Finalize everything that depends on the device: weight layouts, rope tables, kernels.

    The first use of a native kernel compiles it. Appends the choices of kernels to
    `loaded.explain`.
    """
    placement = placement or Placement(loaded.model, target.device)
    reasons: Counter[str] = Counter()
    loaded.layers = []
    modules = list(loaded.model.named_modules())
    for done, (path, module) in enumerate(modules):
        if progress is not None:
            progress("compiling kernels", done, len(modules))
        here = replace(target, device=placement.device(module))
        if isinstance(module, Linear | Embedding | ExpertLinear):
            with placement.on_device(module):
                reason = module.finalize(here)
            reasons[f"{type(module).__name__.lower()}: {reason}"] += 1
            formats = tuple(dict.fromkeys(storage.format for storage in module.active_storages))
            info = LayerInfo(path=path, formats=formats, nbytes=module.nbytes, kernel=reason)
            loaded.layers.append(info)
        elif isinstance(module, Rope):
            module.finalize(loaded.context, here.device)
        for op in vars(module).values():
            if isinstance(op, Op):
                reasons[describe(op.select(here))] += 1
    loaded.explain += [f"{count} x {reason}" for reason, count in reasons.items()]


def describe(choice: Choice) -> str:
    return f"{choice.op}: {choice.kernel.name} ({choice.reason})"


def identity(container: Container, dtype: torch.dtype, settings: Settings) -> str:
    """A hash of the weights, their dtype and quantization: the root of prefix-cache keys."""
    options = (settings.quant, settings.topology, settings.exact)
    facts = [(i.name, i.shape, i.format, i.file) for i in container.tensors.values()]
    stamp = (container.path.resolve(), container.path.stat().st_mtime_ns, dtype, facts, options)
    return hashlib.blake2b(repr(stamp).encode(), digest_size=16).hexdigest()
