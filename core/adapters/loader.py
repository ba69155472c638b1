"""Reading an adapter: from a reference to pages for one model, checked on the way."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ostro.core.adapters.adapter import LoadedAdapter
from ostro.core.adapters.delta import PAGE, AdapterDelta, pages_of
from ostro.core.adapters.mixture_table import SPECIAL, WIDTH
from ostro.core.adapters.pool import AdapterPool
from ostro.core.adapters.targets import AdapterTargets, TargetResolver, describe_unmatched
from ostro.core.adapters.weights import AdapterSource, AdapterWeights, LowRank, no_member
from ostro.core.errors import (
    AdapterError,
    AdapterForbidden,
    AdapterLimit,
    AdapterNotFound,
    ModelNotFound,
    OstroError,
)
from ostro.core.load.open import open_container
from ostro.core.nn import Storage, Stored
from ostro.core.nn.experts import ExpertLinear
from ostro.core.ops import Target
from ostro.core.paths import resolve_path
from ostro.core.plugins.manager import PluginManager
from ostro.core.protocols import AdapterReader
from ostro.core.records import Files, Settings, TensorInfo, resolve
from ostro.core.tokenizer import Tokenizer, load_tokenizer

CONFIG = "adapter_config.json"
JSON_BYTES = 10_000_000
TOKENIZERS = ("tokenizer.json", "vocab.json")


@dataclass(frozen=True)
class AdapterLoader:
    """Where adapters of one model are read to: its weights by name, and its tables. `path` and
    `metadata` are where its tokenizer lies.
    """

    path: Path
    metadata: Mapping[str, Any]
    places: TargetResolver
    adapter_pool: AdapterPool
    plugins: PluginManager
    settings: Settings

    def read(self, reference: str) -> LoadedAdapter:
        """The adapter of a reference, ready to be used. Raises AdapterError."""
        return self.make(read_weights(locate(reference, self.settings, self.plugins), self.plugins))

    def make(self, weights: AdapterWeights, *, apart: bool = False) -> LoadedAdapter:
        """The adapter in pages. `apart`: each part of a fused linear in pages of its own."""
        placed = self.places.place(weights)
        self.check(weights, placed)
        adapter_pool = self.adapter_pool
        tables = {module: adapter_pool.table(module) for module in placed.modules}
        per = pages_of(f.rank for each in placed.factors.values() for f in each.values())
        sets = max((len(t.parts) for t in tables.values()), default=1) if apart else 1
        gained = [
            module
            for module, factors in placed.factors.items()
            if any(f.magnitude is not None or f.bias is not None for f in factors.values())
        ]
        kept = [*gained, *placed.biases]
        other = {m: tensor for m, tensor in placed.whole.items() if not is_base(m, tensor)}
        members = [self.make(member, apart=True) for member in weights.members]
        adapter = LoadedAdapter(
            generation=weights.generation + ", apart" * apart,  # it lies otherwise
            kind=weights.kind,
            rank=max([0, *(f.rank for f in weights.weights.values()), *(m.rank for m in members)]),
            pages=per * sets,
            sets=sets,
            base=weights.base,
            filled={
                tables[module]: tables[module].prepare(factors, per * sets, sets)
                for module, factors in placed.factors.items()
            },
            factors={tables[module]: placed.factors[module] for module in gained},
            biases={tables[module]: biases for module, biases in placed.biases.items()},
            whole={tables[m]: self.storage(m, tensor) for m, tensor in other.items()},
            invocation=weights.invocation,
            template=weights.template,
            members=members,
            mixer=weights.mixer,
            routes=self.routes(weights),
            matched=[*placed.matched, *(name for member in members for name in member.matched)],
            unmatched=placed.unmatched,
            norms={name: norm(f) for name, f in weights.weights.items()}
            | {f"{i}: {n}": x for i, m in enumerate(members) for n, x in m.norms.items()},
        )
        if apart and (kept or placed.whole):
            raise AdapterError("an X-LoRA adapter mixes plain LoRA alone, without DoRA and biases")
        self.check_size(adapter)
        return adapter

    def routes(self, weights: AdapterWeights) -> dict[tuple[AdapterDelta, int], int]:
        """By which layer of a mixer's scalings each part of a table goes."""
        found: dict[tuple[AdapterDelta, int], int] = {}
        if weights.mixer is None:
            return found
        for name, layer in weights.mixer.layers.items():
            for slot, _ in self.places.find(name, weights.space):
                table = self.adapter_pool.table(slot.module)
                found[table, list(table.parts).index(slot.part)] = layer
        return found

    def check(self, weights: AdapterWeights, placed: AdapterTargets) -> None:
        """Refuse what would do nothing, or less than it says, and what there is no room for."""
        check_placed(weights, placed)
        self.check_tokens(weights.tokens)
        rank = max((f.rank for f in weights.weights.values()), default=0)
        if rank > self.settings.max_adapter_rank:
            raise AdapterLimit(
                f"the adapter has rank {rank}, at most {self.settings.max_adapter_rank} is allowed;"
                " start with a larger --max-adapter-rank"
            )

    def check_tokens(self, tokens: Mapping[str, int]) -> None:
        """Refuse an adapter whose special tokens are not the base's."""
        if not tokens or self.tokenizer is None:
            return
        for token, id in tokens.items():
            if (found := self.tokenizer.id(token)) != id:
                raise AdapterError(
                    f"the adapter knows {token!r:.60} as token {id}, the base has "
                    f"{'no such token' if found is None else found}; tokens cannot be added: merge "
                    "the adapter into a model with a tokenizer of its own"
                )

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The base's tokenizer; None where its files hold none."""
        try:
            header = self.metadata if self.path.suffix == ".gguf" else None
            return load_tokenizer(self.path, metadata=header, plugins=self.plugins)
        except OstroError:
            return None

    def check_size(self, adapter: LoadedAdapter) -> None:
        if adapter.all_pages > min(WIDTH, self.adapter_pool.size):
            most = min(WIDTH, self.adapter_pool.size) * PAGE
            raise AdapterLimit(
                f"the adapter takes {adapter.all_pages * PAGE} rank rows, there is room for {most};"
                " start with more --adapter-slots, or use a smaller rank"
            )

    def storage(self, module: Any, tensor: Tensor) -> Storage:
        """A whole weight as the model multiplies it."""
        held = module.held[0]
        info = TensorInfo(name="weight", shape=tuple(tensor.shape), format="F32", nbytes=0)
        stored = Stored(
            tensors={"weight": tensor},
            infos={"weight": info},
            shape=tuple(tensor.shape),
            device=held.device,
            dtype=held.dtype,
        )
        dense = resolve(self.plugins.get("quantizers", "dense").storage)
        storage: Storage = dense.read(stored)
        target = Target(
            device=held.device,
            dtype=held.dtype,
            deterministic=self.settings.deterministic,
            exact=self.settings.exact,
        )
        storage.finalize(target, embedding=True)
        return storage


