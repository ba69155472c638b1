"""The engine's loop on a GPU: captured steps, waits, allocations and kernels compiled late."""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from gpu.comparison import ON_GPU, error, pick
from tiny import assistants
from tiny.drafts import (
    LENGTH,
    Oracle,
    requests_of,
    run,
    speculating,
    speculation_of,
    whole,
)
from tiny.heads import deviation_of, record_proposals, with_head
from torch import Tensor

from ostro.core.adapters.adapter import EMPTY, Mixture
from ostro.core.engine.buckets import Bucket, DecodeBucket, PromptBucket
from ostro.core.engine.engine import Engine
from ostro.core.engine.startup.start import open_engine
from ostro.core.load.model import load_model
from ostro.core.messages.commands import ModelSpec
from ostro.core.messages.outputs import TokenOutput
from ostro.core.messages.requests import AdapterRef, Sampling, TokenRequest
from ostro.core.ops.attention import AttentionMetadata
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.core.step import Step
from ostro.entrypoints.bench.adapters import random_adapter
from ostro.plugins.conformance.kernels import DEVICE
from ostro.plugins.conformance.parity import RED, subject

SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "bfloat16" if ON_GPU else "float32",
    "vocab_size": 500,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
LIMIT = 3e-2
"""The relative error of logits in bfloat16: a mean squared error of 1e-3."""

SEQS = 32
CONTEXT = 1024


@contextmanager
def opened(model: str, folder: Path, **settings: object) -> Iterator[Engine]:
    """A warm engine with random weights of a published model, or of the tiny `SHAPE`."""
    if model == "tiny" or not ON_GPU:
        (folder / "config.json").write_text(json.dumps(SHAPE))
        model = str(folder / "config.json")
    chosen = Settings(
        dummy_weights=model,
        device=DEVICE.type,
        dtype="bfloat16" if ON_GPU else "float32",
        max_seqs=pick(SEQS, 4),
        context=pick(CONTEXT, 128),
        replay=not ON_GPU,
    )
    plugins = PluginManager()
    plugins.load(chosen)
    spec = ModelSpec(replace(chosen, **settings))  # type: ignore[arg-type]
    models, explain = open_engine([spec], plugins, lambda *progress: None)
    print("\n".join(explain))
    try:
        engine = models.first.tokens
        assert engine is not None
        yield engine
    finally:
        models.close()


def random_requests(
    engine: Engine, count: int, *, seed: int, greedy: bool = False, cache: bool = True
) -> list[TokenRequest]:
    """Requests of mixed lengths, a third of them with draws, a few with penalties."""
    rng, longest = random.Random(seed), engine.context // 2
    requests = []
    for number in range(count):
        rules = Sampling(temperature=0, max_tokens=rng.randint(1, 24), ignore_eos=True)
        kind = 0 if greedy else number % 6
        if kind == 1:
            rules = replace_rules(rules, temperature=0.8)
        elif kind == 2:
            rules = replace_rules(rules, temperature=0.8, top_k=20, top_p=0.95)
        elif kind == 3:
            rules = replace_rules(rules, repetition_penalty=1.1, frequency_penalty=0.1)
        length = rng.choice([rng.randint(1, 20), rng.randint(1, longest)])
        tokens = [rng.randrange(engine.vocab) for _ in range(length)]
        id = f"{seed} {number}"
        requests.append(TokenRequest(id=id, tokens=tokens, sampling=rules, cache=cache))
    return requests


def replace_rules(rules: Sampling, **changes: object) -> Sampling:
    from msgspec.structs import replace as changed

    return changed(rules, **changes)


def serve(
    engine: Engine, requests: Sequence[TokenRequest], mixtures: Sequence[Mixture] = ()
) -> list[TokenOutput]:
    """Submit a few requests per step, so that prompts and decode rows mix; return all outputs."""
    outputs, waiting = list[TokenOutput](), list(enumerate(requests))
    while waiting or engine.busy:
        for index, request in waiting[:3]:
            engine.submit(request, mixtures[index % len(mixtures)] if mixtures else EMPTY)
        del waiting[:3]
        outputs += engine.step()
    failed = [output.error for output in outputs if output.error is not None]
    assert not failed, failed[:3]
    return outputs


