"""Gemma 4's assistants: drafts are those of transformers, and answers are the same with them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from tiny.assistants import (
    FIELDS,
    ORDERED,
    Pair,
    assistant_of,
    candidates,
    record_proposals,
    reference_passes,
)
from tiny.drafts import LENGTH, Oracle, requests_of, run, run_with_adapter, speculation_of, whole
from tokenizers import Tokenizer, decoders, models

from ostro.core.engine.processors import Processors
from ostro.core.engine.proposers.assistant import AssistantProposer
from ostro.core.engine.startup.start import open_weights
from ostro.core.engine.startup.warm_up import make_ready
from ostro.core.errors import UsageError
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import LogitsProcessor
from ostro.core.settings import Settings
from ostro.plugins.conformance.parity import BAR, Subject, greedy, subject
from ostro.plugins.conformance.second_device import second_device

RECORDS = [
    LogitsProcessor(name=name, processor=f"tiny.processors:{kind}", mask=True)
    for name, kind in (("forcing", "Forcing"), ("silent", "MaskNoRepeat"))
]
COLD = {"temperature": 0.4, "top_k": 2, "seed": 11}


def cold(tiny: Subject) -> list[TokenRequest]:
    return [replace(r, sampling=replace(r.sampling, **COLD)) for r in requests_of(tiny)]


TARGETS: dict[str, dict[str, Any]] = {
    # with shared keys, windows and embeddings of each layer; with experts and keys as values
    "gemma4": {},
    "gemma4 ordered": ORDERED,
    "gemma4_moe": {},
    "gemma4_images": {"unified": True},
}


@pytest.fixture(scope="module", params=TARGETS)
def pair(
    request: pytest.FixtureRequest,
    plugins: PluginManager,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("assistant")
    fields = TARGETS[request.param]
    with subject(plugins, request.param.partition(" ")[0]) as tiny:
        yield Pair(tiny, assistant_of(tiny.reference, folder, **fields), folder)


@pytest.fixture(scope="module")
def dense(plugins: PluginManager, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("assistant")
    with subject(plugins, "gemma4") as tiny:
        yield Pair(tiny, assistant_of(tiny.reference, folder), folder)


def test_the_reference_is_that_of_transformers(pair: Pair) -> None:
    """Before a window is full and a token rejected, where its candidate generator differs."""
    tokens = pair.tiny.prompt[:6]
    ids, logits = candidates(pair.tiny.reference, pair.assistant, tokens, 4)
    passes, _ = reference_passes(pair.tiny.reference, pair.assistant, tokens, ids)
    assert torch.allclose(passes, logits, atol=1e-5) and passes.argmax(-1).tolist() == ids


@pytest.mark.sample(4)
@pytest.mark.parametrize("wrong", [0, 5])
def test_drafts_are_those_of_the_reference(pair: Pair, wrong: int) -> None:
    """In chunks of prompts, beyond windows, after drafts that were accepted or not, with an empty
    and a full prefix cache.
    """
    tiny = pair.tiny
    requests = cold(tiny)
    wanted = run(tiny.engine(**FIELDS | {"rows": 16}), requests)
    answers = whole(requests, wanted)
    engine = pair.engine(rows=16)
    proposals = record_proposals(engine, Oracle(answers, wrong) if wrong else None)
    assert run(engine, requests) == wanted
    rules = Sampling(temperature=0, max_tokens=8, ignore_eos=True)
    turns = [TokenRequest(id=str(i), tokens=t, sampling=rules) for i, t in enumerate(answers)]
    found = run(engine, turns)
    assert engine.stats().cached_tokens > 0
    assert found == run(tiny.engine(**FIELDS | {"rows": 16}), turns)
    assert speculation_of(engine).accepted >= 20 * bool(wrong)
    assert len(proposals) > 20 and max(len(drafts) for _, drafts, _ in proposals) > 2
    assert pair.off(proposals) <= BAR


@pytest.mark.parametrize("blocks", [7, 18])
def test_drafts_are_right_after_preemptions(dense: Pair, blocks: int) -> None:
    requests = cold(dense.tiny)
    wanted = run(dense.tiny.engine(**FIELDS), requests)
    engine = dense.engine(rows=16, blocks=blocks)
    proposals = record_proposals(engine, Oracle(whole(requests, wanted), 7))
    assert run(engine, requests) == wanted
    assert engine.stats().preemptions or blocks > 7
    assert engine.stats().blocks_used == 0
    assert proposals and dense.off(proposals) <= BAR


@pytest.mark.sample(2)
@pytest.mark.parametrize("replay", [False, True])
def test_answers_are_the_same_with_an_assistant(pair: Pair, replay: bool) -> None:
    requests = requests_of(pair.tiny)
    wanted = run(pair.tiny.engine(**FIELDS), requests)
    engine = pair.engine(replay=replay)
    proposals = record_proposals(engine)
    assert run(engine, requests) == wanted
    speculation = speculation_of(engine)
    assert speculation.drafted > LENGTH and not speculation.failed
    assert engine.stats().blocks_used == 0
    assert pair.off(proposals) <= BAR


def test_an_assistant_reads_a_quantized_cache(dense: Pair) -> None:
    requests = requests_of(dense.tiny)
    wanted = run(dense.tiny.engine(kv_dtype="int8", **FIELDS), requests)
    engine = dense.engine(kv_dtype="int8")
    proposals = record_proposals(engine)
    assert run(engine, requests) == wanted
    assert proposals and not speculation_of(engine).failed
    deviations = [dense.off([proposal]) for proposal in proposals]
    same = [each for each in deviations if each < 0.2]  # int8 changes some of the tokens
    assert len(same) > len(deviations) / 2


def test_aborts_between_a_launch_and_its_read(dense: Pair) -> None:
    engine = dense.engine(replay=True)
    proposals = record_proposals(engine)
    for steps in range(2, 12):
        for each in requests_of(dense.tiny):
            engine.submit(replace(each, id=f"{each.id} {steps}"))
        for _ in range(steps):
            engine.step()
        for each in requests_of(dense.tiny):
            engine.abort(f"{each.id} {steps}")
        engine.drain()
    assert proposals and dense.off(proposals) <= BAR
    proposer = speculation_of(engine).proposer
    assert isinstance(proposer, AssistantProposer) and not any(proposer.computed)
    assert not speculation_of(engine).failed and engine.stats().blocks_used == 0


def test_sequences_beyond_the_context_get_no_drafts(dense: Pair) -> None:
    requests = requests_of(dense.tiny)
    engine = dense.engine()
    proposer = speculation_of(engine).proposer
    assert isinstance(proposer, AssistantProposer) and proposer.context == 256
    proposer.context = 20
    proposals = record_proposals(engine)
    assert run(engine, requests) == run(dense.tiny.engine(**FIELDS), requests)
    assert max(len(tokens) for tokens, _, _ in proposals) == 20


@pytest.mark.parametrize("processor", ["forcing", "silent"])
def test_answers_are_the_same_with_masks_and_forced_tokens(dense: Pair, processor: str) -> None:
    place: Any = [1, 2, 3, 4] if processor == "forcing" else 7
    requests, found = requests_of(dense.tiny, processors={processor: place}), []
    for engine in (dense.tiny.engine(**FIELDS), dense.engine()):
        sampler = engine.runner.sampler
        sampler.processors = Processors(RECORDS, 4, sampler.vocab, sampler.device)
        speculates = engine.scheduler.speculation is not None
        proposals = record_proposals(engine) if speculates else []
        # With log probabilities no token is forced.
        without = [replace(r, sampling=replace(r.sampling, logprobs=None)) for r in requests]
        found.append(run(engine, without))
    assert found[0] == found[1]
    assert proposals and dense.off(proposals) <= BAR


def test_an_assistant_follows_a_model_with_adapters(dense: Pair) -> None:
    requests, found = requests_of(dense.tiny), []
    for engine in (dense.tiny.engine(**FIELDS), dense.engine()):
        found.append(run_with_adapter(dense.tiny, engine, requests))
    assert found[0] == found[1] != run(engine, requests)
    assert speculation_of(engine).drafted and not speculation_of(engine).failed


def test_an_assistant_follows_prompts_with_media(plugins: PluginManager, tmp_path: Path) -> None:
    with subject(plugins, "gemma4_images") as tiny:
        own = Pair(tiny, assistant_of(tiny.reference, tmp_path), tmp_path)
        media = [example.prompt for example in tiny.examples if example.prompt.items]
        plain, engine = tiny.engine(rows=64, blocks=64, max_seqs=4), own.engine(rows=64)
        assert media and greedy(engine, media, 20) == greedy(plain, media, 20)
        assert speculation_of(engine).drafted and not speculation_of(engine).failed


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_an_assistant_that_fails_is_turned_off(
    dense: Pair,
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = dense.engine()
    speculation = speculation_of(engine)
    assert isinstance(speculation.proposer, AssistantProposer)

    def fail(*args: Any) -> torch.Tensor:
        raise error("an assistant that fails")

    monkeypatch.setattr(speculation.proposer.assistant, "forward", fail)
    requests = requests_of(dense.tiny)
    assert run(engine, requests) == run(dense.tiny.engine(**FIELDS), requests)
    assert speculation.failed and not speculation.drafted
    assert caplog.text.count("speculative decoding is off") == 1


def test_an_assistant_has_no_cache(dense: Pair) -> None:
    plain = dense.tiny.engine(**FIELDS)
    assert len(dense.engine().runner.blocks.all) == len(plain.runner.blocks.all)


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_an_assistant_has_the_dtype_of_its_target(dense: Pair, dtype: str, tmp_path: Path) -> None:
    """The target is stored in float32, the assistant in bfloat16, or the other way around."""
    tiny, assistant = dense.tiny, assistant_of(dense.tiny.reference, tmp_path)
    stored = torch.bfloat16 if dtype == "auto" else torch.float32
    with torch.no_grad():
        for tensor in assistant.state_dict().values():
            tensor.copy_(tensor.to(stored))
    deepcopy(assistant).to(stored).save_pretrained(tmp_path)
    settings = Settings(
        reference=str(tiny.folder), speculate=str(tmp_path), dtype=dtype, device="cpu"
    )
    loaded = open_weights(settings, tiny.plugins)
    assert loaded.draft is not None
    assert loaded.dtype == loaded.draft.dtype == getattr(torch, dtype, torch.float32)
    engine = tiny.engine(loaded, speculate=str(tmp_path), **FIELDS)
    make_ready(engine, loaded)
    proposals = record_proposals(engine)
    run(engine, requests_of(tiny))
    assert proposals and not speculation_of(engine).failed
    if dtype == "auto":
        assert Pair(tiny, assistant, tmp_path).off(proposals) <= BAR


def test_an_assistant_of_other_models_is_refused(dense: Pair, plugins: PluginManager) -> None:
    fault = "is an assistant of other models: they are models of Gemma 4"
    with subject(plugins, "gemma2") as tiny, pytest.raises(UsageError, match=fault):
        Pair(tiny, dense.assistant, dense.folder).engine()


def test_an_assistant_of_another_vocabulary_is_refused(dense: Pair, tmp_path: Path) -> None:
    """Both have as many tokens."""
    words = [[f"{kind}{i}" for i in range(128)] for kind in "ab"]
    shutil.copytree(dense.folder, tmp_path, dirs_exist_ok=True)
    files = [folder / "tokenizer.json" for folder in (dense.tiny.folder, tmp_path)]
    try:
        for file, pieces in zip(files, words, strict=True):
            tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(pieces)}, []))
            tokenizer.decoder = decoders.ByteLevel()
            tokenizer.save(str(file))
        with pytest.raises(UsageError, match="its vocabulary is another one than the model's"):
            Pair(dense.tiny, dense.assistant, tmp_path).engine()
    finally:
        files[0].unlink()


def test_layers_on_another_device_are_refused(dense: Pair) -> None:
    fault = "it is on cpu, and the KV cache that it reads is not"
    layers = ", ".join(f"model.layers.{i} = cpu:1" for i in (1, 3, 4))
    with second_device():
        with pytest.raises(UsageError, match=fault):
            dense.engine(dense.tiny.load(placement=layers))
        loaded = dense.tiny.load(placement="model.layers.0 = cpu:1")
        engine, requests = dense.engine(loaded), requests_of(dense.tiny)
        proposals = record_proposals(engine)
        assert run(engine, requests) == run(dense.tiny.engine(**FIELDS), requests)
        assert proposals and dense.off(proposals) <= BAR
