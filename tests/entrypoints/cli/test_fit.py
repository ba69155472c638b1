"""`ostro fit`: what it says of a model is what loading the model then takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny.assistants import assistant_of
from tiny.heads import with_head
from tiny.model import CONFIG, make_gguf, make_model, make_weights

from ostro.architectures.mamba2 import WIDE as MAMBA2
from ostro.architectures.mixtral import WIDE as MIXTRAL
from ostro.core.engine.engine import Engine
from ostro.core.engine.startup.build import build_engine
from ostro.core.engine.startup.memory import SHARE
from ostro.core.load import weights
from ostro.core.load.describe import DTYPES, cpu_has_bf16
from ostro.core.load.model import LoadedModel, load_model
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.entrypoints.fit.bandwidth import measure_bandwidth
from ostro.plugins.conformance.parity import subject

ROOM = 4_000_000
FORMATS = ("q8_0", "q4k", "iq4_xs", "afq4", "hqq3", "mxfp4")
SIZES = {"hidden_size": 64, "intermediate_size": 128}
SHAPES: Mapping[str, Mapping[str, Any]] = {"mixtral": MIXTRAL, "mamba2": MAMBA2}

Fitted = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def models(
    plugins: PluginManager, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """References of models by name. `odd` has linears whose rows are no multiples of 16."""
    root = tmp_path_factory.mktemp("models")
    with ExitStack() as stack:
        made = {
            name: stack.enter_context(subject(plugins, name, config=shape)).folder
            for name, shape in SHAPES.items()
        }
        made["llama"] = make_model(root / "llama", **SIZES)
        llama = make_weights({**CONFIG, **SIZES})
        save_file(llama, made["llama"] / "model.safetensors", metadata={"format": "pt"})
        odd = {"hidden_size": 96, "intermediate_size": 72}
        made["odd"] = make_model(root / "odd", **odd)
        save_file(
            make_weights({**CONFIG, **odd}), made["odd"] / "model.safetensors", {"format": "pt"}
        )
        made["half"] = make_model(root / "half", **SIZES, torch_dtype="bfloat16")
        half = {name: tensor.bfloat16() for name, tensor in llama.items()}
        save_file(half, made["half"] / "model.safetensors", {"format": "pt"})
        made["gguf"] = make_gguf(root / "tiny.gguf")
        yield {name: str(path) for name, path in made.items()}


@pytest.fixture
def fitted(ostro: Any, models: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Fitted:
    """What `ostro fit --json` prints of a model."""
    monkeypatch.setattr("ostro.entrypoints.fit.report.measure_bandwidth", lambda device: 1e9)

    def call(name: str, *words: str) -> dict[str, Any]:
        ran = ostro("fit", "-m", models[name], "--dtype", "float32", "--json", *words)
        assert ran.code == 0, ran.err
        found: dict[str, Any] = json.loads(ran.out)
        found["fits"] = {each["weights"]["name"]: each for each in found["fits"]}
        return found

    return call


@pytest.fixture
def loaded(models: dict[str, str], plugins: PluginManager) -> Callable[..., LoadedModel]:
    def call(name: str, **asked: Any) -> LoadedModel:
        settings = Settings(**{"reference": models[name], "dtype": "float32", **asked})
        return load_model(Path(models[name]), settings, plugins)

    return call


@pytest.fixture
def engine(loaded: Callable[..., LoadedModel], plugins: PluginManager) -> Callable[..., Engine]:
    def call(name: str, **asked: Any) -> Engine:
        settings = Settings(reference=name, dtype="float32", **asked)
        return build_engine(loaded(name, context=settings.context), settings, plugins, ())

    return call


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "formats"),
    [
        ("llama", FORMATS),
        ("odd", ("q4_0", "q8_0", "mxfp4")),
        ("half", ("afq4", "hqq3")),
        ("mixtral", ("q4k", "afq4", "mxfp4")),
        ("mamba2", ("q4k", "hqq3")),
    ],
)
def test_estimated_weight_sizes_match_the_loaded_model(
    fitted: Fitted, loaded: Callable[..., LoadedModel], name: str, formats: tuple[str, ...]
) -> None:
    found = fitted(name)["fits"]
    assert found["as stored"]["weights"]["nbytes"] == loaded(name).nbytes
    for quant in formats:
        assert found[quant]["weights"]["nbytes"] == loaded(name, quant=quant).nbytes, quant


def test_quantized_weights_are_not_converted(
    fitted: Fitted, loaded: Callable[..., LoadedModel]
) -> None:
    found = fitted("gguf")["fits"]
    assert found["as stored"]["weights"]["nbytes"] == loaded("gguf").nbytes
    assert loaded("gguf").nbytes < 0.4 * loaded("llama").nbytes


def test_no_float_weight_is_read(fitted: Fitted, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise AssertionError("a weight is read")

    monkeypatch.setattr(weights.WeightReader, "tensor", refuse)
    assert len(fitted("mixtral")["fits"]) > 10


def test_requested_rules_and_formats_apply(
    fitted: Fitted, loaded: Callable[..., LoadedModel]
) -> None:
    rules = "*.down_proj = float"
    found = fitted("llama", "--quant", "4", "--topology", rules)["fits"]
    assert found.keys() == {"q4k"}
    asked = loaded("llama", quant="4", topology=rules)
    assert found["q4k"]["weights"]["nbytes"] == asked.nbytes
    every = fitted("llama", "--topology", rules)["fits"]
    assert every["q4k"]["weights"] == found["q4k"]["weights"]


def test_a_token_reads_its_experts_and_one_row_of_the_embedding(fitted: Fitted) -> None:
    words = ("--quant", "q8_0", "--topology", "lm_head = float")
    found = fitted("mixtral", *words)["fits"]["q8_0"]["weights"]
    d, hidden = MIXTRAL["hidden_size"], MIXTRAL["intermediate_size"]
    experts, chosen = MIXTRAL["num_local_experts"], MIXTRAL["num_experts_per_tok"]
    vocab, layers = MIXTRAL["vocab_size"], MIXTRAL["num_hidden_layers"]
    idle = layers * (experts - chosen) * 3 * d * hidden + (vocab - 1) * d
    assert found["nbytes"] - found["read"] == pytest.approx(idle * 8.5 / 8)


def test_a_tied_head_reads_the_embedding(
    fitted: Fitted, models: dict[str, str], tmp_path: Path
) -> None:
    alone = fitted("llama", "--quant", "q8_0")["fits"]["q8_0"]
    tied = {**CONFIG, **SIZES, "tie_word_embeddings": True}
    models["tied"] = str(make_model(tmp_path / "tied", **tied))
    tensors = make_weights({**CONFIG, **SIZES})
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "tied" / "model.safetensors", {"format": "pt"})
    shared = fitted("tied", "--quant", "q8_0")["fits"]["q8_0"]
    assert shared["weights"]["read"] == alone["weights"]["read"]
    assert alone["speed"] == pytest.approx(1e9 / alone["weights"]["read"])
    held = alone["weights"]["nbytes"] - shared["weights"]["nbytes"]
    assert held == 320 * 64 * 8.5 / 8


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", ["auto", "int8", "fp8"])
@pytest.mark.parametrize("name", ["llama", "mixtral", "mamba2"])
def test_estimated_cache_sizes_match_the_engine(
    fitted: Fitted, engine: Callable[..., Engine], name: str, kind: str
) -> None:
    growths = {each["name"]: each for each in fitted(name, "--quant", "q8_0")["growths"]}
    if name == "mamba2" and kind != "auto":
        assert kind not in growths
        return
    groups = engine(name, kv_dtype=kind, context=250, memory="4MB").blocks.groups
    tensors = [tensor for g in groups for tensor in getattr(g.kind, "tensors", [])]
    states = [state for g in groups for state in getattr(g.kind, "states", [])]
    tokens = groups[0].pool.size * 64
    assert growths[kind]["per_1000"] == 1000 * sum(t.nbytes for t in tensors) // tokens
    blocks = min(-(-250 // 64) + 1, 3)
    each = sum(s.nbytes // s.shape[1] for s in states)
    assert growths[kind]["fixed"] == blocks * each and (not states) == (each == 0)


def test_a_draft_model_takes_memory(
    fitted: Fitted,
    loaded: Callable[..., LoadedModel],
    models: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For its weights as they are stored, and for its KV cache in floats."""
    monkeypatch.setattr("ostro.entrypoints.fit.report.free_bytes", lambda device: 10**9)
    plain, draft = fitted("llama", "--quant", "q8_0"), fitted("half")
    found = fitted("llama", "--quant", "q8_0", "--speculate", models["half"])
    dtype = "bfloat16" if cpu_has_bf16() else "float32"
    assert found["draft_nbytes"] == loaded("half", dtype=dtype).nbytes
    assert not plain["draft_nbytes"]
    own, its = (
        {each["name"]: each["per_1000"] for each in fit["growths"]} for fit in (plain, draft)
    )
    floats = its["auto"] * DTYPES[dtype].itemsize // 4  # `fitted` computes in float32
    assert {each["name"]: each["per_1000"] for each in found["growths"]} == {
        name: nbytes + floats for name, nbytes in own.items()
    }
    before, after = plain["fits"]["q8_0"], found["fits"]["q8_0"]
    assert before["weights"] == after["weights"]
    less = before["room"] - after["room"]
    assert less == pytest.approx(SHARE["cpu"] * found["draft_nbytes"], abs=2)
    small = ("--memory", "2MB", "--context", "256")
    streams = [
        fitted("llama", *small, *more)["fits"]["as stored"]["streams"]
        for more in ((), ("--speculate", models["half"]))
    ]
    assert streams[0] > streams[1] > 0


