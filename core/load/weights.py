"""Fill a model's slots with the tensors of a checkpoint; reject checkpoints that do not match.

Every slot needs its tensors and every tensor needs a slot: an error lists the first ten tensors
that are missing or left over. Tensors are read from the memory map one slot at a time, so that peak
memory is the weights plus one linear.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ostro.core.errors import CheckpointError
from ostro.core.load.container import Container
from ostro.core.load.names import FLOATS, HeadRows, Named, Names, StorageTransform, Unpermute, apply
from ostro.core.load.quantize import QuantizationPlan
from ostro.core.nn.embedding import Embedding
from ostro.core.nn.experts import ExpertLinear
from ostro.core.nn.linear import Linear, WeightSlot
from ostro.core.nn.storage import Storage, Stored
from ostro.core.placement.offload import move_to_host
from ostro.core.placement.patterns import ancestors
from ostro.core.placement.placement import Placement
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Quantizer, TensorInfo, resolve
from ostro.core.settings import ProgressCallback

MAX_LISTED = 10

KV_SCALES = re.compile(
    r"(.*\.)?([kvq]_(scale|zero_point)|kv_scale|prob_output_scale|(q|k|v|qkv)_proj\.output_scale)"
)
"""Names of scales for an FP8 cache of keys and values, by compressed-tensors, ModelOpt, AutoFP8,
Quark and vLLM. They are not used: ostro's caches of one byte have a scale per token and head.
"""

Rows = Unpermute | HeadRows
"""Transforms that permute whole rows."""

logger = logging.getLogger(__name__)


def weight_slots(model: Module, path: str = "") -> Iterator[WeightSlot]:
    """Every slot (weight or parameter) that a checkpoint must fill, in module order."""
    if isinstance(model, Linear | Embedding | ExpertLinear):
        yield from model.slots(path)
        return
    for name, parameter in model.named_parameters(recurse=False):
        full = f"{path}.{name}" if path else name
        yield WeightSlot(full, "tensor", tuple(parameter.shape), model, name)
    for name, child in model.named_children():
        yield from weight_slots(child, f"{path}.{name}" if path else name)


@dataclass(frozen=True)
class WeightReader:
    """Reads the tensors of a slot as a storage or a parameter.

    `settings` is the quantization config of the checkpoint. `broken` collects the names of tensors
    that contain NaN or Inf. `placement` overrides `device` per slot; `plan` quantizes floats.
    """

    container: Container
    plugins: PluginManager
    settings: Mapping[str, Any]
    device: torch.device
    dtype: torch.dtype
    broken: list[str] = field(default_factory=list)
    placement: Placement | None = None
    plan: QuantizationPlan | None = None

    def storage(self, slot: WeightSlot, named: Mapping[str, Named]) -> Storage:
        infos = {suffix: self.container.tensors[n.theirs] for suffix, n in named.items()}
        transform = storage_transform(named, infos)
        if transform is not None:
            stored_slot = replace(slot, shape=transform.stored_shape(slot.shape))
            read = {s: replace(n, transform=transform.stored) for s, n in named.items()}
            return transform.wrap(self.storage(stored_slot, read))
        quantizer = self.claimant(slot, infos)
        rows = row_order(named)
        if rows is not None:
            named = {suffix: replace(n, transform=None) for suffix, n in named.items()}
        codes = codes_of(infos)
        stored = Stored(
            tensors={s: self.tensor(n, infos[s], codes=s == codes) for s, n in named.items()},
            infos=infos,
            shape=slot.shape if rows is None else (rows.whole(slot.shape[0]), *slot.shape[1:]),
            settings=self.settings,
            device=self.device if self.placement is None else self.placement.device(slot.module),
            dtype=self.dtype,
        )
        storage = self.quantized(slot, stored) or resolve(quantizer.storage).read(stored)
        if rows is not None:
            storage = rearranged(storage, rows, slot, stored)
        if storage.shape != slot.shape:
            raise CheckpointError(
                f"{next(iter(infos.values())).file}: {slot.name} has shape {storage.shape}, but "
                f"the config requires {slot.shape}"
            )
        if self.placement is not None and self.placement.is_offloaded(slot.module):
            move_to_host(storage)
        return storage

    def quantized(self, slot: WeightSlot, stored: Stored) -> Storage | None:
        """A float weight in the format of the plan, or None if it is not quantized."""
        if self.plan is None or stored.infos.keys() != {"weight"}:
            return None
        weight = stored.tensors["weight"]
        if stored.infos["weight"].format not in FLOATS or tuple(weight.shape) != slot.shape:
            return None
        return self.plan.make(slot, weight.to(stored.device), self.dtype)

    def claimant(self, slot: WeightSlot, infos: Mapping[str, TensorInfo]) -> Quantizer:
        quantizer: Quantizer | None = self.plugins.claimant(
            "quantizers", lambda q: q.claims(infos, self.settings), slot.name
        )
        if quantizer is None:
            formats = (f"{suffix} ({info.format})" for suffix, info in sorted(infos.items()))
            raise CheckpointError(
                f"{slot.name} consists of {', '.join(formats)}, which no installed format reads; "
                "`ostro models` lists the formats"
            )
        return quantizer

    def tensor(self, named: Named, info: TensorInfo, *, codes: bool = False) -> Tensor:
        """A tensor after its transform; NaN and Inf are recorded, except in tensors of codes."""
        raw = self.container.read(named.theirs)
        packed = raw.dtype == torch.uint8 and info.format not in ("U8", "BOOL")
        if named.transform is not None and packed and not named.transform.packed:
            raise CheckpointError(
                f"{info.file}: {named.theirs} is {info.format}, which {named.transform} "
                "cannot permute; use a float file of this model"
            )
        if not codes and not ends_finite(raw):
            self.broken.append(named.theirs)
        return apply(named.transform, raw)


def storage_transform(
    named: Mapping[str, Named], infos: Mapping[str, TensorInfo]
) -> StorageTransform | None:
    """The transform of a quantized weight that applies to its storage instead of its tensors."""
    found = (n.transform for s, n in named.items() if infos[s].format not in FLOATS)
    return next((t for t in found if isinstance(t, StorageTransform)), None)


def row_order(named: Mapping[str, Named]) -> Rows | None:
    """The row permutation of a quantized weight of several tensors, or None.

    Only its format knows which axis of each tensor holds rows, so the storage is read first and
    permuted as a whole.
    """
    transforms = {n.transform for n in named.values()}
    if len(named) == 1 or not any(isinstance(t, Unpermute | HeadRows) for t in transforms):
        return None
    (transform,) = transforms
    return transform  # type: ignore[return-value]


def rearranged(storage: Storage, rows: Rows, slot: WeightSlot, stored: Stored) -> Storage:
    """Permute the rows of a storage. Raises CheckpointError if its format does not support it."""
    permuted = storage.permute_rows(rows.read)
    if permuted is None:
        raise stored.fault(
            f"is {storage.format}, whose rows cannot be permuted ({rows}); use another file of "
            "this model"
        )
    return permuted


def codes_of(infos: Mapping[str, TensorInfo]) -> str | None:
    """The suffix of a weight's codes: its largest tensor, or None if it has only one tensor.

    Some formats store codes with a float dtype, so they must not be checked for NaN.
    """
    return max(infos, key=lambda suffix: infos[suffix].nbytes) if len(infos) > 1 else None


def ends_finite(tensor: Tensor) -> bool:
    """Whether the first and last rows of floats are finite; checking all rows is too slow."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    rows = tensor.reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
    return all(bool(rows[i].float().isfinite().all()) for i in (0, -1))


