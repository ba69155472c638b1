"""Read PEFT's LoRA folders: adapter_config.json and single or sharded safetensors (version 0.21).

A linear has `lora_A` [r, k] and `lora_B` [n, r], a convolution the same with the kernel appended,
an embedding of n tokens `lora_embedding_A` [r, n] and `lora_embedding_B` [k, r]. Stacked experts
have `lora_A` [e * r, k], whose rows are in the order [e, r], and `lora_B` [n, r * e], whose columns
are in the order [r, e]; k is the input width and n the output width. Tensor names of experts
contain the module, not the parameter. If a module has several parameters, each wraps the one
declared before it, so that the first declared is the innermost `base_layer`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from torch import Tensor

from ostro import AdapterSource, AdapterWeights, Container, LowRank, errors
from ostro.adapters.lora import folder, selection
from ostro.adapters.lora.config import Settings
from ostro.adapters.lora.tensors import both, finite, low_rank, stacked

WEIGHTS = "adapter_model.safetensors"
INDEX = "adapter_model.safetensors.index.json"
PREFIX = "base_model.model."
WRAPPED = ".base_layer"

A, B, BIAS, MAGNITUDE = "lora_A.weight", "lora_B.weight", "lora_B.bias", "lora_magnitude_vector"
TABLE_A, TABLE_B = "lora_embedding_A", "lora_embedding_B"
TABLES = ("embed_tokens", "lm_head")
"""Embeddings and heads that PEFT saves without being configured to if they were resized."""

FACTOR = re.compile(
    r"(?P<module>.+)\.(?:"
    r"(?P<linear>lora_[AB])(?:\.(?!weight$|bias$)[^.]+)?\.(?P<leaf>weight|bias)|"
    r"(?P<bare>lora_embedding_[AB]|lora_magnitude_vector)(?:\.(?!weight$)[^.]+)?(?:\.weight)?)"
)
"""A factor's name, which may contain the adapter's name before the last component."""

SAVED = re.compile(r"\.modules_to_save(\.[^.]+(?=\..))?")
"""Wrapper components in the names of saved modules, as older versions wrote them."""


def read(source: AdapterSource) -> AdapterWeights:
    """Read a PEFT folder. Raises AdapterError with the config key or the tensor."""
    settings = Settings.of(source.config)
    found = ParsedName.of(_places(source))
    chosen = selection.selected(settings, [n for n in found.factors if not n.endswith(WRAPPED)])
    stacks = {
        name
        for name in found.factors.keys() - chosen
        if selection.parameters(settings, name.replace(WRAPPED, ""))
    }
    weights = _linears(settings, found, found.factors.keys() - stacks, chosen)
    weights |= _experts(settings, found, stacks)
    whole = _whole(settings, found, weights)
    if not weights and not whole:
        raise errors.AdapterError(f"{WEIGHTS}: holds no LoRA tensor")
    base = source.config.get("base_model_name_or_path")
    return AdapterWeights(
        kind="lora",
        weights=weights,
        whole=whole,
        invocation=settings.invocation,
        template=folder.template(source),
        tokens=folder.added_tokens(source),
        config=settings.facts,
        base=base if isinstance(base, str) else "",
    )


@dataclass(frozen=True)
class TargetModule:
    """A tensor of an adapter file."""

    file: str
    container: Container
    name: str

    def read(self) -> Tensor:
        return finite(self.file, self.container, self.name)


Parts = Mapping[str, TargetModule]
"""The tensors of a module by part: `lora_A.weight`, `lora_B.bias`, ..."""


@dataclass(frozen=True)
class ParsedName:
    """A folder's tensors: factors by module (with `base_layer`s) and part; the others by name."""

    factors: dict[str, dict[str, TargetModule]] = field(default_factory=lambda: defaultdict(dict))
    others: dict[str, TargetModule] = field(default_factory=dict)

    @classmethod
    def of(cls, places: Iterable[TargetModule]) -> ParsedName:
        """Group tensors by name. Raises AdapterError if a folder contains two adapters."""
        found = cls()
        for place in places:
            name = place.name.removeprefix(PREFIX)
            match = FACTOR.fullmatch(name)
            if match is None:
                parts, part = found.others, SAVED.sub("", name)
            else:
                parts = found.factors[match["module"]]
                part = match["bare"] or f"{match['linear']}.{match['leaf']}"
            if part in parts:
                raise errors.AdapterError(
                    f"{place.file}: {parts[part].name!r} and {place.name!r} are of two adapters; "
                    "save each in a folder of its own"
                )
            parts[part] = place
        return found


