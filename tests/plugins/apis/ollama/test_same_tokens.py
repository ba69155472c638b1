"""The tokens of Ollama's routes are those of OpenAI's, with a real engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ollama
import pytest
import torch
from tiny.model import make_model
from tiny.server import RunningServer, serving
from tiny.trained import train
from transformers import LlamaForCausalLM

from ostro.core.settings import Settings

pytestmark = pytest.mark.slow
HI: list[dict[str, Any]] = [{"role": "user", "content": "hello world"}]
TEXT = "hello " * 10


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("models")
    model = make_model(root / "base")
    reference = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    config = {"r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"]}
    train(reference, root / "pirate", seed=0, std=0.4, **config)
    settings = Settings(
        reference=str(model), dtype="float32", adapters=(f"pirate={root / 'pirate'}",), max_seqs=2
    )
    with serving(settings) as found:
        yield found


@pytest.fixture
def client(real: RunningServer) -> Iterator[ollama.Client]:
    with ollama.Client(real.url) as found:
        yield found


def test_adapters_and_seeds_give_the_same_tokens(
    real: RunningServer, client: ollama.Client
) -> None:
    texts = []
    for seeded in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 5}):
        for model in ("base", "pirate"):
            answer = real.post(
                "/v1/chat/completions",
                model=model,
                messages=HI,
                max_tokens=12,
                logprobs=True,
                **seeded,
            ).json()
            (choice,), usage = answer["choices"], answer["usage"]
            options = {"num_predict": 12, **seeded}
            found = client.chat(model, HI, options=options, logprobs=True)
            assert found.message.content == choice["message"]["content"]
            assert [each.logprob for each in found.logprobs or ()] == pytest.approx(
                [each["logprob"] for each in choice["logprobs"]["content"]], abs=1e-4
            )
            assert found.prompt_eval_count == usage["prompt_tokens"]
            assert found.eval_count == usage["completion_tokens"]
            prompted = client.generate(model, "hello world", options=options)
            assert prompted.response == found.message.content
            pieces = list(client.chat(model, HI, options=options, stream=True))
            assert "".join(each.message.content or "" for each in pieces) == prompted.response
            texts.append(prompted.response)
    assert texts[0] != texts[1], "the adapter changes nothing"


def test_same_vectors(real: RunningServer, client: ollama.Client) -> None:
    answer = real.post("/v1/embeddings", model="base", input=[TEXT]).json()
    vector = torch.tensor(answer["data"][0]["embedding"])
    (found,) = client.embed("base", [TEXT]).embeddings
    torch.testing.assert_close(torch.tensor(found), vector / vector.norm(), atol=1e-5, rtol=0)
    old = client.embeddings("base", TEXT).embedding
    torch.testing.assert_close(torch.tensor(old), vector, atol=1e-5, rtol=0)
    assert client.embed("base", TEXT * 300).prompt_eval_count == 1024
    assert client.embed("base", TEXT * 300, options={"num_ctx": 9}).prompt_eval_count == 9
    with pytest.raises(
        ollama.ResponseError, match=r"input length exceeds the context length.* is 1024 tokens"
    ):
        client.embed("base", TEXT * 300, truncate=False)


def test_the_files_of_a_model(client: ollama.Client) -> None:
    client.generate("pirate", "hello", options={"num_predict": 1})  # reads the adapter
    base, pirate = client.list().models
    assert base.size and base.details is not None and pirate.details is not None
    assert (base.details.format, base.details.family) == ("safetensors", "llama")
    assert base.details.quantization_level == "F32" and base.details.parameter_size
    assert pirate.details.parent_model == "base" and pirate.digest
    info = client.show("base").modelinfo or {}
    assert info["general.parameter_count"] > 1000 and info["llama.embedding_length"] == 32
