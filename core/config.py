"""Typed model configs, parsed and validated from config.json.

A key that would change the model in a way that is not implemented is an error: each config class
names such keys in `unimplemented`. Other keys that are not read are ignored; if transformers' class
has one with another default, a warning names it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from inspect import signature
from typing import Any, ClassVar, Protocol, Self, get_args, get_origin, get_type_hints

from ostro.core.errors import ConfigError
from ostro.core.log import warn_once

logger = logging.getLogger(__name__)

MAX_SIZE = 2**31
"""Sizes in configs are below this value."""

MAX_EXPERTS = 4096
"""The most experts of a layer."""

UNWRITABLE = ("Infinity", "-Infinity", "NaN")
"""Floats without a JSON literal, which transformers 5 writes as {"__float__": "Infinity"}."""
NEUTRAL = frozenset(
    (
        "_name_or_path",
        "architectures",
        "auto_map",
        "bos_token_id",
        "chunk_size_feed_forward",
        "decoder_start_token_id",
        "dtype",
        "eos_token_id",
        "finetuning_task",
        "id2label",
        "is_decoder",
        "is_encoder_decoder",
        "label2id",
        "model_type",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "prefix",
        "problem_type",
        "pruned_heads",
        "quantization_config",
        "return_dict",
        "rope_scaling",
        "rope_theta",
        "sep_token_id",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "use_bfloat16",
        "use_cache",
        "partial_rotary_factor",
        # Token ids that only tokenizers and generation use.
        "eod_token_id",
        # Of training.
        "attention_dropout",
        "attention_probs_dropout_prob",
        "classifier_dropout",
        "dropout",
        "embd_pdrop",
        "embedding_dropout",
        "hidden_dropout_prob",
        "initializer_factor",
        "initializer_range",
        "output_router_logits",
        "pretraining_tp",
        "resid_pdrop",
        "residual_dropout",
        "router_aux_loss_coef",
        # The layers of a multi-token head, which is loaded for speculation alone.
        "num_nextn_predict_layers",
    )
)
"""Keys that do not affect the forward pass, or are read elsewhere."""

UNSCALED = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
"""Keys of a rope rule that do not depend on how it scales."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Base of all configs. A field without a default is required in config.json.

    vocab_size: ids 0..vocab_size - 1 are tokens; 0 for models without token inputs.
    unimplemented: keys of config.json that are not fields and would change the model, each with the
    only value that is accepted.
    """

    vocab_size: int = 0
    unimplemented: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, allow: Sequence[str] = ()) -> Self:
        """Create a config from a parsed config.json; keys in `allow` are not refused.

        Raises ConfigError with the field that is missing, mistyped, out of range or unimplemented.
        """
        known = {f.name: f for f in fields(cls)}
        hints = get_type_hints(cls)
        values = {
            name: raw[name]
            for name in known
            if name in raw and (raw[name] is not None or type(None) in get_args(hints[name]))
        }
        for name, f in known.items():
            if name not in values and f.default is MISSING and f.default_factory is MISSING:
                raise ConfigError(f"config.json has no {name!r}, which {cls.__module__} needs")
        for name, value in values.items():
            values[name] = check_type(name, value, hints[name])
        unread = {
            key: value
            for key, value in raw.items()
            if value is not None and key not in known and key not in allow
        }
        refuse_unimplemented(unread, cls.unimplemented)
        warn_of_unread(unread, raw.get("model_type"))
        config = cls(**cls.derive(raw, values))
        config.check()
        return config

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        """Add values that are derived from other keys; overrides must call super."""
        return values

    def check(self) -> None:
        """Raise ConfigError if fields contradict each other."""


class ConfigClass(Protocol):
    """`Architecture.config`: a class of typed configs."""

    def from_hf(self, raw: Mapping[str, Any], *, allow: tuple[str, ...] = ()) -> ModelConfig:
        """The config of a parsed config.json. Unimplemented keys in `allow` are ignored.

        Raises ConfigError for the others and for wrong types.
        """


@dataclass(frozen=True, kw_only=True)
class TextConfig(ModelConfig):
    """The fields of almost every decoder, with names and meanings of transformers."""

    vocab_size: int = field()
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    head_dim: int = 0
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    rope_parameters: dict[str, Any] = field(default_factory=dict)
    default_theta: ClassVar[float] = 10000.0
    unimplemented: ClassVar[Mapping[str, Any]] = {"is_causal": True}

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive(raw, values)
        heads = values.get("num_attention_heads") or 1
        defaults = {f.name: f.default for f in fields(cls)}
        if not defaults["num_key_value_heads"]:
            values.setdefault("num_key_value_heads", heads)
        default = defaults["head_dim"]
        if not default and "head_dim" not in values:
            if values["hidden_size"] % heads:
                raise ConfigError(
                    f"hidden_size={values['hidden_size']} is not a multiple of "
                    f"num_attention_heads={heads}, and head_dim is missing"
                )
            values["head_dim"] = values["hidden_size"] // heads
        values["rope_parameters"] = rope_parameters(raw, cls.default_theta)
        return values

    def check(self) -> None:
        super().check()
        check_sizes(
            self,
            "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
            "num_key_value_heads head_dim max_position_embeddings",
        )
        heads, kv = self.num_attention_heads, self.num_key_value_heads
        if heads % kv:
            raise ConfigError(
                f"num_attention_heads={heads} is not a multiple of num_key_value_heads={kv}"
            )
        if "head_dim" not in self.__dict__ or self.head_dim * heads == 0:
            raise ConfigError(f"head_dim={self.head_dim} is not positive")
        if not (math.isfinite(self.rms_norm_eps) and 0 <= self.rms_norm_eps < 1):
            raise ConfigError(f"rms_norm_eps={self.rms_norm_eps} is not within 0..1")
        weights = self.hidden_size * (self.vocab_size + self.intermediate_size)
        if weights * self.num_hidden_layers > 1 << 46:
            raise ConfigError(
                f"hidden_size={self.hidden_size}, intermediate_size={self.intermediate_size} and "
                f"num_hidden_layers={self.num_hidden_layers} require over 10^13 weights"
            )

    @property
    def context_limit(self) -> int:
        """The longest sequence in tokens; a linear or YaRN scaling of all layers lengthens it."""
        rule, most = self.rope_parameters, self.max_position_embeddings
        factor = rule.get("factor")
        if rule.get("rope_type") not in ("linear", "yarn") or not isinstance(factor, int | float):
            return most
        trained = rule.get("original_max_position_embeddings") or most
        return max(most, int(min(trained * factor, MAX_SIZE)))

    def rope_rule(self, kind: str) -> Mapping[str, Any]:
        """The rope rule of the layers of a type. Raises ConfigError without one."""
        rule = self.rope_parameters.get(kind)
        if not isinstance(rule, Mapping):
            raise ConfigError(f"rope_parameters: {kind}={rule!r:.80} is not an object")
        return rule

    def window(self, layer: int) -> int:
        """The sliding window of a layer in positions, including the current one; 0 = none."""
        return 0


@dataclass(frozen=True, kw_only=True)
class WindowConfig(TextConfig):
    """A decoder with sliding-window attention in some layers."""

    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None

    def slides(self, layer: int) -> bool:
        """Whether a layer has a window if the config has no `layer_types`."""
        return True

    def window(self, layer: int) -> int:
        if self.layer_types is not None:
            slides = self.layer_types[layer] == "sliding_attention"
        else:
            slides = self.slides(layer)
        return (self.sliding_window or 0) if slides else 0

    def check(self) -> None:
        super().check()
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ConfigError(f"sliding_window={self.sliding_window} is not positive")
        types = self.layer_types
        if types is not None and len(types) != self.num_hidden_layers:
            raise ConfigError(
                f"layer_types lists {len(types)} layers, num_hidden_layers={self.num_hidden_layers}"
            )
        for kind in types or ():
            if kind not in ("full_attention", "sliding_attention"):
                raise ConfigError(
                    f"layer_types contains {kind!r}, which this architecture does not support"
                )


def check_sizes(config: ModelConfig, names: str, where: str = "") -> None:
    """Raise ConfigError if one of these fields is not a valid size; `where` prefixes its name."""
    for name in names.split():
        if not 0 < getattr(config, name) < MAX_SIZE:
            raise ConfigError(
                f"{where}{name}={getattr(config, name)} is not within 1..{MAX_SIZE - 1}"
            )


def rope_parameters(raw: Mapping[str, Any], theta: float = 10000.0) -> dict[str, Any]:
    """The rope rule: transformers 5's `rope_parameters`, or the older rope_theta + rope_scaling.

    If layers differ, it is a mapping of layer type to rule; each rule inherits top-level values.
    A `rope_scaling` beside `rope_parameters` replaces the rule except for the keys of `UNSCALED`;
    if layers differ, it changes the rule of the layers with full attention. `theta` is the
    rope_theta of files without one.
    """
    given, scaling = (rope_object(raw, name) for name in ("rope_parameters", "rope_scaling"))
    top = {"rope_theta": raw.get("rope_theta", theta)}
    for key in ("partial_rotary_factor", "original_max_position_embeddings"):
        if raw.get(key) is not None:
            top[key] = raw[key]
    if by_layer_type(scaling):
        given = scaling
    elif scaling and by_layer_type(given):
        full = {**given.get("full_attention", {}), **named_type(scaling)}
        given = {**given, "full_attention": full}
    elif scaling:
        given = {**{key: given[key] for key in UNSCALED if key in given}, **scaling}
    if by_layer_type(given):
        return {kind: normal_rule({**top, **rule}, raw) for kind, rule in given.items()}
    return normal_rule({**top, **given}, raw)


def rope_object(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A field with a rope rule, empty if it is absent. Raises ConfigError."""
    value = raw.get(name) or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name}={value!r:.80} is not an object")
    return value


