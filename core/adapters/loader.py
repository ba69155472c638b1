"""The adapter loader: finds, reads, checks and packs an adapter for one model."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ostro.core.adapters.adapter import LoadedAdapter
from ostro.core.adapters.delta import PAGE, AdapterDelta, Factors, pages_of
from ostro.core.adapters.mixture_table import SPECIAL, WIDTH
from ostro.core.adapters.pool import AdapterPool
from ostro.core.adapters.targets import AdapterTargets, TargetResolver, describe_unmatched
from ostro.core.adapters.weights import (
    AdapterReader,
    AdapterSource,
    AdapterWeights,
    LowRank,
    no_member,
)
from ostro.core.device import HOST
from ostro.core.errors import (
    AdapterError,
    AdapterForbidden,
    AdapterLimit,
    AdapterNotFound,
    ModelNotFound,
    OstroError,
)
from ostro.core.failure import ordinary_errors
from ostro.core.load.describe import target_of
from ostro.core.load.open import open_container
from ostro.core.nn.experts import ExpertLinear
from ostro.core.nn.storage import Storage, Stored
from ostro.core.paths import read_regular, resolve_path
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Files, TensorInfo, resolve
from ostro.core.results import describe_value
from ostro.core.settings import Settings
from ostro.core.tokenizer import Tokenizer, load_tokenizer

log = logging.getLogger(__name__)

CONFIG = "adapter_config.json"
JSON_BYTES = 10_000_000
"""Largest JSON file that is parsed: adapters come from strangers."""

TOKENIZERS = ("tokenizer.json", "vocab.json")
"""JSON files that are not parsed: no plugin needs them, and they are large."""


@dataclass(frozen=True)
class AdapterLoader:
    """Loads adapters for one model. `path` and `metadata` are those of the model's files."""

    path: Path
    metadata: Mapping[str, Any]
    resolver: TargetResolver
    adapter_pool: AdapterPool
    plugins: PluginManager
    settings: Settings

    def read(self, reference: str) -> LoadedAdapter:
        """Load an adapter by its reference, in the reader thread. Raises AdapterError."""
        weights = read_weights(locate(reference, self.settings, self.plugins), self.plugins)
        adapter = self.load(weights)
        if self.adapter_pool.target.device == HOST:
            # Here, and not in the engine's thread, where it would delay steps.
            self.place(adapter)
        return adapter

    def place(self, adapter: LoadedAdapter) -> None:
        """Allocate the memory of an adapter on the devices of its modules, once.

        GPUs are used by the engine's thread alone: a call of another one may spoil a capture.
        """
        for delta, tensor in adapter.unplaced.items():
            if not is_base(delta.module, tensor):
                adapter.whole[delta] = self.storage(delta.module, tensor)
        adapter.unplaced = {}
        for delta in adapter.deltas:
            delta.allocate()
        adapter.packed = {delta: delta.pin(packed) for delta, packed in adapter.packed.items()}
        for member in adapter.members:
            self.place(member)

    def load(self, weights: AdapterWeights, *, is_member: bool = False) -> LoadedAdapter:
        """Check an adapter and pack it in pages. Raises AdapterError.

        X-LoRA scales the parts of a fused linear independently, so each part of a member has its
        own set of pages.
        """
        targets = self.resolver.resolve(weights)
        self.check(weights, targets)
        has_gains = any(has_gain(factors) for factors in targets.factors.values())
        if is_member and (targets.whole or targets.biases or has_gains):
            raise AdapterError(
                "a member of an X-LoRA adapter has DoRA, biases or whole weights; members must be "
                "plain LoRA"
            )
        deltas = {module: self.adapter_pool.delta(module) for module in targets.modules}
        count = pages_of(f.rank for each in targets.factors.values() for f in each.values())
        sets = max((len(d.parts) for d in deltas.values()), default=1) if is_member else 1
        members = [self.load(member, is_member=True) for member in weights.members]
        adapter = LoadedAdapter(
            # A member has other pages than the same adapter alone: the pool keeps both.
            generation=weights.generation + (", member" if is_member else ""),
            kind=weights.kind,
            rank=max([0, *(f.rank for f in weights.weights.values()), *(m.rank for m in members)]),
            pages=count * sets,
            sets=sets,
            base=weights.base,
            # On the host: only copies are left for the engine's thread.
            packed={
                deltas[module]: deltas[module].pack(factors, count * sets, sets)
                for module, factors in targets.factors.items()
            },
            factors={deltas[m]: each for m, each in targets.factors.items() if has_gain(each)},
            biases={deltas[module]: biases for module, biases in targets.biases.items()},
            unplaced={deltas[module]: tensor for module, tensor in targets.whole.items()},
            invocation=weights.invocation,
            template=weights.template,
            members=members,
            mixer=weights.mixer,
            routes=self.routes(weights),
            matched=[*targets.matched, *(name for member in members for name in member.matched)],
            norms={name: norm(f) for name, f in weights.weights.items()}
            | {f"{i}: {n}": x for i, m in enumerate(members) for n, x in m.norms.items()},
        )
        self.check_size(adapter)
        return adapter

    def routes(self, weights: AdapterWeights) -> dict[tuple[AdapterDelta, int], int]:
        """The layer of a mixer's scalings for each part (by its index) of a delta."""
        found: dict[tuple[AdapterDelta, int], int] = {}
        if weights.mixer is None:
            return found
        for name, layer in weights.mixer.layers.items():
            for slot, _ in self.resolver.find(name, weights.space):
                delta = self.adapter_pool.delta(slot.module)
                found[delta, list(delta.parts).index(slot.part)] = layer
        return found

    def check(self, weights: AdapterWeights, targets: AdapterTargets) -> None:
        """Raise AdapterError for an adapter that fits the model only in part, or whose special
        tokens or rank do not.
        """
        check_targets(weights, targets)
        self.check_tokens(weights.tokens)
        rank = max((f.rank for f in weights.weights.values()), default=0)
        if rank > self.settings.max_adapter_rank:
            raise AdapterLimit(
                f"the adapter has rank {rank}, the limit is {self.settings.max_adapter_rank}; "
                "start with a larger --max-adapter-rank"
            )

    def check_tokens(self, tokens: Mapping[str, int]) -> None:
        """Raise AdapterError if special tokens of the adapter have other ids in the base."""
        if not tokens or self.tokenizer is None:
            return
        for token, id in tokens.items():
            if (found := self.tokenizer.id(token)) != id:
                raise AdapterError(
                    f"the adapter has {token!r:.60} as token {id}, the base has "
                    f"{'no such token' if found is None else found}; tokens cannot be added: merge "
                    "the adapter into a model with a tokenizer of its own"
                )

    # Loaded for the first adapter with special tokens: most have none.
    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The base's tokenizer; None if its files have none."""
        try:
            header = self.metadata if self.path.suffix == ".gguf" else None
            return load_tokenizer(self.path, metadata=header, plugins=self.plugins)
        except OstroError:
            return None

    def check_size(self, adapter: LoadedAdapter) -> None:
        """Raise AdapterLimit for an adapter that the empty pool has no room for."""
        if adapter.all_pages > min(WIDTH, self.adapter_pool.size):
            most = min(WIDTH, self.adapter_pool.size) * PAGE
            raise AdapterLimit(
                f"the adapter needs {adapter.all_pages * PAGE} rank rows, there is room for {most};"
                " start with more --adapter-slots, or use a smaller rank"
            )

    def storage(self, module: Any, tensor: Tensor) -> Storage:
        """The storage of a whole weight, on the device and in the dtype of the one it replaces."""
        replaced = module.active_storages[0]
        info = TensorInfo(name="weight", shape=tuple(tensor.shape), format="F32", nbytes=0)
        stored = Stored(
            tensors={"weight": tensor},
            infos={"weight": info},
            shape=tuple(tensor.shape),
            device=replaced.device,
            dtype=replaced.dtype,
        )
        dense = resolve(self.plugins.get("quantizers", "dense").storage)
        storage: Storage = dense.read(stored)
        target = target_of(replaced.device, replaced.dtype, self.settings)
        storage.finalize(target, embedding=True)
        return storage