def test_an_assistant_takes_memory_for_weights_alone(
    fitted: Fitted, models: dict[str, str], plugins: PluginManager, tmp_path: Path
) -> None:
    """In the dtype of its target."""
    with subject(plugins, "gemma4") as target:
        assistant = assistant_of(target.reference, tmp_path)
        assistant.bfloat16().save_pretrained(tmp_path)
        models["gemma4"] = str(target.folder)
        plain, found = fitted("gemma4"), fitted("gemma4", "--speculate", str(tmp_path))
    settings = Settings(device="cpu", dtype="float32")
    assert found["draft_nbytes"] == load_model(tmp_path, settings, plugins).nbytes
    assert found["growths"] == plain["growths"]


def test_a_multi_token_head_takes_memory_but_no_time(
    fitted: Fitted, models: dict[str, str], plugins: PluginManager
) -> None:
    with with_head(plugins, "glm4_moe") as (target, _):
        models["glm4_moe"] = str(target.folder)
        plain, found = fitted("glm4_moe"), fitted("glm4_moe", "--speculate", "heads")
        nbytes = target.load(speculate="heads").nbytes
    weights, before = (each["fits"]["as stored"]["weights"] for each in (found, plain))
    assert weights["nbytes"] == nbytes > before["nbytes"] and weights["read"] == before["read"]
    assert found["growths"][0]["per_1000"] > plain["growths"][0]["per_1000"]


