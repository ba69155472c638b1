"""The adapter registry: names and generations, loading, rejection, eviction and reloading."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny.adapters import adapter, save

from ostro.core.adapters.registry import ReadResult, Registry
from ostro.core.adapters.weights import AdapterWeights, LowRank
from ostro.core.engine.engine import Engine
from ostro.core.errors import (
    AdapterBusy,
    AdapterConflict,
    AdapterError,
    AdapterLimit,
    AdapterNameRefused,
    AdapterNotFound,
    RequestError,
)
from ostro.core.messages.requests import AdapterRef
from ostro.plugins.conformance.parity import Subject, greedy
from ostro.plugins.starter import FOLDERS

TEXT = [[3 * j % 100 + 1 for j in range(20)]]


@pytest.fixture
def engine(llama: Subject) -> Iterator[Engine]:
    made = llama.engine()
    yield made
    made.close()


@pytest.fixture
def registry(engine: Engine) -> Registry:
    assert engine.registry is not None
    return engine.registry


def load(registry: Registry, name: str, folder: Path, **how: object) -> str:
    """Load an adapter and wait. Return the generation. Raises the error of a rejected adapter."""
    registry.load("load", name, str(folder), **how)  # type: ignore[arg-type]
    [result] = results(registry, 1)
    if result.error is not None:
        raise result.error
    return registry.aliases[name].generation or ""


def results(registry: Registry, count: int) -> Iterator[ReadResult]:
    """The next `count` results of reads, in the order of the registry."""
    end, ended = time.monotonic() + 30, threading.Event()
    registry.wake = ended.set
    while count > 0:
        for result in registry.poll():
            yield result
            count -= 1
        ended.wait(0.1 if count > 0 else 0)
        ended.clear()
        assert time.monotonic() < end, "the read never ended"


def said(engine: Engine, **scales: float) -> list[int]:
    """Greedy tokens with adapters, which are read first if necessary."""
    registry = engine.registry
    assert registry is not None
    wanted = [AdapterRef(name=n, scale=s) for n, s in scales.items()]
    if not registry.ensure_read("said", wanted):
        [result] = results(registry, 1)
        if result.error is not None:
            raise result.error
    return greedy(engine, TEXT, 12, [registry.mixture(wanted)])[0]


def test_a_folder_is_what_it_holds(
    llama: Subject, engine: Engine, registry: Registry, tmp_path: Path
) -> None:
    first = load(registry, "sql", save(adapter(llama, 1), tmp_path / "one"))
    same = load(registry, "copy", save(adapter(llama, 1), tmp_path / "other-place"))
    other = load(registry, "style", save(adapter(llama, 2), tmp_path / "two"))
    assert first == same != other and len(first) == 64
    assert said(engine, sql=1.0) == said(engine, copy=1.0) != said(engine, style=1.0)
    by_generation = registry.mixture([AdapterRef(generation=other)])
    assert greedy(engine, TEXT, 12, [by_generation])[0] == said(engine, style=1.0)
    doubled = save(adapter(llama, 1), tmp_path / "alpha", lora_alpha=4)
    assert load(registry, "alpha", doubled) != first, "the scale is part of what it is"
    facts = {each.name: each for each in registry.infos(norms=True)}
    assert facts["sql"].rank == 4 and facts["sql"].modules == 6 and facts["sql"].loaded
    assert (facts["sql"].effect or 0) > 0.01


def test_names_are_taken_replaced_and_compared(
    llama: Subject, engine: Engine, registry: Registry, tmp_path: Path
) -> None:
    one, two = (save(adapter(llama, seed), tmp_path / str(seed)) for seed in (1, 2))
    first = load(registry, "x", one)
    before = said(engine, x=1.0)
    with pytest.raises(AdapterConflict, match="load_inplace"):
        load(registry, "x", two)
    with pytest.raises(AdapterConflict, match=r"at generation .*, expected 0000"):
        load(registry, "x", two, inplace=True, expected="0" * 64)
    assert said(engine, x=1.0) == before
    second = load(registry, "x", two, inplace=True, expected=first)
    assert second != first and said(engine, x=1.0) != before
    with pytest.raises(AdapterConflict):
        registry.unload("x", expected=first)
    registry.unload("x", expected=second)
    with pytest.raises(AdapterNotFound):
        said(engine, x=1.0)
    assert not registry.store.adapters and not registry.store.adapter_pool.adapters


def test_one_load_at_a_time(llama: Subject, registry: Registry, tmp_path: Path) -> None:
    folder = save(adapter(llama, 1), tmp_path / "a")
    registry.load("first", "a", str(folder))
    with pytest.raises(AdapterBusy):
        registry.load("second", "b", str(folder))
    assert list(results(registry, 1)) == [("first", None)]
    assert load(registry, "b", folder)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/etc", "a\\b", "a\0b", "a:b", "x" * 10**6, " a"]
)
def test_malformed_names_are_rejected(
    llama: Subject, registry: Registry, tmp_path: Path, name: str
) -> None:
    folder = save(adapter(llama, 1), tmp_path / "a")
    with pytest.raises(AdapterNameRefused) as refused:
        registry.load("load", name, str(folder))
    assert refused.value.status == 400 and len(str(refused.value)) < 300
    assert load(registry, "good name", folder)


def test_adapters_of_a_folder_are_loaded_at_first_use(
    llama: Subject, engine: Engine, registry: Registry, tmp_path: Path
) -> None:
    for seed in range(5):
        save(adapter(llama, seed), tmp_path / f"a{seed}")
    assert registry.register_folder(tmp_path) == 5
    assert not registry.store.adapters
    first = said(engine, a3=1.0)
    assert [facts.name for facts in registry.infos() if facts.loaded] == ["a3"]
    assert first == said(engine, a3=1.0) != said(engine, a4=1.0)


def test_what_was_sent_away_is_read_again_unless_it_changed(
    llama: Subject, engine: Engine, registry: Registry, tmp_path: Path
) -> None:
    for seed in range(3):
        save(adapter(llama, seed), tmp_path / f"a{seed}")
    registry.register_folder(tmp_path)
    first = said(engine, a0=1.0)
    registry.store.host_bytes = 1
    for resident in list(registry.store.adapter_pool.adapters.values()):
        registry.store.adapter_pool.evict(resident)
    said(engine, a1=1.0)
    assert [facts.name for facts in registry.infos() if facts.loaded] == ["a1"]
    assert said(engine, a0=1.0) == first
    registry.store.adapter_pool.evict(
        registry.store.adapter_pool.adapters[registry.aliases["a0"].generation or ""]
    )
    registry.store.adapters.clear()
    save(adapter(llama, 7), tmp_path / "a0")
    with pytest.raises(AdapterConflict, match="changed since"):
        said(engine, a0=1.0)
    assert said(engine, a1=1.0)


def refs(*names: str) -> list[AdapterRef]:
    return [AdapterRef(name=name) for name in names]


def test_a_name_that_is_unloaded_while_it_is_read_for_a_request(
    llama: Subject, engine: Engine, registry: Registry, tmp_path: Path
) -> None:
    registry.register("a", str(save(adapter(llama, 1), tmp_path / "a")))
    assert not registry.ensure_read("waits", refs("a"))
    registry.unload("a")
    assert list(results(registry, 1)) == [("waits", None)]
    with pytest.raises(AdapterNotFound):
        registry.mixture(refs("a"))
    assert not registry.busy
    assert not registry.store.adapters


def test_a_name_that_is_replaced_while_it_is_read_for_a_request(
    llama: Subject, engine: Engine, registry: Registry, tmp_path: Path
) -> None:
    registry.register("a", str(save(adapter(llama, 1), tmp_path / "a")))
    assert not registry.ensure_read("waits", refs("a"))
    added = registry.add("a", adapter(llama, 2), inplace=True)
    assert list(results(registry, 1)) == [("waits", None)]
    assert registry.mixture(refs("a")).generations == (added,)
    assert len(registry.store.adapters) == 1, "what no name goes to was kept"


def test_what_is_read_for_a_request_stays_until_all_of_it_is_read(
    llama: Subject, tmp_path: Path
) -> None:
    engine = llama.engine(adapter_slots=2)
    registry = engine.registry
    assert registry is not None
    registry.store.host_bytes = 1
    for seed in range(5):
        save(adapter(llama, seed), tmp_path / f"a{seed}")
    registry.register_folder(tmp_path)
    # a0 is read first, and is evicted from the device before a4 is read
    names = [("a0",), ("a1",), ("a2",), ("a3",), ("a0", "a4")]
    for i, each in enumerate(names):
        assert not registry.ensure_read(str(i), refs(*each))
    found = dict[str, int]()
    for result in results(registry, len(names)):
        assert result.error is None
        found[result.id] = len(registry.mixture(refs(*names[int(result.id)])).shares)
    assert found == {"0": 1, "1": 1, "2": 1, "3": 1, "4": 2}
    engine.close()


def test_a_cancelled_request_gets_no_result(
    llama: Subject, registry: Registry, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        registry.register(name, str(save(adapter(llama, 1), tmp_path / name)))
    assert not registry.ensure_read("gone", refs("a"))
    assert not registry.ensure_read("waits", refs("b"))
    registry.cancel("gone")
    assert list(results(registry, 1)) == [("waits", None)]
    assert not registry.busy


def test_an_unknown_name_may_be_resolved(
    llama: Subject, engine: Engine, registry: Registry, tmp_path: Path
) -> None:
    folder = save(adapter(llama, 1), tmp_path / "a")
    with pytest.raises(AdapterNotFound, match="no adapter 'customer-7'"):
        said(engine, **{"customer-7": 1.0})
    loader = registry.loader
    settings = replace(loader.settings, adapter_resolvers=True)

    plugins = loader.plugins
    locate = plugins.locate
    plugins.locate = (  # type: ignore[method-assign]
        lambda reference, settings, kind="model": (
            folder
            if (reference, kind) == ("customer-7", "adapter")
            else locate(reference, settings, kind)
        )
    )
    registry.loader = replace(loader, settings=settings)
    try:
        assert said(engine, **{"customer-7": 1.0})
        with pytest.raises(AdapterError):
            said(engine, **{"customer-8": 1.0})
    finally:
        plugins.locate = locate  # type: ignore[method-assign]


def test_limits(llama: Subject, registry: Registry, tmp_path: Path) -> None:
    registry.max_adapters = 2
    for seed in range(2):
        load(registry, f"a{seed}", save(adapter(llama, seed), tmp_path / f"a{seed}"))
    with pytest.raises(AdapterLimit, match="--max-adapters"):
        load(registry, "a2", save(adapter(llama, 2), tmp_path / "a2"))
    registry.unload("a1")
    registry.loader = replace(
        registry.loader, settings=replace(registry.loader.settings, max_adapter_rank=3)
    )
    with pytest.raises(AdapterLimit, match="rank 4"):
        load(registry, "a2", tmp_path / "a2")
    load(registry, "a3", save(adapter(llama, 2, rank=3), tmp_path / "a3"))


def test_pinned_adapters_stay(llama: Subject, tmp_path: Path) -> None:
    engine = llama.engine(adapter_slots=2)
    registry = engine.registry
    assert registry is not None
    for seed in range(4):
        load(
            registry,
            f"a{seed}",
            save(adapter(llama, seed), tmp_path / f"a{seed}"),
            pinned=seed == 0,
        )
    said(engine, a0=1.0)
    for seed in (1, 2, 3):
        said(engine, **{f"a{seed}": 1.0})
    assert registry.aliases["a0"].generation in registry.store.adapter_pool.adapters
    with pytest.raises(AdapterLimit, match="pinned"):
        said(engine, a1=1.0, a2=1.0)
    assert said(engine, a0=1.0, a1=1.0)
    engine.close()


def test_pages_of_an_evicted_adapter_change_nothing(engine: Engine, llama: Subject) -> None:
    """The next adapter gets its pages, and changes fewer linears."""
    registry, first = engine.registry, adapter(llama, 1)
    assert registry is not None
    names = [name for name in first.weights if name.endswith("q_proj")]
    part = replace(first, weights={name: adapter(llama, 2).weights[name] for name in names})
    registry.add("part", part)
    expected = said(engine, part=1.0)
    registry.unload("part")
    registry.add("first", first)
    said(engine, first=1.0)
    registry.unload("first")
    registry.add("part", part)
    assert said(engine, part=1.0) == expected


def test_an_adapter_is_stored_until_the_last_sequence_has_ended(
    registry: Registry, llama: Subject
) -> None:
    registry.add("a", adapter(llama, 1))
    mixture = registry.mixture([AdapterRef(name="a")])
    [generation] = mixture.generations
    registry.retain(mixture)
    registry.unload("a")
    assert generation in registry.store.adapters
    registry.release(mixture)
    assert generation not in registry.store.adapters


def test_the_same_mixture_needs_no_row_of_its_own(registry: Registry, llama: Subject) -> None:
    for seed in range(2):
        registry.add(f"a{seed}", adapter(llama, seed))
    one, other = (registry.mixture([AdapterRef(name=name)]) for name in ("a0", "a1"))
    adapter_pool = registry.store.adapter_pool
    first = adapter_pool.acquire(one)
    assert first is not None
    adapter_pool.mixtures.free_rows, free = [], adapter_pool.mixtures.free_rows
    again = adapter_pool.acquire(one)
    assert again is not None
    assert again.row_index(0) == first.row_index(0) != 0
    assert adapter_pool.acquire(other) is None
    adapter_pool.mixtures.free_rows = free
    for held in (first, again):
        adapter_pool.release(held)
    assert not adapter_pool.rows


def test_scales_add_up_and_must_be_finite(
    llama: Subject, engine: Engine, registry: Registry
) -> None:
    registry.add("a", adapter(llama, 1))
    base = greedy(engine, TEXT, 12)[0]
    assert said(engine, a=0.0) == base
    for wrong in (float("nan"), float("inf"), 1e9):
        with pytest.raises(RequestError, match="scale"):
            said(engine, a=wrong)
    twice = [AdapterRef(name="a", scale=0.25), AdapterRef(name="a", scale=0.5)]
    assert greedy(engine, TEXT, 12, [registry.mixture(twice)])[0] == said(engine, a=0.75)
    assert said(engine, a=-1.0) != said(engine, a=1.0)


def bad(made: Subject, folder: Path, what: str) -> Path:
    """A folder with one error."""
    good = adapter(made, 1)
    save(good, folder)
    weights = folder / "adapter_model.safetensors"
    name, first = next(iter(good.weights.items()))
    factors = dict(good.weights)
    config = json.loads((folder / "adapter_config.json").read_text())
    if what == "no json":
        (folder / "adapter_config.json").write_text("{nonsense")
    elif what == "a list":
        (folder / "adapter_config.json").write_text("[]")
    elif what == "no weights":
        weights.unlink()
    elif what == "pickle":
        weights.unlink()
        (folder / "adapter_model.bin").write_bytes(b"\x80\x04")
    elif what == "zero":
        zero = {n: replace(f, b=torch.zeros_like(f.b)) for n, f in factors.items()}
        save(replace(good, weights=zero), folder)
    elif what == "nan":
        factors[name] = replace(first, a=first.a * float("nan"))
        save(replace(good, weights=factors), folder)
    elif what == "other width":
        factors[name] = LowRank(a=torch.randn(4, 48), b=first.b)
        save(replace(good, weights=factors), folder)
    elif what == "unknown module":
        factors["model.layers.9.self_attn.q_proj"] = factors.pop(name)
        save(replace(good, weights=factors), folder)
    elif what == "half":
        save_file({"base_model.model." + name + ".lora_A.weight": first.a}, weights)
    else:
        key, _, value = what.partition("=")
        (folder / "adapter_config.json").write_text(json.dumps({**config, key: json.loads(value)}))
    return folder


BAD = {
    "no json": "adapter_config.json",
    "a list": "adapter_config.json",
    "no weights": "",
    "pickle": "pickle|safetensors",
    "zero": "has no effect",
    "nan": "NaN",
    "other width": "64",
    "unknown module": "model.layers.9",
    "half": "lora_B|pair|both",
    "r=0": "r",
    "r=null": "r",
    'r="four"': "r",
    "lora_alpha=NaN": "lora_alpha",
    'target_modules=["nothing_proj"]': "target_modules|q_proj",
    "use_qalora=true": "use_qalora",
    "layer_replication=[[0,1]]": "layer_replication",
    'init_lora_weights="pissa"': "pissa",
    'peft_type="IA3"': "IA3|IA³|no installed plugin reads",
}


@pytest.mark.parametrize("what", BAD)
def test_a_rejected_adapter_leaves_other_adapters_unchanged(
    llama: Subject, engine: Engine, registry: Registry, tmp_path: Path, what: str
) -> None:
    """The error has a location and a status; afterwards a valid adapter can have the same name."""
    load(registry, "good", save(adapter(llama, 2), tmp_path / "good"))
    before, base = said(engine, good=1.0), greedy(engine, TEXT, 12)[0]
    with pytest.raises(AdapterError) as refused:
        load(registry, "bad", bad(llama, tmp_path / "bad", what))
    assert refused.value.status in (404, 422), refused.value
    assert re.search(BAD[what], str(refused.value)), refused.value
    assert str(tmp_path) not in str(refused.value)
    assert "bad" not in registry.aliases
    assert (said(engine, good=1.0), greedy(engine, TEXT, 12)[0]) == (before, base)
    load(registry, "bad", save(adapter(llama, 1), tmp_path / "mended"))
    assert said(engine, bad=1.0) not in (before, base)


def test_factors_that_add_nothing_need_no_place(engine: Engine, llama: Subject) -> None:
    """A router in transformers 4 bypasses PEFT's module, so its trained B stays zero."""
    registry, weights = engine.registry, adapter(llama, 1)
    assert registry is not None
    registry.add("plain", weights)
    router = LowRank(a=torch.randn(4, 8), b=torch.zeros(3, 4))
    name = "model.layers.0.mlp.gate"
    registry.add("beside", replace(weights, weights={**weights.weights, name: router}))
    assert said(engine, beside=1.0) == said(engine, plain=1.0)
    for more in (replace(router, b=torch.ones(3, 4)), replace(router, bias=torch.zeros(3))):
        with pytest.raises(AdapterError, match=name):
            registry.add("felt", replace(weights, weights={**weights.weights, name: more}))


