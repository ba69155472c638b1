"""A servable llama folder: random weights, a trained tokenizer, a chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = [
    "the time of the year and the way of the people",
    "system user assistant hello again good morning",
    "a small model says a small word to the world",
]
CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def make_tokenizer(marks: Sequence[str] = ()) -> Tokenizer:
    """A byte-level BPE of 300 ids, trained on a few lines, with two control tokens.

    `marks` are more control tokens, with ids from 1.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    said = json.loads(tokenizer.to_str())
    vocabulary = said["model"]["vocab"]
    texts = {id: text for text, id in vocabulary.items()}
    for id, mark in enumerate(marks, 1):
        vocabulary[texts[id]], vocabulary[mark] = len(vocabulary), id
    tokenizer = Tokenizer.from_str(json.dumps(said))
    added = (*marks, START, END)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in added])
    return tokenizer


def make_weights(config: Mapping[str, Any] = CONFIG) -> dict[str, Tensor]:
    """All tensors of a hub checkpoint, large enough that answers depend on the prompt."""
    d, hidden, vocab = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
    kv = d // config["num_attention_heads"] * config["num_key_value_heads"]
    linears = {
        "self_attn.q_proj": (d, d),
        "self_attn.k_proj": (kv, d),
        "self_attn.v_proj": (kv, d),
        "self_attn.o_proj": (d, d),
        "mlp.gate_proj": (hidden, d),
        "mlp.up_proj": (hidden, d),
        "mlp.down_proj": (d, hidden),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (vocab, d), "lm_head": (vocab, d)}
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in linears.items()}
    random = torch.Generator().manual_seed(0)
    weights = {f"{n}.weight": torch.randn(s, generator=random) * 0.3 for n, s in shapes.items()}
    norms = ["model.norm"]
    for layer in range(config["num_hidden_layers"]):
        norms += [f"model.layers.{layer}.{n}_layernorm" for n in ("input", "post_attention")]
    return weights | {f"{norm}.weight": torch.ones(d) for norm in norms}


def make_model(folder: Path, *, template: str | None = TEMPLATE, **config: Any) -> Path:
    """Write the folder and return it. `config` are keys of its config.json; None omits a key."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    words = {"eos_token": END, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    save_file(make_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    return change_config(folder, **config)


def change_config(folder: Path, **config: Any) -> Path:
    """Rewrite config.json with these keys changed; None removes a key."""
    changed = {**CONFIG, **config}
    kept = {key: value for key, value in changed.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


def change_weights(folder: Path, **tensors: Tensor | None) -> Path:
    """Rewrite the weights with these changed; None removes a tensor. `__` stands for a dot."""
    changed = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    kept = {**load_file(folder / "model.safetensors"), **changed}
    weights = {name: tensor for name, tensor in kept.items() if tensor is not None}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def make_gguf(
    file: Path, *, sampling: Mapping[str, float] = {}, template: str | None = TEMPLATE
) -> Path:
    """Write the same model and tokenizer as a GGUF file, like llama.cpp's converter.

    `sampling` are keys below general.sampling.
    """
    from gguf import GGUFWriter

    writer = GGUFWriter(file, "llama")
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    tokenizer = json.loads(make_tokenizer().to_str())
    ids = {
        **tokenizer["model"]["vocab"],
        **{t["content"]: t["id"] for t in tokenizer["added_tokens"]},
    }
    tokens = sorted(ids, key=ids.__getitem__)
    merges = tokenizer["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in (START, END) else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(ids[END])
    if template is not None:
        writer.add_chat_template(template)
    for key, value in sampling.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"general.sampling.{key}", value)
    for name, tensor in make_weights().items():
        writer.add_tensor(gguf_name(name), rotated(name, tensor).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        _, _, layer, rest = stem.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[rest]}.weight"
    return f"{GGUF_NAMES[stem]}.weight"


def rotated(name: str, weight: Tensor) -> Tensor:
    """Interleave the halves of each head of q and k, like the converter."""
    heads = {"q_proj": CONFIG["num_attention_heads"], "k_proj": CONFIG["num_key_value_heads"]}
    kind = name.split(".")[-2]
    if kind not in heads:
        return weight
    return weight.unflatten(0, (heads[kind], 2, -1)).transpose(1, 2).flatten(0, 2).contiguous()
