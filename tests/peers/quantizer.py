"""llama.cpp's side of `quantized.py`; runs under the python of its own environment.

    python quantizer.py SOURCE FTYPE FOLDER --prompt 3,17,99 [--count N | --states]

Quantizes the file SOURCE to FTYPE (a number of `enum llama_ftype`) as FOLDER/model.gguf, or takes
SOURCE as it is if FTYPE is -1. Dequantizes the result with llama.cpp's dequantizers to
FOLDER/floats.gguf, and writes the results of both files to FOLDER/said.npz: `rounded` and `floats`,
the logits [T, V] of the prompt, or an encoder's states [T, d]; and N greedy tokens of each, `text`
and `plain_text`. Runs with one thread and a float cache.
"""

from __future__ import annotations

import argparse
import ctypes
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

ROOM = 640


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("ftype", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--states", action="store_true")
    asked = parser.parse_args()
    llama_cpp.llama_log_set(QUIET, ctypes.c_void_p())
    few, floats = asked.folder / "model.gguf", asked.folder / "floats.gguf"
    if asked.ftype == -1:
        few = asked.source
    else:
        quantize(asked.source, few, asked.ftype)
    quantize(few, floats, llama_cpp.LLAMA_FTYPE_ALL_F32)
    prompt = [int(token) for token in asked.prompt.split(",")]
    rounded, text = say(few, prompt, asked.count, asked.states)
    plain, plain_text = say(floats, prompt, asked.count, asked.states)
    file = asked.folder / "said.npz"
    np.savez(file, rounded=rounded, floats=plain, text=text, plain_text=plain_text)


@llama_cpp.llama_log_callback
def QUIET(level: int, text: bytes, data: Any) -> None:
    if level >= 4:  # errors
        print(text.decode(errors="replace"), end="")


def quantize(source: Path, target: Path, ftype: int) -> None:
    asked = llama_cpp.llama_model_quantize_default_params()
    asked.ftype, asked.nthread, asked.allow_requantize = ftype, 1, True
    if llama_cpp.llama_model_quantize(bytes(source), bytes(target), ctypes.byref(asked)):
        raise SystemExit(f"{target.name} could not be made")


def say(
    file: Path, prompt: list[int], count: int, states: bool
) -> tuple[np.ndarray[Any, Any], list[int]]:
    """The logits (or states) of a prompt for a file, and its greedy continuation."""
    how = llama_cpp.llama_model_default_params()
    how.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(bytes(file), how)
    asked = llama_cpp.llama_context_default_params()
    asked.n_ctx = asked.n_batch = asked.n_ubatch = ROOM
    asked.n_threads = asked.n_threads_batch = 1
    asked.type_k = asked.type_v = llama_cpp.GGML_TYPE_F32
    asked.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    asked.embeddings = states
    asked.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_NONE
    context = llama_cpp.llama_init_from_model(model, asked) if model else None
    if context is None:
        raise SystemExit(f"{file.name} could not be loaded")
    width = llama_cpp.llama_model_n_embd(model)
    if not states:
        width = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    said = run(context, prompt, 0, width, states)
    text: list[int] = []
    last = said[-1]
    for place in range(len(prompt), len(prompt) + count):
        text.append(int(last.argmax()))
        [last] = run(context, text[-1:], place, width, states)
    return said, text


def run(
    context: Any, tokens: list[int], place: int, width: int, states: bool
) -> np.ndarray[Any, Any]:
    """The logits or states of tokens from a position on: [T, width]."""
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.logits[i] = token, place + i, 1
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    call = llama_cpp.llama_encode if states else llama_cpp.llama_decode
    if failed := call(context, batch):
        raise SystemExit(f"llama.cpp returns {failed} for {len(tokens)} tokens")
    get = llama_cpp.llama_get_embeddings if states else llama_cpp.llama_get_logits
    found = np.ctypeslib.as_array(get(context), (len(tokens), width)).copy()
    llama_cpp.llama_batch_free(batch)
    return found


if __name__ == "__main__":
    main()