def test_the_hash_is_of_facts_and_bytes(llama: Subject) -> None:
    first: AdapterWeights = adapter(llama, 1)
    name, factors = next(iter(first.weights.items()))
    others = [
        replace(first, weights={**first.weights, name: replace(factors, scale=0.25)}),
        replace(first, weights={**first.weights, name: replace(factors, a=factors.a + 1e-6)}),
        replace(first, invocation=(1, 2)),
        replace(first, config={"r": 4}),
        replace(first, space="gguf"),
    ]
    seen = {made.generation for made in (first, *others)}
    assert len(seen) == 6
    assert adapter(llama, 1).generation == first.generation


def test_special_tokens_must_be_the_bases(llama: Subject, tmp_path: Path) -> None:
    """The tiny llama with the starter's tokenizer accepts known tokens and rejects others."""
    home = FOLDERS["model"]["starter"]
    engine = llama.engine()
    registry = engine.registry
    assert registry is not None
    registry.loader = replace(registry.loader, path=home)
    folder = save(adapter(llama, 1), tmp_path / "a")
    ids = json.loads((home / "tokenizer.json").read_text())["added_tokens"]
    known = {each["content"]: each["id"] for each in ids}
    for tokens, says in (({"<mine>": 128}, "'<mine>'"), ({next(iter(known)): 99}, "99")):
        (folder / "added_tokens.json").write_text(json.dumps(tokens))
        with pytest.raises(AdapterError, match=says):
            load(registry, "a", folder)
    (folder / "added_tokens.json").write_text(json.dumps(known))
    assert load(registry, "a", folder)
    engine.close()


