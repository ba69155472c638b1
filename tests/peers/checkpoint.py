"""Make the checkpoint for `speed.py`: random weights in the shapes of Qwen3-0.6B.

    python tests/peers/checkpoint.py FOLDER

Writes FOLDER as a Hugging Face folder that every engine loads (config, safetensors in bf16, a
byte-level tokenizer with meaningless words), and the same weights as FOLDER/bf16.gguf.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase

import torch
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

END = "<|endoftext|>"
MERGE = ("Ġ", "a")
"""llama.cpp refuses a tokenizer without merges."""
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,  # here for mistralrs, in rope_parameters for transformers 5
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 28,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "dtype": "bfloat16",
}
GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def weights() -> Iterator[tuple[str, str, Tensor]]:
    """The name on the hub, the name in GGUF and the bfloat16 values of each tensor."""
    torch.manual_seed(0)
    hidden, ffn, d = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    q, kv = CONFIG["num_attention_heads"] * d, CONFIG["num_key_value_heads"] * d
    shapes = {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (ffn, hidden),
        "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
        "self_attn.q_norm": (d,),
        "self_attn.k_norm": (d,),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }

    def draw(shape: tuple[int, ...]) -> Tensor:
        wide = torch.randn(shape) * 0.02 + (1.0 if len(shape) == 1 else 0.0)
        return wide.bfloat16()

    embedding = draw((CONFIG["vocab_size"], hidden))
    yield "model.embed_tokens.weight", "token_embd.weight", embedding
    for layer in range(CONFIG["num_hidden_layers"]):
        for name, shape in shapes.items():
            here = f"blk.{layer}.{GGUF_NAMES[name]}.weight"
            yield f"model.layers.{layer}.{name}.weight", here, draw(shape)
    yield "model.norm.weight", "output_norm.weight", draw((hidden,))


def vocabulary(rows: int) -> list[str]:
    """The end-of-text token, the bytes, a merge, and words, one for each row of the embedding."""
    tokens = [END, *sorted(pre_tokenizers.ByteLevel.alphabet()), "".join(MERGE)]
    words = ("Ġ" + "".join(characters) for characters in product(ascii_lowercase, repeat=4))
    return [*tokens, *islice(words, rows - len(tokens))]


def write_folder(folder: Path) -> None:
    write_tokenizer(folder, CONFIG["vocab_size"])
    save_file({name: t for name, _, t in weights()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))


def write_tokenizer(folder: Path, rows: int) -> None:
    """Write a byte-level tokenizer of so many tokens."""
    tokens = vocabulary(rows)
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [MERGE]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    files = {
        "generation_config.json": {"eos_token_id": 0, "do_sample": False},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2))


def write_gguf(file: Path) -> None:
    writer = GGUFWriter(file, "qwen3")
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_key_length(CONFIG["head_dim"])
    writer.add_value_length(CONFIG["head_dim"])
    writer.add_rope_freq_base(CONFIG["rope_theta"])
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    tokens = vocabulary(CONFIG["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, *[1] * (len(tokens) - 1)])
    writer.add_token_merges([" ".join(MERGE)])
    writer.add_eos_token_id(0)
    for _, name, tensor in weights():
        if tensor.ndim == 1:
            writer.add_tensor(name, tensor.float().numpy())
        else:
            raw = tensor.view(torch.uint8).numpy()
            writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    write_folder(folder)
    write_gguf(folder / "bf16.gguf")
    print(f"{folder}: config.json, model.safetensors, tokenizer.json, bf16.gguf")


if __name__ == "__main__":
    main()
