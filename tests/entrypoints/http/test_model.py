"""A real model behind `serve`: what comes over HTTP is what transformers computes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import torch
from echo.model import END_ID, make_tokenizer
from echo.model import make_model as make_tokenizer_files
from transformers import LlamaConfig, LlamaForCausalLM

from ostro.entrypoints.cli import main

COMMAND = "import sys; from ostro.entrypoints.cli import main; sys.exit(main(sys.argv[1:]))"
PROMPTS = ["Hello", "a somewhat longer prompt, so that lengths differ", "é"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama with weights large enough to tell its tokens apart."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        eos_token_id=END_ID,
    )
    folder = make_tokenizer_files(tmp_path_factory.mktemp("models") / "tiny")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def expected(folder: Path, prompt: str, count: int) -> list[int]:
    """The greedy continuation by transformers."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([make_tokenizer().encode(prompt).ids])
    with torch.inference_mode():
        out = model.generate(
            ids, max_new_tokens=count, do_sample=False, pad_token_id=0, attention_mask=ids * 0 + 1
        )
    return [int(id) for id in out[0, ids.shape[1] :] if id != END_ID]


def test_served_tokens_are_those_of_the_reference(folder: Path) -> None:
    paths = os.pathsep.join(filter(None, sys.path))
    options = ["-m", str(folder), "--port", "0", "--dtype", "float32", "--threads", "1"]
    options += ["--max-seqs", "4", "--memory", "64MB", "--name", "little", "--hang-timeout", "90"]
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, "serve", *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    ) as server:
        assert server.stderr is not None
        try:
            seen = []
            while not (line := server.stderr.readline()).startswith("ostro: little at "):
                seen.append(line)
                assert line, "".join(seen)
            url = line.split()[3].rstrip(",")
            body = {"prompt": PROMPTS, "max_tokens": 24, "temperature": 0}
            whole = httpx.post(f"{url}/completions", json=body, timeout=120).json()
            body = {**body, "stream": True}
            texts = [""] * len(PROMPTS)
            with httpx.stream("POST", f"{url}/completions", json=body, timeout=120) as response:
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        for choice in json.loads(line[6:])["choices"]:
                            texts[choice["index"]] += choice["text"]
        finally:
            server.terminate()
            server.wait(120)
        assert server.returncode == 0
    wanted = [make_tokenizer().decode(expected(folder, prompt, 24)) for prompt in PROMPTS]
    assert [choice["text"] for choice in whole["choices"]] == wanted
    assert texts == wanted
    assert len(set(wanted)) == len(PROMPTS) and all(wanted)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_hang_timeout_that_cannot_be(capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    assert main(["serve", "--hang-timeout", seconds]) == 2
    assert "--hang-timeout" in capsys.readouterr().err