def fill(
    model: Module,
    container: Container,
    names: Names,
    reader: WeightReader,
    *,
    space: str,
    progress: ProgressCallback | None = None,
    tied: Sequence[str] = (),
) -> None:
    """Fill every slot of the model. `tied` are tensors that a checkpoint may repeat; unused.

    Raises CheckpointError if tensors are missing, left over or have the wrong shape.
    """
    by_slot, singles, left = arrange(model, container, names, space)
    expected = list(weight_slots(model))
    filled = by_slot.keys() | singles.keys()
    refuse(container, expected, filled, [name for name in left if name not in tied])
    if any(map(KV_SCALES.fullmatch, left)):
        logger.info("%s: its scales of keys and values are not used", container.path.name)
    used = [*singles.values(), *(item for tensors in by_slot.values() for item in tensors.values())]
    total, done = sum(container.tensors[item.theirs].nbytes for item in used), 0
    for slot in expected:
        if slot.kind == "storage":
            tensors = by_slot[slot.name]
            slot.module.fill(slot, reader.storage(slot, tensors))  # type: ignore[operator]
        else:
            tensors = {"": singles[slot.name]}
            put(slot, tensors[""], reader)
        done += sum(container.tensors[n.theirs].nbytes for n in tensors.values())
        if progress is not None:
            progress("reading weights", done, total)
    if reader.broken:
        logger.warning(
            "%s: %d tensor(s) contain NaN or Inf, the output will be garbage; first: %s; download "
            "or convert it again",
            container.path.name,
            len(reader.broken),
            reader.broken[0],
        )