def has_gain(factors: Factors) -> bool:
    """Whether the factors of a module have a DoRA magnitude or a bias."""
    return any(f.magnitude is not None or f.bias is not None for f in factors.values())


def is_base(module: Any, tensor: Tensor) -> bool:
    """Whether a whole weight equals the base's: PEFT saves both beside factors of embeddings."""
    (storage,) = module.active_storages
    weight = storage.dequantize().view(storage.shape)
    return bool(torch.equal(weight, tensor.to(weight)))


def locate(reference: str, settings: Settings, plugins: PluginManager) -> Path:
    """The folder or file of a reference. Raises AdapterNotFound."""
    path = Path(reference).expanduser()
    try:
        if path.exists():
            return path
        return plugins.locate(reference, settings, kind="adapter")
    except (ModelNotFound, OSError, ValueError) as error:
        raise AdapterNotFound(str(error)) from None


def read_weights(path: Path, plugins: PluginManager, *, is_member: bool = False) -> AdapterWeights:
    """Read the adapter at a path with the plugin that claims it. Raises AdapterError.

    A member of another adapter must not have members itself.
    """
    root = path if path.is_dir() else path.parent
    names = sorted(e.name for e in path.iterdir()) if path.is_dir() else [path.name]
    config = read_config(root / CONFIG) if CONFIG in names else {}
    known = read_json_files(root, names) | ({CONFIG: config} if config else {})
    files = Files(root=root, names=tuple(names), json=known)
    record = plugins.claimant("adapters", lambda a: a.claims(files, config), path.name)
    if record is None:
        raise AdapterError(
            f"{path.name}: no installed plugin reads this adapter: neither its {CONFIG} nor its "
            "files are in a known format; install the plugin for its format"
        )
    source = AdapterSource(
        files=files,
        config=config,
        open=lambda name: open_container(root / name, plugins),
        member=no_member if is_member else (lambda path: read_member(root, path, plugins)),
    )
    origin = plugins.origin("adapters", record.name)
    try:
        with ordinary_errors():
            read: AdapterReader = resolve(record.load)
            weights = read(source)
    except OstroError:
        raise
    except Exception as error:
        log.error("%s cannot be read: %s", path.name, plugins.explain(error), exc_info=error)
        # Only the type: the text of an unexpected error may contain paths of the server.
        raise AdapterError(
            f"{path.name}: {origin} raised {type(error).__name__}; see the log"
        ) from error
    check_read(weights, path.name, origin)
    return weights