def is_base(module: Any, tensor: Tensor) -> bool:
    """Whether a whole weight is the base's own, as PEFT saves it beside factors of embeddings."""
    (held,) = module.held
    weight = held.dequantize().view(held.shape)
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


def read_weights(path: Path, plugins: PluginManager, *, alone: bool = True) -> AdapterWeights:
    """What lies at a path, read by the plugin that claims it. Raises AdapterError.

    An adapter may have members if it stands `alone`; a member may not.
    """
    root = path if path.is_dir() else path.parent
    names = sorted(e.name for e in path.iterdir()) if path.is_dir() else [path.name]
    config = read_config(root / CONFIG) if CONFIG in names else {}
    known = parsed(root, names) | ({CONFIG: config} if config else {})
    files = Files(root=root, names=tuple(names), json=known)
    record = plugins.claimant("adapters", lambda a: a.claims(files, config), path.name)
    if record is None:
        raise AdapterError(
            f"{path.name}: no installed adapter kind reads it: there is neither {CONFIG} nor a file"
            " of factors that one of them knows"
        )
    source = AdapterSource(
        files=files,
        config=config,
        open=lambda name: open_container(root / name, plugins),
        member=(lambda path: read_member(root, path, plugins)) if alone else no_member,
    )
    read: AdapterReader = resolve(record.load)
    return read(source)


