"""Llama's names and keys in GGUF files, which most decoders share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ostro import Container, HeadRows, Names, Pair, TensorInfo, Unpermute
from ostro.architectures.llama.model import Config
from ostro.errors import ConfigError

Get = Callable[..., Any]

LAYER = "model.layers.{i}"
GGUF = (
    Pair("token_embd", "model.embed_tokens"),
    Pair("output_norm", "model.norm"),
    Pair("output", "lm_head"),
    Pair("blk.{i}.attn_norm", f"{LAYER}.input_layernorm"),
    Pair("blk.{i}.attn_q", f"{LAYER}.self_attn.q_proj"),
    Pair("blk.{i}.attn_k", f"{LAYER}.self_attn.k_proj"),
    Pair("blk.{i}.attn_v", f"{LAYER}.self_attn.v_proj"),
    Pair("blk.{i}.attn_output", f"{LAYER}.self_attn.o_proj"),
    Pair("blk.{i}.attn_q_norm", f"{LAYER}.self_attn.q_norm"),
    Pair("blk.{i}.attn_k_norm", f"{LAYER}.self_attn.k_norm"),
    Pair("blk.{i}.ffn_norm", f"{LAYER}.post_attention_layernorm"),
    Pair("blk.{i}.ffn_gate", f"{LAYER}.mlp.gate_proj"),
    Pair("blk.{i}.ffn_up", f"{LAYER}.mlp.up_proj"),
    Pair("blk.{i}.ffn_down", f"{LAYER}.mlp.down_proj"),
)


def names(config: Config) -> Names:
    """llama.cpp's converter interleaves the halves of each head of q and k of this family."""
    rotated = {
        "self_attn.q_proj": Unpermute(config.num_attention_heads),
        "self_attn.k_proj": Unpermute(config.num_key_value_heads),
    }
    pairs = (
        Pair(p.theirs, p.ours, rotated.get(p.ours.removeprefix(f"{LAYER}."), p.transform))
        for p in GGUF
    )
    return Names(gguf=tuple(pairs))


def row_parts(theirs: str, sizes: Mapping[str, int]) -> Iterator[Pair]:
    """Pairs of one tensor with the modules of its rows: `sizes` are their rows, in order."""
    start, rows = 0, sum(sizes.values())
    for ours, size in sizes.items():
        yield Pair(theirs, ours, HeadRows(1, rows, start, start + size))
        start += size


def gate_up(config: Config) -> dict[str, int]:
    """The rows of gate and up in a common tensor, for `row_parts`."""
    return {f"{LAYER}.mlp.{side}_proj": config.intermediate_size for side in ("gate", "up")}


def qkv(config: Config) -> dict[str, int]:
    """The rows of q, k and v in a common tensor, for `row_parts`."""
    heads = {"q": config.num_attention_heads}
    heads |= dict.fromkeys("kv", config.num_key_value_heads)
    return {f"{LAYER}.self_attn.{side}_proj": n * config.head_dim for side, n in heads.items()}


def gguf_config(container: Container) -> dict[str, Any]:
    """The config.json of a GGUF file (llama.cpp's keys; gguf-py's constants.py lists them).

    Vocabulary size, tied embeddings and biases of q, k and v follow from the tensors, since no key
    stores them.
    """
    metadata, tensors = container.metadata, container.tensors
    get = under(metadata["general.architecture"], metadata)
    heads = get("attention.head_count")
    head_dim = get("attention.key_length") or quotient(get("embedding_length"), heads)
    raw = {
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
    }
    raw = {key: value for key, value in raw.items() if value is not None}
    if "token_embd.weight" in tensors:
        raw["vocab_size"] = tensors["token_embd.weight"].shape[0]
    return raw | {
        "sliding_window": get("attention.sliding_window"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "rope_parameters": rope_parameters(container, get, head_dim),
        "dtype": dtype(tensors.values()),
    }


def under(architecture: str, metadata: Mapping[str, Any]) -> Get:
    """A function that looks up keys below an architecture's name, with a default."""
    return lambda key, default=None: metadata.get(f"{architecture}.{key}", default)


def quotient(a: Any, b: Any) -> int | None:
    return a // b if isinstance(a, int) and isinstance(b, int) and b else None


def dtype(tensors: Iterable[TensorInfo]) -> str:
    """The dtype of most bytes of a file; bfloat16 for quantized files."""
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.format] += tensor.nbytes
    floats = {"F32": "float32", "F16": "float16"}
    return floats.get(max(sizes, key=sizes.__getitem__, default=""), "bfloat16")