def check_read(weights: object, file: str, origin: str) -> None:
    """Raise AdapterError unless a plugin has read weights whose tensors are floats."""
    if not isinstance(weights, AdapterWeights):
        value = describe_value(weights)
        raise AdapterError(f"{file}: {origin} returned {value}, expected AdapterWeights")
    for name, tensor in weights.tensors():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            value = describe_value(tensor)
            raise AdapterError(f"{file}: {origin} returned {value} as {name}, expected floats")


def read_member(root: Path, path: str, plugins: PluginManager) -> AdapterWeights:
    """Read a member of the adapter in `root`, from a folder in it or beside it.

    Raises AdapterForbidden for any other folder, and for `root` itself.
    """
    # Both with links resolved: a link in the folder must not lead out of it.
    folder = root.resolve()
    try:
        found = resolve_path(folder / path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AdapterForbidden(
            f"the path of the member {path!r:.200} cannot be resolved: {reason}"
        ) from None
    if found == folder or folder.parent not in found.parents:
        raise AdapterForbidden(
            f"the member {path!r:.200} is outside the adapter's folder and those beside it; copy "
            "it into the folder, under its name in the config"
        )
    if not found.is_dir():
        raise AdapterNotFound(
            f"the member {path!r:.200} is not a folder in {folder.name} or beside it"
        )
    return read_weights(found, plugins, is_member=True)


def read_json_files(root: Path, names: Sequence[str]) -> dict[str, Any]:
    """The parsed JSON files of a folder by name, without invalid ones and tokenizers."""
    found: dict[str, Any] = {}
    for name in names:
        path = root / name
        if name.endswith(".json") and name not in (CONFIG, *TOKENIZERS) and path.is_file():
            try:
                found[name] = read_config(path)
            except AdapterError:
                continue  # a plugin that needs the file reports it as missing
    return found


def read_config(path: Path) -> Mapping[str, Any]:
    """Parse a JSON file. Raises AdapterError unless it holds an object."""
    try:
        found = json.loads(read_regular(path, JSON_BYTES))
    except OSError as error:
        raise AdapterError(f"{path.name} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{path.name} is not valid JSON: {error!s:.200}") from None
    if not isinstance(found, dict):
        raise AdapterError(f"{path.name} holds {type(found).__name__}, expected an object")
    return found


def norm(factors: LowRank) -> float:
    """The Frobenius norm of scale * B A, for stacked experts of all of them, plus the bias's."""
    a, b = factors.a.float(), factors.b.float()
    # |B A|^2 = sum((B^T B) * (A A^T)): [r, r] products instead of the [n, k] matrix.
    square = ((b.mT @ b) * (a @ a.mT)).sum()
    extra = [t.float().norm() for t in (factors.bias,) if t is not None]
    return abs(factors.scale) * float(square.clamp(min=0).sqrt()) + float(sum(extra))


def check_targets(weights: AdapterWeights, targets: AdapterTargets) -> None:
    """Raise AdapterError if weights of the adapter are not in the model, or it has none."""
    if targets.unmatched:
        raise AdapterError(
            f"the model has no weights named {describe_unmatched(targets.unmatched)}; the adapter "
            f"was made for {weights.base or 'another model'}"
        )
    if not targets.modules and not weights.members:
        raise AdapterError("the adapter changes nothing: it holds no weights")


def check_whole_weights(wholes: Sequence[Collection[object]], scales: Sequence[float]) -> None:
    """Raise AdapterError for whole weights that cannot be mixed; `wholes` are the modules with
    whole weights of each adapter, `scales` the adapters' scales.
    """
    seen: set[object] = set()
    for whole, scale in zip(wholes, scales, strict=True):
        if whole and scale != 1:
            raise AdapterError("an adapter with whole weights (modules_to_save) must have scale 1")
        if seen.intersection(whole):
            raise AdapterError("two of these adapters replace the same weight; use one of them")
        seen.update(whole)


def check_mixture(adapters: Sequence[LoadedAdapter], scales: Sequence[float]) -> None:
    """Raise AdapterError for a mixture that cannot be computed."""
    if sum(adapter.all_pages for adapter in adapters) > WIDTH:
        raise AdapterLimit(f"these adapters have more than {WIDTH * PAGE} rank rows together")
    special = [adapter for adapter in adapters if adapter.special]
    if len(special) > SPECIAL:
        raise AdapterLimit(
            f"{len(special)} adapters with DoRA, biases or whole weights in one request; at most "
            f"{SPECIAL} can be mixed"
        )
    if len(adapters) > 1 and any(adapter.mixer is not None for adapter in adapters):
        raise AdapterError("an X-LoRA adapter cannot be mixed with others; request it alone")
    check_whole_weights([adapter.whole for adapter in adapters], scales)
    for adapter in adapters:
        if any(isinstance(delta.module, ExpertLinear) for delta in adapter.factors):
            raise AdapterError(
                "biases of experts are not supported; train the adapter without them"
            )
