"""Read PEFT's LoraConfig from adapter_config.json (Mangrulkar et al. 2022; version 0.21).

Keys that change an adapter's outputs are implemented or refused with their name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ostro import errors
from ostro.adapters.lora import patterns
from ostro.adapters.lora.tensors import number, positive

T = TypeVar("T")

FILE = "adapter_config.json"

HARMLESS = frozenset(
    "peft_type peft_version auto_mapping base_model_name_or_path revision task_type inference_mode "
    "lora_dropout runtime_config fan_in_fan_out megatron_core qalora_group_size loftq_config "
    "eva_config corda_config lora_ga_config velora_config".split()
)
"""Keys that do not change outputs: origin, training and initialisation.

fan_in_fan_out is the layout of the base's weights and does not change A and B. The configs of
initialisations only matter through `init_lora_weights`, which is checked.
"""

READ = frozenset(
    "r lora_alpha use_rslora use_dora lora_bias bias rank_pattern alpha_pattern target_modules "
    "exclude_modules layers_to_transform layers_pattern target_parameters modules_to_save "
    "alora_invocation_tokens init_lora_weights".split()
)

PLAIN = (None, True, False, "gaussian", "eva", "orthogonal", "mica")
"""Values of init_lora_weights that keep the base; others subtract the initial factors from it."""

REFUSED = {
    "trainable_token_indices": "single tokens that were trained are not added to an embedding; "
    "train with modules_to_save, or merge it",
    "layer_replication": "the base's layers are not repeated; merge the adapter into a model of "
    "its own",
    "ensure_weight_tying": "one adapter of two tied weights is not kept; merge it",
    "use_qalora": "inputs are not pooled; merge it into its base",
    "use_bdlora": "block-diagonal factors are not implemented; merge it into its base",
    "arrow_config": "routing among several adapters is not implemented",
    "kasa_config": "it was trained on a base without its last singular values",
    "monteclora_config": "mixtures of sampled factors are not implemented",
    "megatron_config": "adapters of Megatron's parallel linears are not read; save it with PEFT's "
    "own linears",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a LoraConfig: scales of factors, and target modules."""

    rank: int
    alpha: float
    rslora: bool = False
    dora: bool = False
    biased: bool = False
    bias: str = "none"
    ranks: Mapping[str, int] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)
    targets: str | Sequence[str] | None = None
    excluded: str | Sequence[str] | None = None
    layers: Sequence[int] | None = None
    lists: Sequence[str] = ()
    parameters: Sequence[str] = ()
    saved: Sequence[str] = ()
    invocation: tuple[int, ...] = ()

    @classmethod
    def of(cls, config: Mapping[str, Any], file: str = FILE) -> Settings:
        """Read a parsed adapter_config.json. Raises AdapterError with the name of the key."""
        return _Reader(config, file).settings()

    def sizes(self, names: Sequence[str]) -> dict[str, tuple[int, float]]:
        """Rank and scale by the name of each module or parameter: alpha / r, or alpha / sqrt(r)."""
        ranks = self._pattern("rank_pattern", self.ranks, names, self.rank)
        alphas = self._pattern("alpha_pattern", self.alphas, names, self.alpha)
        return {
            name: (rank, alpha / (math.sqrt(rank) if self.rslora else rank))
            for name, rank, alpha in zip(names, ranks, alphas, strict=True)
        }

    def _pattern(
        self, key: str, pattern: Mapping[str, T], names: Sequence[str], default: T
    ) -> list[T]:
        found = patterns.first(key, [*pattern], names, ends=True)
        values = [*pattern.values()]
        return [default if place is None else values[place] for place in found]

    @property
    def facts(self) -> dict[str, Any]:
        """The settings that identify the adapter, besides its tensors."""
        return {
            "r": self.rank,
            "lora_alpha": self.alpha,
            "use_rslora": self.rslora,
            "use_dora": self.dora,
            "rank_pattern": dict(self.ranks),
            "alpha_pattern": dict(self.alphas),
        }