def _places(source: AdapterSource) -> list[TargetModule]:
    """All tensors of a folder, from its single file or from the shards in its index."""
    if WEIGHTS in source.files.names:
        container = source.open(WEIGHTS)
        return [TargetModule(WEIGHTS, container, name) for name in container.tensors]
    if INDEX not in source.files.names:
        folder.refuse_pickles(source)
        raise errors.AdapterError(f"{source.files.root.name}: there is no {WEIGHTS} in it")
    owners = folder.parsed(source, INDEX).get("weight_map")
    if not isinstance(owners, Mapping):
        raise errors.AdapterError(f"{INDEX}: weight_map must map tensors to files")
    for file in set(map(str, owners.values())):
        if file not in source.files.names or not file.endswith(".safetensors"):
            raise errors.AdapterError(
                f"{INDEX}: names {file!r:.80}, which is not a file in the folder"
            )
    opened = {file: source.open(file) for file in sorted(set(owners.values()))}
    for name, file in owners.items():
        if name not in opened[file].tensors:
            raise errors.AdapterError(f"{INDEX}: tensor {name!r} is not in {file}")
    return [TargetModule(file, opened[file], name) for name, file in owners.items()]


def _linears(
    settings: Settings, found: ParsedName, modules: Set[str], chosen: Set[str]
) -> dict[str, LowRank]:
    """Factors of linears, convolutions and embeddings.

    Raises AdapterError for a module that is not in `chosen`.
    """
    sizes = settings.sizes([*modules])
    weights = {}
    # sorted, so that the same error is raised in every run
    for module in sorted(modules):
        parts = found.factors[module]
        some = next(iter(parts.values()))
        if module not in chosen:
            raise errors.AdapterError(
                f"{some.file}: tensor {some.name!r} is of a module that the config does not select "
                "(target_modules, exclude_modules, layers_to_transform, modules_to_save)"
            )
        names = {part: place.name for part, place in parts.items()}
        both(some.file, module, names, A, B)
        both(some.file, module, names, TABLE_A, TABLE_B)
        rank, scale = sizes[module]
        if TABLE_A in parts:
            weights[module] = _table(module, parts, rank, scale)
        else:
            weights[module] = _linear(settings, module, parts, rank, scale)
    return weights


def _linear(settings: Settings, module: str, parts: Parts, rank: int, scale: float) -> LowRank:
    some = next(iter(parts.values()))
    for part, key, expected in (
        (BIAS, "lora_bias", settings.biased),
        (MAGNITUDE, "use_dora", settings.dora),
    ):
        if (part in parts) != expected:
            have = f"has {part}" if part in parts else f"lacks {part}"
            raise errors.AdapterError(
                f"{some.file}: module {module} {have}, but the config has {key}={expected}"
            )
    if A not in parts:
        raise errors.AdapterError(f"{some.file}: tensor {some.name!r} has no {A} beside it")
    return low_rank(
        some.file,
        module,
        parts[A].read(),
        parts[B].read(),
        scale,
        rank=rank,
        bias=parts[BIAS].read() if BIAS in parts else None,
        magnitude=parts[MAGNITUDE].read().flatten() if MAGNITUDE in parts else None,
    )


def _table(module: str, parts: Parts, rank: int, scale: float) -> LowRank:
    """Factors of an embedding: the delta of its table [n, k] is the transposed product."""
    place = parts[TABLE_A]
    for part in parts.keys() - {TABLE_A, TABLE_B}:
        raise errors.AdapterError(
            f"{place.file}: tensor {parts[part].name!r} is not supported: PEFT scales the columns "
            f"of an embedding by it, not its rows; train with {module} in modules_to_save"
        )
    a, b = parts[TABLE_B].read(), place.read()
    return low_rank(place.file, module, a.mT, b.mT, scale, rank=rank)