def arrange(
    model: Module, container: Container, names: Names, space: str
) -> tuple[dict[str, dict[str, Named]], dict[str, Named], list[str]]:
    """Assign tensors to slots: storages by prefix (slot -> suffix -> tensor), parameters by name.

    Also returns the names of unassigned tensors. Raises CheckpointError for duplicates.
    """
    named, left = names.read(container.tensors, space)
    kinds = {slot.name: slot.kind for slot in weight_slots(model)}
    by_slot: dict[str, dict[str, Named]] = defaultdict(dict)
    singles, seen = dict[str, Named](), dict[str, str]()
    for item in named:
        if seen.setdefault(item.name, item.theirs) != item.theirs:
            raise CheckpointError(
                f"{seen[item.name]} and {item.theirs} both map to {item.name}; the checkpoint "
                "contains it twice under different names"
            )
        if item.name not in kinds and KV_SCALES.fullmatch(item.theirs):
            left.append(item.theirs)
        elif kinds.get(item.name) == "tensor":
            singles[item.name] = item
        elif prefix := next((p for p in ancestors(item.name) if kinds.get(p) == "storage"), ""):
            by_slot[prefix][item.name.removeprefix(f"{prefix}.")] = item
        else:
            left.append(item.theirs)
    return by_slot, singles, left


def put(slot: WeightSlot, named: Named, reader: WeightReader) -> None:
    """Read a plain tensor into its parameter, or into its part of a fused bias."""
    tensor = reader.tensor(named, reader.container.tensors[named.theirs])
    if tuple(tensor.shape) != slot.shape:
        raise CheckpointError(
            f"{reader.container.path.name}: {named.theirs} has shape {tuple(tensor.shape)}, but "
            f"the config requires {slot.shape}"
        )
    if isinstance(slot.module, Linear):
        slot.module.fill(slot, tensor)
        return
    getattr(slot.module, slot.part).data.copy_(tensor)


def refuse(
    container: Container, expected: Iterable[WeightSlot], filled: Set[str], left: list[str]
) -> None:
    """Raise CheckpointError for slots that are not filled, and for `left`, tensors without one,
    except scales of a cache.
    """
    left = [name for name in left if not KV_SCALES.fullmatch(name)]
    missing = [slot.name for slot in expected if slot.name not in filled]
    if not missing and not left:
        return
    lines = [f"{container.path.name}: the checkpoint does not match the architecture"]
    for title, names in (("missing", missing), ("left over", left)):
        if names:
            more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
            lines.append(f"{title}: {', '.join(names[:MAX_LISTED])}{more}")
    raise CheckpointError("; ".join(lines))
