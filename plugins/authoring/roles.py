"""Map module names of other architectures to Llama's."""

from __future__ import annotations

LAYER = "model.layers.{i}"


def spelt(**names: str) -> dict[str, str]:
    """Invert a mapping: Llama's names by each of the space-separated names of others."""
    return {theirs: ours for ours, words in names.items() for theirs in words.split()}


OUTSIDE = {
    "embed_tokens wte embed_in word_embeddings tok_embeddings": "model.embed_tokens",
    "norm ln_f final_layer_norm final_layernorm final_norm": "model.norm",
    "lm_head embed_out output": "lm_head",
}
NORMS = spelt(
    input_layernorm="input_layernorm ln_1 ln1 ln_attn attention_norm attn_norm norm_1",
    post_attention_layernorm="post_attention_layernorm ln_2 ln2 ln_mlp ffn_norm mlp_norm norm_2",
)
ATTENTION = spelt(
    q_proj="q_proj wq query q_lin",
    k_proj="k_proj wk key k_lin",
    v_proj="v_proj wv value v_lin",
    o_proj="o_proj out_proj dense c_proj wo proj out_lin",
    q_norm="q_norm q_layernorm query_layernorm query_norm",
    k_norm="k_norm k_layernorm key_layernorm key_norm",
)
GATED = spelt(gate_proj="gate_proj w1", up_proj="up_proj w3", down_proj="down_proj w2")
PLAIN = spelt(
    fc1="fc1 fc_in c_fc dense_h_to_4h up_proj w1 linear_1",
    fc2="fc2 fc_out c_proj dense_4h_to_h down_proj w2 linear_2",
)
"""A feed-forward with a gate, and one without."""

GATES = frozenset("gate_proj gate_up_proj w3".split())
"""Names that only a gated feed-forward has."""

FUSED = frozenset("query_key_value qkv_proj c_attn Wqkv wqkv qkv gate_up_proj".split())
"""Names of linears that fuse several of Llama's."""


def role(path: str, *, gated: bool) -> str | None:
    """The path in Llama's module tree for one of another architecture; None if unknown."""
    stem, _, inner = path.partition(".{i}.")
    if not inner:
        last = stem.rpartition(".")[2]
        return next((ours for names, ours in OUTSIDE.items() if last in names.split()), None)
    parent, _, name = inner.rpartition(".")
    if not parent:
        return f"{LAYER}.{NORMS[name]}" if name in NORMS else None
    if "attn" in parent or "attention" in parent:
        own = name in ATTENTION and "cross" not in parent
        return f"{LAYER}.self_attn.{ATTENTION[name]}" if own else None
    words = GATED if gated else PLAIN
    return f"{LAYER}.mlp.{words[name]}" if name in words and "." not in parent else None