YARN = {
    "original_max_position_embeddings": "original_context_length",
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
    "mscale_all_dim": "yarn_log_multiplier",
}
"""The fields of YaRN, and their keys below rope.scaling."""

SCALING = {"type", "factor", "finetuned", "yarn_ext_factor", "attn_factor", *YARN.values()}

LONGROPE = {"long_factor": "rope_factors_long.weight", "short_factor": "rope_factors_short.weight"}
"""The fields of longrope, and their tensors: one factor per rotated pair."""


def rope_parameters(container: Container, get: Get, head_dim: Any) -> dict[str, Any]:
    """The rope parameters of a GGUF file. Raises ConfigError for a key that is not implemented."""
    rule: dict[str, Any] = {"rope_theta": get("rope.freq_base", 10000.0), "rope_type": "default"}
    r = get("rope.dimension_count", head_dim)
    if r != head_dim and isinstance(r, int) and isinstance(head_dim, int):
        rule["partial_rotary_factor"] = r / head_dim
    prefix = f"{container.metadata['general.architecture']}.rope.scaling."
    for key in container.metadata:
        if key.startswith(prefix) and key.removeprefix(prefix) not in SCALING:
            raise ConfigError(f"{container.path.name}: {key} is not implemented")
    kind = get("rope.scaling.type", "linear")
    factor = get("rope.scaling.factor", get("rope.scale_linear", 0.0)) or 1.0
    if "rope_freqs.weight" in container.tensors:
        return rule | rope_factors(container, kind, factor, r)
    if not container.tensors.keys().isdisjoint(LONGROPE.values()):
        return rule | longrope(container, get, kind, factor, r)
    if (value := get("rope.scaling.attn_factor", 1.0)) != 1.0:
        raise ConfigError(
            f"{container.path.name}: {prefix}attn_factor={value!r:.80} is implemented for files "
            f"with the tensors {' and '.join(LONGROPE.values())} only"
        )
    if kind == "yarn":
        found = {field: get(f"rope.scaling.{key}") for field, key in YARN.items()}
        found = {field: value for field, value in found.items() if value is not None}
        return rule | found | {"rope_type": "yarn", "factor": factor, "mscale": 1.0}
    if kind not in ("none", "linear"):
        raise ConfigError(f"{container.path.name}: {prefix}type={kind!r:.80} is not implemented")
    if kind == "linear" and factor != 1.0:
        rule |= {"rope_type": "linear", "factor": factor}
    return rule


def rope_factors(container: Container, kind: Any, factor: float, r: Any) -> dict[str, Any]:
    """Llama 3's rope scaling, which GGUF files store as a tensor of one factor per pair.

    It is expressed as longrope with one list for all contexts.
    """
    factors = pair_factors(container, "rope_freqs.weight", ("none", "linear"), kind, factor, r)
    lists = {"short_factor": factors, "long_factor": factors}
    return {"rope_type": "longrope", "attention_factor": 1.0, **lists}


def longrope(container: Container, get: Get, kind: Any, factor: float, r: Any) -> dict[str, Any]:
    """The rope rule of files with `LONGROPE`'s tensors (Phi-3, MiniCPM).

    The original context decides between the lists; if the key is missing, it is the model's whole
    context, as in llama.cpp.
    """
    kinds = ("none", "linear", "longrope")
    rule = {
        field: pair_factors(container, tensor, kinds, kind, factor, r)
        for field, tensor in LONGROPE.items()
    }
    rule["attention_factor"] = get("rope.scaling.attn_factor", 1.0)
    if (trained := get("rope.scaling.original_context_length")) is not None:
        rule["original_max_position_embeddings"] = trained
    return {"rope_type": "longrope", **rule}


def pair_factors(
    container: Container, name: str, kinds: tuple[str, ...], kind: Any, factor: float, r: Any
) -> list[float]:
    """A tensor of one factor per rotated pair, times the linear scaling. Raises ConfigError."""
    info = container.tensors.get(name)
    if info is None:
        raise ConfigError(f"{container.path.name}: {name} is missing")
    if info.format != "F32" or info.shape != (quotient(r, 2),) or kind not in kinds:
        raise ConfigError(
            f"{info.file}: {name} is {info.format} {list(info.shape)} with rope scaling "
            f"{kind!r:.80}; expected F32 [{quotient(r, 2)}] with {' or '.join(map(repr, kinds))}"
        )
    stretch = 1.0 if kind == "none" else factor
    found: list[float] = (container.read(name) * stretch).tolist()
    return found