def test_a_refused_adapter_leaves_no_delta_and_no_capture_behind(llama: Subject) -> None:
    """The adapter is rejected while it is attached, on modules that no other adapter changes."""
    engine = llama.engine(replay=True)
    engine.runner.capture()
    registry, pool = engine.registry, engine.runner.adapter_pool
    assert registry is not None and pool is not None
    registry.add("good", adapter(llama, 2))
    before, base = said(engine, good=1.0), greedy(engine, TEXT, 12)[0]
    buckets = dict(engine.runner.decode_buckets.mixed)
    free, changes, attached = sorted(pool.free_pages), pool.changes, pool.attached
    probe = registry.store.probe
    registry.store.probe = lambda adapter: 0.0 * (probe(adapter) or 0.0)
    shape = engine.runner.model.get_submodule("model.layers.0.mlp.down_proj").weight_shape
    up = LowRank(a=torch.randn(4, shape[1]), b=torch.randn(shape[0], 4), scale=0.5)
    weights = AdapterWeights(kind="lora", weights={"model.layers.0.mlp.down_proj": up})
    with pytest.raises(AdapterError, match="has no effect"):
        registry.add("bad", weights)
    registry.store.probe = probe
    assert pool.attached == attached and pool.changes == changes
    assert sorted(pool.free_pages) == free and weights.generation not in pool.adapters
    assert (said(engine, good=1.0), greedy(engine, TEXT, 12)[0]) == (before, base)
    now = engine.runner.decode_buckets.mixed
    assert buckets and all(now[size] is bucket for size, bucket in buckets.items())
    registry.add("bad", weights)
    assert said(engine, bad=1.0) != base
    engine.close()
