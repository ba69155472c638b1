"""A model with a porting bug gets an error that names the module, never a damaged heap."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ostro.plugins.conformance.parity import Subject

PROGRAM = """
import json, os, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
import torch
from ostro.core.engine.startup.build import build_engine
from ostro.core.errors import OstroError
from ostro.core.load.model import load_model
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings

def first_row(norm):
    def forward(x, residual):
        y, residual = norm(x, residual)
        return y[:1], residual
    return forward

def one_column_less(mlp):
    return lambda x, step: mlp(x[:, 1:], step)

def answer(bug, dtype):
    settings = Settings(dtype=dtype)
    loaded = load_model(folder, settings, plugins)
    layer = loaded.model.model.layers[1]
    if bug == "rows":
        layer.input_layernorm.forward = first_row(layer.input_layernorm.forward)
    if bug == "queries":
        rotate_and_write = layer.self_attn.rotate_and_write
        layer.self_attn.rotate_and_write = lambda *arguments: rotate_and_write(*arguments)[:1]
    if bug == "width":
        layer.mlp.forward = one_column_less(layer.mlp.forward)
    if bug == "type":
        layer.mlp.down_proj.forward = lambda x, step: 1 + "one"
    engine = build_engine(loaded, settings, plugins, [], rows=64, block=16, blocks=16)
    try:
        engine.runner.logits([3, 4, 5])
        engine.runner.capture()
    except OstroError as error:
        print(type(error).__name__, error)
    except TypeError as error:
        print(type(error).__name__, *error.__notes__)
    junk = [torch.empty(1 << i) for i in range(4, 18)]  # a damaged heap shows by now

folder, plugins = Path(sys.argv[1]), PluginManager()
plugins.load()
for bug, dtype in json.loads(sys.argv[2]):
    print(f"{bug} {dtype}: ", end="", flush=True)
    if not os.fork():
        answer(bug, dtype)
        sys.stdout.flush()
        os._exit(0)
    print("exit status", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""

ORIGIN = "(architecture llama, plugin architectures.llama (built in))"


BUGS = {
    "rows": ("model.layers.1.self_attn.rope", "[1, 4, 16], expected [rows=3, "),
    "queries": (
        "model.layers.1.self_attn",
        "argument q has shape [1, 4, 16], expected [rows=3, heads, d=16]",
    ),
    "width": ("model.layers.1.mlp.gate_up", "expects inputs of width 64, got 63"),
    "type": ("model.layers.1.mlp", "raised in"),
}
DTYPES = ("float32", "bfloat16")


@pytest.fixture(scope="module")
def outputs(llama: Subject) -> str:
    """The output of one process, which forks for each bug and dtype."""
    cases = json.dumps([(bug, dtype) for bug in BUGS for dtype in DTYPES])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(llama.folder), cases],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bug", BUGS)
def test_the_error_names_the_module(bug: str, dtype: str, outputs: str) -> None:
    path, fault = BUGS[bug]
    answer = outputs.partition(f"{bug} {dtype}: ")[2].partition("exit status")
    assert answer[2].startswith(" 0\n"), outputs
    assert path in answer[0] and fault in answer[0] and ORIGIN in answer[0], answer[0]