def test_an_unknown_speculator_is_refused(ostro: Any, models: dict[str, str]) -> None:
    ran = ostro("fit", "-m", models["llama"], "--speculate", "ngrams")
    assert ran.code and "no such speculator; nearest: ngram" in ran.err


@pytest.mark.parametrize("name", ["llama", "mamba2"])
@pytest.mark.parametrize("streams", [1, 4, 32])
def test_streams_fit_where_an_engine_has_room(
    fitted: Fitted, engine: Callable[..., Engine], name: str, streams: int
) -> None:
    """Those that it says fit do, and those that it says do not have no room."""
    words = ("--memory", f"{ROOM}B", "--context", "1000", "--quant", "q8_0")
    found = fitted(name, *words)
    fits = str(streams) in found["contexts"]["1000"]
    kinds = engine(name, memory=f"{ROOM}B", context=1000, max_seqs=streams).blocks.groups
    held = min(g.pool.size // g.kind.blocks_of(1000, 512) for g in kinds)
    assert fits == (held >= streams)
    one = fitted(name, *words, "--max-seqs", str(streams))["fits"]["q8_0"]
    assert one["streams"] == min(held, streams) and one["context"] == 1000


def test_the_context_is_the_one_an_engine_takes(
    fitted: Fitted, engine: Callable[..., Engine]
) -> None:
    few = ("--quant", "q8_0")
    found = fitted("llama", *few, "--memory", "200KB")["fits"]["q8_0"]
    assert found["context"] == engine("llama", memory="200KB").context < 1024
    enough = fitted("llama", *few, "--memory", "1GB", "--context", "1024")["fits"]["q8_0"]
    assert (enough["context"], enough["streams"]) == (1024, 32)


def test_formats_that_do_not_fit_are_marked(
    ostro: Any, models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostro.entrypoints.fit.report.free_bytes", lambda device: 500_000)

    def rows_of(room: str) -> dict[str, list[str]]:
        words = ("-m", models["llama"], "--dtype", "float32", "--memory", room)
        lines = [line.split("│") for line in ostro("fit", *words).out.splitlines()]
        rows = ([cell.strip() for cell in cells[1:-1]] for cells in lines if len(cells) > 3)
        return {cells[0]: cells[3:] for cells in rows}

    enough = rows_of("100KB")
    assert enough["as stored"][0] == "does not fit"
    assert enough["q8_0"][:2] == ["128", "1"]
    assert rows_of("10KB")["q8_0"][0] == "no memory for a sequence"


def test_the_default_output_is_tables(ostro: Any, models: dict[str, str]) -> None:
    ran = ostro("fit", "-m", models["llama"], "--dtype", "float32", "--kv-dtype", "int8")
    assert ran.code == 0
    for text in ("bandwidth", "as stored", "KV cache int8: ", "KV cache in int8 by context"):
        assert text in ran.out


def test_formats_with_fallbacks_are_marked(
    ostro: Any, fitted: Fitted, models: dict[str, str]
) -> None:
    weights = {name: each["weights"] for name, each in fitted("odd")["fits"].items()}
    assert weights["as stored"]["fallbacks"] == 0 < weights["q8_0"]["fallbacks"]
    out = ostro("fit", "-m", models["odd"], "--dtype", "float32", "--quant", "q8_0").out
    assert " q8_0 * " in out and "* The rows of some weights" in out
    plain = ostro("fit", "-m", models["llama"], "--dtype", "float32", "--quant", "q8_0").out
    assert " q8_0 " in plain and "*" not in plain


def test_an_encoder_draws_no_tokens(
    ostro: Any, plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subject(plugins, "bert") as bert:
        ran = ostro("fit", "-m", str(bert.folder), "--json")
    found = json.loads(ran.out)
    assert found["growths"] == [] and found["contexts"] == {}
    assert all(each["speed"] is None and each["room"] > 0 for each in found["fits"])


def test_bandwidth_is_that_of_memory() -> None:
    """A cache of one core reads hundreds of GB/s, the slowest memory more than one."""
    assert 5e8 < measure_bandwidth(torch.device("cpu")) < 1e12


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--quant", "6GB"), "--quant 6GB names no format"),
        (("--placement", "auto"), "for one device"),
        (("--quant", "q9"), "q9"),
        (("--kv-dtype", "int9"), "int9"),
    ],
)
def test_unsupported_options_of_fit_are_rejected(
    ostro: Any, tiny: str, words: Any, text: str
) -> None:
    ran = ostro("fit", "-m", tiny, *words)
    assert ran.code != 0 and text in ran.err
