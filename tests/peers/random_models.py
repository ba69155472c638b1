"""Make the checkpoints for `speed.py`: random weights in the shapes of published text models.

    python tests/peers/random_models.py FOLDER [SHAPE ...]

SHAPE is a name in `shapes`; default: all. Writes FOLDER/SHAPE with config.json, a tokenizer of
meaningless words, bf16.gguf, and q4_k_m.gguf, which llama.cpp's environment (environments.py)
quantizes. The seven shapes take 50 GB.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from checkpoint import write_tokenizer
from conversions import write_fallback
from environments import default_root, python_of

SHAPES = Path(__file__).with_name("shapes")
QUANTIZE = """
import sys, llama_cpp
params = llama_cpp.llama_model_quantize_default_params()
params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M
source, target = (path.encode() for path in sys.argv[1:])
sys.exit(llama_cpp.llama_model_quantize(source, target, params))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("shapes", nargs="*")
    args = parser.parse_args()
    for shape in args.shapes or sorted(file.stem for file in SHAPES.glob("*.json")):
        make(args.folder / shape, SHAPES / f"{shape}.json")


def make(folder: Path, shape: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.json"
    shutil.copy(shape, config)
    facts = json.loads(config.read_text())
    if facts["model_type"].startswith("gemma4"):
        write_fallback(folder, rows=facts["vocab_size"])
    else:
        write_tokenizer(folder, facts["vocab_size"])
    floats, quantized = folder / "bf16.gguf", folder / "q4_k_m.gguf"
    options = ["--dummy-weights", config, "--to", "gguf", "--dtype", "bfloat16", "-o", folder]
    subprocess.run([sys.executable, "-m", "ostro", "quantize", *options], check=True)
    (folder / "config-BF16.gguf").rename(floats)
    python = python_of(default_root(), "llama_cpp")
    subprocess.run([python, "-c", QUANTIZE, floats, quantized], check=True)
    print(f"{folder}: {floats.name}, {quantized.name}")


if __name__ == "__main__":
    main()
