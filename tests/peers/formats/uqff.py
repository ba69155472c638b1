"""Make the golden files of UQFF's formats: a weight, quantized and written by mistral.rs.

    python -P tests/peers/formats/uqff.py DIR/mistralrs/bin/python

in ostro's environment (-P because files here have names of packages); DIR is the folder in which
tests/peers/environments.py installed mistralrs==0.9.5. Each family's file contains the original
`weight` bfloat16 [n, k], and for each format `<format>.weight` and its further tensors, named as in
a UQFF file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).parents[2] / "quant"
FAMILIES = {
    "afq": ("afq2", "afq3", "afq4", "afq6", "afq8"),
    "hqq": ("hqq4", "hqq8"),
    "fp8": ("fp8",),
    "f8q8": ("f8q8",),
    "mxfp4": ("mxfp4",),
}
LAYER = "model.layers.0.self_attn.v_proj"
SIZES = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 288}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 1, "max_position_embeddings": 64}
QUANTIZE = """
import sys
from mistralrs import Architecture, Runner, Which
model, file, format = sys.argv[1:]
which = Which.Plain(model_id=model, arch=Architecture.Llama, write_uqff=file)
Runner(which=which, in_situ_quant=format)
"""


def make_model(folder: Path) -> Tensor:
    """Write a tiny llama with a tokenizer of single bytes. Return the weight of `LAYER`."""
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, **HEADS, bos_token_id=0, eos_token_id=0)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    said = json.loads((folder / "config.json").read_text()) | {"rope_theta": 1e4}
    (folder / "config.json").write_text(json.dumps(said | {"torch_dtype": "bfloat16"}))
    words = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    said = {"eos_token": "<end>", "bos_token": "<end>", "chat_template": "{{ messages }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    return model.get_parameter(f"{LAYER}.weight").detach().clone()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("python", type=Path)
    python = parser.parse_args().python
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weight = make_model(folder)
        for family, formats in FAMILIES.items():
            golden = {"weight": weight}
            for format in formats:
                file = folder / format / f"{format}.uqff"
                file.parent.mkdir()
                command = [python, "-c", QUANTIZE, folder, file, format]
                environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
                subprocess.run(command, check=True, capture_output=True, env=environment)
                for name, tensor in load_file(file.with_name(f"{format}-0.uqff")).items():
                    if name.startswith(f"{LAYER}."):
                        golden[name.replace(LAYER, format)] = tensor
            save_file(golden, ROOT / family / "uqff.safetensors")
            print(f"{family}: {', '.join(formats)}")


if __name__ == "__main__":
    main()