def read_member(root: Path, path: str, plugins: PluginManager) -> AdapterWeights:
    """An adapter that the one in `root` mixes, in a folder of that, or beside it.

    Raises AdapterForbidden for one that lies elsewhere, or for `root` itself.
    """
    home = root.resolve()
    try:
        found = resolve_path(home / path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AdapterForbidden(
            f"the path of the member {path!r:.200} cannot be resolved: {reason}"
        ) from None
    if found == home or home.parent not in found.parents:
        raise AdapterForbidden(
            f"the member {path!r:.200} lies outside the adapter's folder and those beside it; copy "
            "it into the folder, under its name in the config"
        )
    if not found.is_dir():
        raise AdapterNotFound(f"the member {path!r:.200} is no folder in {home.name} or beside it")
    return read_weights(found, plugins, alone=False)


def parsed(root: Path, names: Sequence[str]) -> dict[str, Any]:
    """The JSON files of a folder by name, those that can be read; tokenizers are left alone."""
    found: dict[str, Any] = {}
    for name in names:
        path = root / name
        if name.endswith(".json") and name not in (CONFIG, *TOKENIZERS) and path.is_file():
            try:
                found[name] = read_config(path)
            except AdapterError:
                continue  # whoever needs it says that it is not there
    return found


def read_config(path: Path) -> Mapping[str, Any]:
    """A parsed JSON file. Raises AdapterError where it is no object."""
    try:
        if path.stat().st_size > JSON_BYTES:
            raise AdapterError(f"{path.name} is larger than {JSON_BYTES} bytes")
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterError(f"{path.name} is no JSON: {error!s:.200}") from None
    if not isinstance(found, dict):
        raise AdapterError(f"{path.name} holds {type(found).__name__}, an object belongs there")
    return found


def norm(factors: LowRank) -> float:
    """The Frobenius norm of scale * B A, without making it; of experts, of all of them."""
    a, b = factors.a.float(), factors.b.float()
    square = ((b.mT @ b) * (a @ a.mT)).sum()
    extra = [t.float().norm() for t in (factors.bias,) if t is not None]
    return abs(factors.scale) * float(square.clamp(min=0).sqrt()) + float(sum(extra))


def check_placed(weights: AdapterWeights, placed: AdapterTargets) -> None:
    """Refuse what would do nothing to a model, or less than it says. Raises AdapterError."""
    if placed.unmatched:
        raise AdapterError(
            f"the model has nothing called {describe_unmatched(placed.unmatched)}; the adapter was "
            f"made for {weights.base or 'another model'}"
        )
    if not placed.modules and not weights.members:
        raise AdapterError("the adapter changes nothing: it holds no weights")


def check_wholes(wholes: Sequence[Collection[object]], scales: Sequence[float]) -> None:
    """Refuse whole weights that cannot be mixed: the modules that each adapter of several has some
    for, and how much of it is wanted. Raises AdapterError.
    """
    seen: set[object] = set()
    for whole, scale in zip(wholes, scales, strict=True):
        if whole and scale != 1:
            raise AdapterError("an adapter with whole weights (modules_to_save) has scale 1 alone")
        if seen.intersection(whole):
            raise AdapterError("two of these adapters put a weight of their own in one place")
        seen.update(whole)


def check_mixture(adapters: Sequence[LoadedAdapter], scales: Sequence[float]) -> None:
    """Refuse mixtures that cannot be computed. Raises AdapterError."""
    if sum(adapter.all_pages for adapter in adapters) > WIDTH:
        raise AdapterLimit(f"these adapters have more than {WIDTH * PAGE} rank rows together")
    special = [adapter for adapter in adapters if adapter.special]
    if len(special) > SPECIAL:
        raise AdapterLimit(
            f"{len(special)} adapters with DoRA, biases or whole weights in one request; at most "
            f"{SPECIAL} can be mixed"
        )
    mixed = [adapter for adapter in adapters if adapter.mixer is not None]
    if mixed and len(adapters) > 1:
        raise AdapterError("an X-LoRA adapter mixes others itself: ask for it alone")
    check_wholes([adapter.whole for adapter in adapters], scales)
    for adapter in adapters:
        if any(isinstance(table.module, ExpertLinear) for table in adapter.factors):
            raise AdapterError("biases of experts cannot be adapted")