def _experts(settings: Settings, found: ParsedName, stacks: Set[str]) -> dict[str, LowRank]:
    """Factors of target_parameters: stacked experts, or a matrix outside of a linear."""
    owners: dict[str, str] = {}
    for module, wrapped in _by_depth(stacks).items():
        declared = _declared(settings, module, found.factors, wrapped)
        owners |= {f"{module}.{name}": each for name, each in zip(declared, wrapped, strict=True)}
    sizes = settings.sizes([*owners])
    return {
        name.removesuffix(".weight"): _stack(name, found.factors[wrapped], *sizes[name])
        for name, wrapped in owners.items()
    }


def _by_depth(stacks: Iterable[str]) -> dict[str, list[str]]:
    """The names of each module's factors, innermost wrapper first."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in sorted(stacks, key=lambda n: (-n.count(WRAPPED), n)):
        found[name.replace(WRAPPED, "")].append(name)
    return found


def _declared(
    settings: Settings, module: str, factors: Mapping[str, Parts], wrapped: Sequence[str]
) -> list[str]:
    """The parameters of a module's wrappers, in the order of the wrappers."""
    names = selection.parameters(settings, module)
    if len(names) != len(wrapped):
        # a target without a module matches parameters of any module
        names = selection.parameters(settings, module, qualified=True) or names
    if len(names) == len(wrapped) == 1:
        return names
    if len(names) == len(wrapped) and set(names) <= set(selection.ORDER):
        return sorted(names, key=selection.ORDER.index)
    some = next(iter(factors[wrapped[0]].values()))
    raise errors.AdapterError(
        f"{some.file}: tensor {some.name!r}: target_parameters selects {', '.join(names)} of "
        f"{module}, which has factors for {len(wrapped)}, whose names do not assign them; the "
        f"combination {', '.join(selection.ORDER)} is supported"
    )


def _stack(name: str, parts: Parts, rank: int, scale: float) -> LowRank:
    place = next(iter(parts.values()))
    for part in parts.keys() - {A, B}:
        raise errors.AdapterError(
            f"{place.file}: tensor {parts[part].name!r} does not belong to a stack of experts"
        )
    both(place.file, name, {part: each.name for part, each in parts.items()}, A, B)
    a, b = parts[A].read(), parts[B].read()
    if a.dim() != 2 or b.dim() != 2 or len(a) % rank or b.shape[1] != len(a):
        raise errors.AdapterError(
            f"{place.file}: {name}: A {[*a.shape]} and B {[*b.shape]} are not those of experts of "
            f"rank {rank}, as in the config (r and rank_pattern)"
        )
    if (many := len(a) // rank) == 1:
        return low_rank(place.file, name, a, b, scale, rank=rank)
    a = a.unflatten(0, (many, rank))
    b = b.unflatten(1, (rank, many)).permute(2, 0, 1)
    return stacked(place.file, name, a, b, scale, rank)


def _whole(
    settings: Settings, found: ParsedName, weights: Mapping[str, LowRank]
) -> dict[str, Tensor]:
    """Tensors that replace the base's: saved modules, trained biases, resized embeddings."""
    whole: dict[str, Tensor] = {}
    for name, place in found.others.items():
        plain = name.replace(WRAPPED, "")
        module, _, leaf = plain.rpartition(".")
        trained = leaf == "bias" and (
            settings.bias == "all" or (settings.bias == "lora_only" and module in weights)
        )
        table = leaf == "weight" and (
            module.rpartition(".")[2] in TABLES or (WRAPPED in name and module in weights)
        )
        if not (trained or table or selection.saved(settings, plain)):
            raise errors.AdapterError(
                f"{place.file}: tensor {place.name!r} is not selected by the config "
                "(target_modules, target_parameters, bias, modules_to_save)"
            )
        whole[plain] = place.read()
    return whole