def tokens_of(outputs: Sequence[TokenOutput]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for output in outputs:
        found.setdefault(output.id, []).extend(output.tokens)
    return found


@contextmanager
def compared_steps(engine: Engine) -> Iterator[dict[type[Bucket], list[float]]]:
    """Run each step of a bucket also eagerly; yield the relative errors, by the kind of bucket.

    They are those of the logits for decode steps, else those of the hidden states.
    """
    errors, run = defaultdict[type[Bucket], list[float]](list), Bucket.run

    def compared(bucket: Bucket, step: Step, batches: Sequence[AttentionMetadata]) -> Tensor:
        model, runner = engine.runner.model, engine.runner
        expected = model.hidden(replace(step, caches=runner.cache_views(batches)))
        if isinstance(bucket, DecodeBucket):
            expected = model.logits(expected, step)
        expected = expected.clone()
        found = run(bucket, step, batches)
        equal = torch.equal(found, expected)
        errors[type(bucket)].append(0.0 if equal else error(found, expected))
        return found

    with mock.patch.object(Bucket, "run", compared):
        yield errors


def adapter_mixtures(engine: Engine, count: int) -> list[Mixture]:
    """The base model and `count` random adapters."""
    registry = engine.registry
    assert registry is not None
    for seed in range(count):
        registry.add(f"adapter {seed}", random_adapter(registry, 8 + 16 * seed, seed))
    return [EMPTY, *(registry.mixture([AdapterRef(name=f"adapter {i}")]) for i in range(count))]


@pytest.mark.parametrize("model", ["tiny", "qwen3-0.6b"])
def test_captured_steps_equal_eager_steps(model: str, tmp_path: Path) -> None:
    with opened(model, tmp_path) as engine:
        sizes = set(engine.runner.decode_buckets.plain)
        assert sizes == {size for size in (1, 2, 4, 8, 16, 32) if size <= engine.scheduler.max_seqs}
        with compared_steps(engine) as errors:
            serve(engine, random_requests(engine, pick(60, 6), seed=1))
        for kind in DecodeBucket, PromptBucket:
            assert len(errors[kind]) > pick(10, 3), kind
            assert max(errors[kind]) <= LIMIT, (kind, sorted(errors[kind])[-5:])


def test_captured_steps_with_adapters_equal_eager_steps(tmp_path: Path) -> None:
    with opened("tiny", tmp_path) as engine:
        mixtures = adapter_mixtures(engine, 3)
        with compared_steps(engine) as errors:
            serve(engine, random_requests(engine, pick(60, 6), seed=2), mixtures)
        assert engine.runner.decode_buckets.mixed
        assert engine.runner.prompt_buckets.mixed
        assert all(max(each) <= LIMIT for each in errors.values()), errors


def test_deterministic_answers_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    with opened("tiny", tmp_path, deterministic=True) as engine:
        requests = random_requests(engine, pick(24, 4), seed=3, greedy=True)
        together = tokens_of(serve(engine, requests))
        for request in requests[:: pick(4, 2)]:
            assert tokens_of(serve(engine, [request]))[request.id] == together[request.id]


@pytest.mark.parametrize("name", ["qwen3_next", "lfm2", "mamba2", "qwen3"])
def test_answers_are_the_same_with_drafts(name: str, tmp_path: Path) -> None:
    """Right and wrong ones, in captured steps; of recurrent layers, each has a state."""
    plugins = PluginManager()
    plugins.load()
    with subject(plugins, name) as model:
        options = {"device": DEVICE.type, "replay": not ON_GPU, "deterministic": True}
        engine = model.engine(rows=64, blocks=64, max_seqs=4, **options)
        engine.runner.capture()
        requests = requests_of(model)
        wanted = run(engine, requests)
        for wrong in (10**9, 5):
            speculation = speculating(engine, Oracle(whole(requests, wanted), wrong))
            assert run(engine, requests) == wanted
            assert speculation.accepted > LENGTH


@pytest.mark.parametrize("name", pick(["qwen3_next", "qwen3_5", "deepseek_v3"], ["qwen3_5"]))
def test_multi_token_heads(name: str) -> None:
    """In captured steps: drafts are those of the reference, and answers the same with them."""
    plugins = PluginManager()
    plugins.load()
    with with_head(plugins, name) as (model, head):
        options = {"device": DEVICE.type, "replay": not ON_GPU, "deterministic": True}
        wanted = run(model.engine(blocks=64, max_seqs=4, **options), requests_of(model))
        engine = model.engine(rows=64, blocks=64, max_seqs=4, speculate="heads", **options)
        engine.runner.capture()
        proposals = record_proposals(engine)
        assert run(engine, requests_of(model)) == wanted
        assert len(proposals) > LENGTH and not speculation_of(engine).failed
        on_host = [(tokens, drafts, logits.cpu()) for tokens, drafts, logits in proposals]
        assert deviation_of(model, head, on_host) <= RED


@pytest.mark.parametrize("fields", [{}, assistants.ORDERED])
def test_assistants(fields: dict[str, Any], tmp_path: Path) -> None:
    """As `test_multi_token_heads`: the assistant of a model with windows."""
    plugins = PluginManager()
    plugins.load()
    with subject(plugins, "gemma4") as model:
        assistant = assistants.assistant_of(model.reference, tmp_path, **fields)
        options = {"device": DEVICE.type, "replay": not ON_GPU, "deterministic": True}
        wanted = run(model.engine(blocks=64, max_seqs=4, **options), requests_of(model))
        loaded = model.load(device=DEVICE.type)
        settings = Settings(device=DEVICE.type, dtype="float32")
        loaded.draft = load_model(tmp_path, settings, plugins)
        speculate = {"speculate": str(tmp_path), **options}
        engine = model.engine(loaded, rows=64, blocks=64, max_seqs=4, **speculate)
        engine.runner.capture()
        proposals = assistants.record_proposals(engine)
        assert run(engine, requests_of(model)) == wanted
        assert len(proposals) > LENGTH and not speculation_of(engine).failed
        on_host = [(tokens, drafts, hidden.cpu()) for tokens, drafts, hidden in proposals]
        assert assistants.deviation_of(model.reference, assistant, on_host) <= RED


def test_preempted_requests_run_again(tmp_path: Path) -> None:
    with opened("tiny", tmp_path, memory=pick("2MiB", "1MiB")) as engine:
        serve(engine, random_requests(engine, pick(60, 6), seed=4))
        print(f"{engine.stats().preemptions} preemptions")


@contextmanager
def compiled_kernels() -> Iterator[list[str]]:
    """The names of the kernels that are first launched with new constants in the context."""
    from triton.runtime.jit import JITFunction

    names, compile = list[str](), JITFunction._do_compile

    def counted(self: JITFunction, *args: object, **kwargs: object) -> object:
        names.append(self.fn.__name__)
        return compile(self, *args, **kwargs)

    with mock.patch.object(JITFunction, "_do_compile", counted):
        yield names


@pytest.mark.parametrize("quant", [None, "Q4_K", "Q8_0"])
def test_nothing_is_compiled_in_requests(quant: str | None, tmp_path: Path) -> None:
    with opened("qwen3-0.6b", tmp_path, quant=quant) as engine, compiled_kernels() as names:
        serve(engine, random_requests(engine, pick(200, 4), seed=5))
        assert not names, f"{len(names)} kernels: {names}"


def test_steps_do_not_wait_for_the_device(tmp_path: Path) -> None:
    if not ON_GPU:
        pytest.skip("torch counts waits of CUDA only")
    with opened("tiny", tmp_path) as engine:
        mixtures = adapter_mixtures(engine, 2)
        serve(engine, random_requests(engine, 30, seed=6), mixtures)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                serve(engine, random_requests(engine, 60, seed=7), mixtures)
            finally:
                torch.cuda.set_sync_debug_mode("default")
    found = [f"{w.filename}:{w.lineno}" for w in caught if "synchronizing" in str(w.message)]
    # torch itself waits once, when the mode is set.
    waits = Counter(place for place in found if "torch/cuda/__init__.py" not in place)
    assert not waits, f"waits by place: {dict(waits)}"


def test_no_memory_is_allocated_after_warm_up(tmp_path: Path) -> None:
    if not ON_GPU:
        pytest.skip("torch counts allocations of CUDA only")
    with opened("qwen3-0.6b", tmp_path) as engine:
        requests = random_requests(engine, 150, seed=8, cache=False)
        serve(engine, requests)
        before = torch.cuda.memory_stats()["num_device_alloc"]
        serve(engine, requests)
        assert torch.cuda.memory_stats()["num_device_alloc"] == before


def test_a_model_that_reads_values_on_the_host_runs_eagerly(tmp_path: Path) -> None:
    with opened("tiny", tmp_path) as engine:
        expected = tokens_of(serve(engine, random_requests(engine, 5, seed=9, greedy=True)))
        hidden = engine.runner.model.hidden

        def reading(step: object) -> Tensor:
            found = hidden(step)  # type: ignore[arg-type]
            assert found.sum().item() == found.sum().item()
            return found

        with mock.patch.object(engine.runner.model, "hidden", reading):
            engine.runner.capture()
            assert engine.runner.graphs.refused
            assert (
                bool(engine.runner.decode_buckets.plain) != ON_GPU
            )  # replay mode keeps an eager call
            found = tokens_of(serve(engine, random_requests(engine, 5, seed=9, greedy=True)))
    assert found.keys() == expected.keys()
    assert all(len(found[id]) == len(expected[id]) for id in found)