class _Reader:
    def __init__(self, config: Mapping[str, Any], file: str) -> None:
        self.config, self.file = config, file

    def settings(self) -> Settings:
        self._refuse_others()
        self._refuse_changed_base()
        targets = self._names("target_modules", text=True)
        layers = self._numbers("layers_to_transform")
        if isinstance(targets, str) and layers is not None:
            raise self._fault("layers_to_transform", "has no meaning beside a regular expression")
        for other in ("lora_bias", "alora_invocation_tokens"):
            if self.config.get("use_dora") and self.config.get(other):
                raise self._fault("use_dora", f"has no meaning beside {other}")
        return Settings(
            rank=positive(self.file, "r", self.config.get("r", 8)),
            alpha=number(self.file, "lora_alpha", self.config.get("lora_alpha", 8)),
            rslora=self._flag("use_rslora"),
            dora=self._flag("use_dora"),
            biased=self._flag("lora_bias"),
            bias=self._bias(),
            ranks={
                key: positive(self.file, f"rank_pattern[{key!r}]", value)
                for key, value in self._mapping("rank_pattern").items()
            },
            alphas={
                key: number(self.file, f"alpha_pattern[{key!r}]", value)
                for key, value in self._mapping("alpha_pattern").items()
            },
            targets=targets,
            excluded=self._names("exclude_modules", text=True),
            layers=layers,
            lists=self._lists(),
            parameters=self._names("target_parameters") or (),
            saved=self._names("modules_to_save") or (),
            invocation=self._numbers("alora_invocation_tokens") or (),
        )

    def _refuse_others(self) -> None:
        for key, value in self.config.items():
            # null, false and empty values are defaults that disable a feature
            if key in HARMLESS or key in READ or not value:
                continue
            why = REFUSED.get(key, "this version of ostro does not support the field")
            raise errors.AdapterError(f"{self.file}: {key}={value!r:.80} is not supported: {why}")

    def _refuse_changed_base(self) -> None:
        begun = self.config.get("init_lora_weights")
        if (isinstance(begun, str) and begun.lower() in PLAIN) or begun in (None, True, False):
            return
        raise errors.AdapterError(
            f"{self.file}: init_lora_weights={begun!r:.80} takes what the factors begin with out "
            "of the base's weights, so they do not fit the base as it is; save the adapter with "
            "PEFT's path_initial_model_for_weight_conversion, which subtracts the beginning"
        )

    def _flag(self, key: str) -> bool:
        value = self.config.get(key) or False
        if value is not True and value is not False:
            raise self._fault(key, f"must be true or false, not {value!r:.80}")
        return value

    def _mapping(self, key: str) -> Mapping[str, Any]:
        value = self.config.get(key) or {}
        if not isinstance(value, Mapping):
            raise self._fault(key, f"must map names to numbers, not {value!r:.80}")
        return value

    def _names(self, key: str, *, text: bool = False) -> Any:
        """A list of names, with `text` also one string; None for a missing key."""
        value = self.config.get(key)
        if value is None or (text and isinstance(value, str)):
            return value
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) and v for v in value):
            raise self._fault(key, f"must be a list of names, not {value!r:.80}")
        return tuple(value)

    def _numbers(self, key: str) -> tuple[int, ...] | None:
        value = self.config.get(key)
        value = [value] if isinstance(value, int) else value
        if not value:
            return None
        if not isinstance(value, list) or not all(type(v) is int and v >= 0 for v in value):
            raise self._fault(key, f"must be a list of whole numbers, not {value!r:.80}")
        return tuple(value)

    def _bias(self) -> str:
        value = self.config.get("bias") or "none"
        if value not in ("none", "all", "lora_only"):
            raise self._fault("bias", f"must be none, all or lora_only, not {value!r:.80}")
        return str(value)

    def _lists(self) -> tuple[str, ...]:
        value = self._names("layers_pattern", text=True) or ()
        found = (value,) if isinstance(value, str) else tuple(value)
        for name in found:
            if not name.replace(".", "").replace("_", "").isalnum():
                raise self._fault("layers_pattern", f"must name lists of layers, not {name!r:.80}")
        return found

    def _fault(self, key: str, what: str) -> errors.AdapterError:
        return errors.AdapterError(f"{self.file}: {key} {what}")
