"""Weights are quantized one by one as they are read: the floats of a model are never all there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

LAYERS, HIDDEN, INNER, VOCAB, HEADS = 16, 768, 2048, 512, 12
SIZES = {"hidden_size": HIDDEN, "intermediate_size": INNER, "vocab_size": VOCAB}
COUNTS = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS}
FEW = 2
"""Layers of floats that may be there beside what is quantized."""

# Says how much memory a load of the second folder took at most beyond what the process had, and
# how much its weights take. Pages of the file are not counted: the kernel takes them back at will.
# The first folder's load brings what is imported and compiled once.
LOADER = r"""
import json, pathlib, re, sys, threading
from ostro.core.load import model
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings

def anonymous():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"RssAnon:\s*(\d+)", status)[1]) * 1024

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous())

def greedy(loaded, container, *args, fill=model.fill, **kwargs):
    held = [container.read(name).clone() for name in container.tensors]
    fill(loaded, container, *args, **kwargs)
    assert held

first, second, how = sys.argv[1:]
plugins, asked = PluginManager(), Settings(quant="q8_0", device="cpu")
plugins.load(asked)
model.load_model(pathlib.Path(first), asked, plugins)
if how == "greedy":
    model.fill = greedy
start = peak = anonymous()
done = threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
loaded = model.load_model(pathlib.Path(second), asked, plugins)
peak = max(peak, anonymous())
done.set()
watcher.join()
print(json.dumps([peak - start, loaded.nbytes]))
"""


def checkpoint(folder: Path, layers: int) -> int:
    """Write a llama of so many layers in bfloat16; gives the bytes of one of them."""
    matrix, vector = (VOCAB, HIDDEN), (HIDDEN,)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": matrix}
    shapes |= {"lm_head.weight": matrix, "model.norm.weight": vector}
    for i in range(layers):
        front = f"model.layers.{i}"
        shapes |= {f"{front}.self_attn.{x}_proj.weight": (HIDDEN, HIDDEN) for x in "qkvo"}
        shapes |= {f"{front}.mlp.{x}_proj.weight": (INNER, HIDDEN) for x in ("gate", "up")}
        shapes[f"{front}.mlp.down_proj.weight"] = (HIDDEN, INNER)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{front}.{name}.weight"] = vector
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, Tensor] = {
        name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()
    }
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    said: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    said |= {"num_hidden_layers": layers, "hidden_act": "silu", "rms_norm_eps": 1e-5}
    (folder / "config.json").write_text(json.dumps({**said, **SIZES, **COUNTS}))
    return sum(t.nbytes for name, t in tensors.items() if ".0." in name)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_floats_are_there_a_few_at_a_time(tmp_path: Path) -> None:
    checkpoint(tmp_path / "first", 1)
    layer = checkpoint(tmp_path / "second", LAYERS)
    # A fixed threshold: what is freed goes back at once.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MALLOC_MMAP_THRESHOLD_": "65536"}
    folders = [str(tmp_path / name) for name in ("first", "second")]
    beyond = {}
    for how in ("streamed", "greedy"):
        command = [sys.executable, "-c", LOADER, *folders, how]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        peak, weights = json.loads(done.stdout)
        beyond[how] = (peak - weights) / layer
    assert beyond["streamed"] <= FEW < LAYERS - FEW <= beyond["greedy"], beyond