def by_layer_type(rules: Mapping[str, Any]) -> bool:
    return bool(rules) and all(isinstance(rule, Mapping) for rule in rules.values())


def named_type(rule: Mapping[str, Any]) -> dict[str, Any]:
    """A rule with "rope_type", which older files call "type"."""
    rest = {key: value for key, value in rule.items() if key != "type"}
    return {"rope_type": rule.get("type", "default"), **rest}


def normal_rule(rule: dict[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    rule = named_type(rule)
    rule.setdefault("max_position_embeddings", raw.get("max_position_embeddings", 2048))
    if not isinstance(rule["rope_type"], str):
        raise ConfigError(f"rope_type={rule['rope_type']!r:.80} is not a string")
    theta = rule["rope_theta"]
    if not (isinstance(theta, int | float) and 0 < theta < math.inf):
        raise ConfigError(f"rope_theta={theta!r:.80} is not a positive number")
    return rule


def check_type(name: str, value: Any, hint: Any) -> Any:
    """Validate a value against its annotation; integers are valid floats. Raises ConfigError."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is None and isinstance(hint, type) and issubclass(hint, ModelConfig):
        if isinstance(value, hint):  # of a class that its model_type selects
            return value
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} is not an object")
        return hint.from_hf(value)
    if type(None) in arguments:
        if value is None:
            return None
        rest = [a for a in arguments if a is not type(None)]
        return check_type(name, value, rest[0]) if len(rest) == 1 else value
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(check_type(name, item, arguments[0]) for item in value)
    kind = origin or hint
    if kind is float:
        value = decode_floats(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < MAX_SIZE**2 else math.inf
    if not isinstance(kind, type) or (
        isinstance(value, kind) and (kind is not int or not isinstance(value, bool))
    ):
        return value
    raise ConfigError(f"{name}={value!r:.80} is not {article(kind.__name__)}")


def decode_floats(value: Any) -> Any:
    """Replace each {"__float__": "Infinity"} in a parsed JSON value with the float it names."""
    if isinstance(value, Mapping):
        if len(value) == 1 and value.get("__float__") in UNWRITABLE:
            return float(value["__float__"])
        return {key: decode_floats(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [decode_floats(item) for item in value]
    return value


def article(kind: str) -> str:
    words = {
        "int": "an integer",
        "float": "a number",
        "str": "a string",
        "bool": "true or false",
        "tuple": "a list",
        "dict": "an object",
    }
    return words.get(kind, f"a {kind}")


def refuse_unimplemented(unread: Mapping[str, Any], unimplemented: Mapping[str, Any]) -> None:
    """Raise ConfigError for a key with another value than the one that is implemented."""
    for key, accepted in unimplemented.items():
        value = unread.get(key, accepted)
        if value != accepted:
            raise ConfigError(
                f"config.json sets {key}={value!r:.80}, and this architecture implements only "
                f"{accepted!r}; use --allow-config {key} to ignore it"
            )


def warn_of_unread(unread: Mapping[str, Any], model_type: Any) -> None:
    """Warn of keys that differ from the default of transformers' class of that model type."""
    unread = {key: value for key, value in unread.items() if key not in NEUTRAL}
    if not unread or not isinstance(model_type, str):
        return
    defaults = reference_defaults(model_type)
    for key, value in unread.items():
        if key in defaults and defaults[key] != value:
            # A config is read several times.
            warn_once(
                logger,
                f"config.json sets {key}={value!r:.80} (default of {model_type}: "
                f"{defaults[key]!r:.80}); ostro does not read it, so outputs may differ; "
                f"--allow-config {key} hides this warning",
            )


def reference_defaults(model_type: str, *, derived: bool = True) -> Mapping[str, Any]:
    """The defaults of transformers' config class of that model type; empty if there is none.

    Without `derived`, values that the class computes from other fields are left out.
    """
    try:
        from transformers import CONFIG_MAPPING

        kind = CONFIG_MAPPING[model_type]
        found = dict(kind().to_dict())
    except (ImportError, KeyError, TypeError, ValueError, AttributeError):
        return {}
    stated = {k for k, p in signature(kind).parameters.items() if p.default is not None}
    return found if derived else {key: found[key] for key in found.keys() & stated}
