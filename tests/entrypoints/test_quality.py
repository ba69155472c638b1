"""`ostro quality`: the loss of quantization, with results that are known in advance."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import exp, log
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from tiny.model import CONFIG, change_config, change_weights, make_gguf, make_model, make_weights

from ostro.core.errors import UsageError
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.entrypoints.cli import main, stages
from ostro.entrypoints.cli.quality import QUICK
from ostro.entrypoints.quality import divergence, figures, layers, plot
from ostro.entrypoints.quality.text import FOLDER, Window, batches, read_text, windows
from ostro.plugins.conformance.parity import subject

SIZES = {"hidden_size": 64, "intermediate_size": 128}
DOWN = "model.layers.1.mlp.down_proj"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose rows are of whole blocks of 64."""
    folder = make_model(tmp_path_factory.mktemp("models") / "tiny", **SIZES)
    weights = make_weights({**CONFIG, **SIZES})
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    """The same model in a folder that may be changed."""
    folder = make_model(tmp_path / "copy", **SIZES)
    (folder / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 500 tokens."""
    file = tmp_path_factory.mktemp("texts") / "text.txt"
    words = Path(__file__).read_text().split()
    file.write_text(" ".join(Random(0).choices(words, k=80)))
    return file


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `ostro quality`; gives its exit code and what it wrote."""

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["quality", *map(str, words)])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def report(run: Run, model: Path, text: Path) -> Callable[..., dict[str, Any]]:
    """What `ostro quality --json` prints of the tiny model."""

    def call(*words: object, model: Path = model, text: Path = text) -> dict[str, Any]:
        code, out, err = run("-m", model, "--text", text, "--json", *words)
        assert code == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    return call


def test_a_model_compared_with_itself_has_no_divergence(report, copy: Path, model: Path) -> None:
    [same] = report("--reference", model, model=copy)["variants"]
    assert same["kl"] == {"value": 0, "low": 0, "high": 0} and same["kl_p99"] == 0
    assert same["top1"]["value"] == 1 and 0.98 < same["top1"]["low"] < 1
    assert same["ratio"] == {"value": 1, "low": 1, "high": 1}
    assert {layer["error"] for layer in same["layers"]} == {0}


def test_fewer_bits_have_larger_divergence(report) -> None:
    found = report("--quant", "afq8,afq4,afq2", "--exact")
    eight, four, two = found["variants"]
    assert [variant["name"] for variant in found["variants"]] == ["afq8", "afq4", "afq2"]
    assert 0 < 10 * eight["kl"]["value"] < four["kl"]["value"] < two["kl"]["value"] / 2
    assert eight["kl_p99"] < four["kl_p99"] < two["kl_p99"]
    assert eight["top1"]["value"] > four["top1"]["value"] > two["top1"]["value"]
    assert [variant["weights"]["bits"] < 32 for variant in found["variants"]] == [True] * 3
    worst = [variant["layers"][0]["error"] for variant in found["variants"]]
    assert worst == sorted(worst) and found["weights"]["bits"] >= 32


def test_figures_match_those_computed_from_logits(report, model: Path, text: Path) -> None:
    """Computed again, by another way, of what the Python API says."""
    import ostro

    found = report("--quant", "afq4", "--tokens", 100, "--context", 64, "--exact")
    assert (found["windows"], found["window"], found["positions"]) == (2, 64, 63 + 35)
    with ostro.load(model) as plain, ostro.load(model, quant="afq4", exact=True) as few:
        ids = plain.tokenizer.encode(text.read_text(), special=False)[:100]
        kl, loss, lost, same = [], [], [], []
        for cut in (ids[:64], ids[64:]):
            p, q = (m.logits(cut)[:-1].double().softmax(-1) for m in (plain, few))
            kl.append((p * (p / q).log()).sum(-1))
            same.append(p.argmax(-1) == q.argmax(-1))
            for probabilities, losses in ((p, loss), (q, lost)):
                losses.append(-probabilities[range(len(cut) - 1), cut[1:]].log())
    [variant] = found["variants"]
    assert variant["kl"]["value"] == pytest.approx(float(torch.cat(kl).mean()), rel=1e-3)
    assert variant["top1"]["value"] == float(torch.cat(same).double().mean())
    assert found["perplexity"]["value"] == pytest.approx(float(torch.cat(loss).mean().exp()))
    assert variant["perplexity"]["value"] == pytest.approx(float(torch.cat(lost).mean().exp()))
    assert variant["ratio"]["value"] == pytest.approx(
        variant["perplexity"]["value"] / found["perplexity"]["value"]
    )
    held = found["weights"]
    assert held["bits"] >= 32, "floats, and what their blocks are padded with"
    assert 8 * held["nbytes"] / held["bits"] == pytest.approx(weights_of(model))


def weights_of(model: Path) -> int:
    tensors = load_file(model / "model.safetensors")
    return sum(tensor.numel() for tensor in tensors.values() if tensor.dim() == 2)


def test_the_damaged_weight_is_named(report, copy: Path, model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    spoiled = {f"{DOWN}.weight".replace(".", "__"): 2 * tensors[f"{DOWN}.weight"]}
    change_weights(copy, **spoiled)
    [plain] = report("--reference", model, model=copy)["variants"]
    first, *rest = plain["layers"]
    assert first["name"] == DOWN and first["error"] == pytest.approx(1, abs=1e-5)
    assert {layer["error"] for layer in rest} == {0}
    [few] = report("--reference", model, "--quant", "afq4", model=copy)["variants"]
    assert few["layers"][0]["name"] == DOWN and few["layers"][0]["error"] > 0.9
    assert few["layers"][1]["error"] < 0.5
    assert few["layers"][0]["format"].lower() == "afq4"


def test_weights_have_the_names_of_topology_rules(report, model: Path) -> None:
    rules = f"{DOWN} = afq2, *.v_proj = afq8"
    [variant] = report("--quant", "afq4", "--topology", rules)["variants"]
    names = {layer["name"]: layer for layer in variant["layers"]}
    stored = load_file(model / "model.safetensors")
    assert names.keys() == {
        name.removesuffix(".weight") for name, tensor in stored.items() if tensor.dim() == 2
    }
    assert variant["layers"][0]["name"] == DOWN
    for layer in range(2):
        q, v = (names[f"model.layers.{layer}.self_attn.{each}_proj"] for each in "qv")
        assert v["format"].lower() == "afq8" and q["format"].lower() == "afq4"
        assert v["error"] < q["error"] / 5


def test_rules_and_cache_dtypes_are_variants(report, model: Path) -> None:
    [rules] = report("--topology", f"{DOWN} = afq2")["variants"]
    assert rules["name"] == model.name and rules["layers"][0]["name"] == DOWN
    assert [layer["error"] > 0 for layer in rules["layers"]].count(True) == 1
    [narrow] = report("--kv-dtype", "bfloat16")["variants"]
    assert 0 < narrow["kl"]["value"] < 0.1
    assert narrow["layers"][0]["error"] == 0


@pytest.mark.slow
def test_the_starter_is_measured_on_held_out_chats(run: Run) -> None:
    code, out, _ = run("--quant", "q8_0,q4_0", "--tokens", "400", "--json", "--dtype", "float32")
    found = json.loads(out)
    eight, four = found["variants"]
    assert code == 0 and found["text"].startswith("starter")
    assert found["perplexity"]["value"] < 1.2, "it has learned to answer"
    assert 0 < eight["kl"]["value"] < four["kl"]["value"] < 0.1
    assert 8 < eight["weights"]["bits"] < 9.5


def test_the_default_output_is_tables(run: Run, model: Path, text: Path, tmp_path: Path) -> None:
    file, picture = tmp_path / "quality.json", tmp_path / "quality.svg"
    words = ("--quant", "afq8,afq2", "--json", file, "--plot", picture)
    code, out, _ = run("-m", model, "--text", text, *words)
    assert code == 0
    rows = [line.split("│") for line in out.splitlines() if "│" in line]
    assert [row[1].strip() for row in rows[:3]] == [model.name, "afq8", "afq2"]
    two = json.loads(file.read_text())["variants"][1]
    assert f"{two['kl']['value']:.3g}" in rows[2][4]
    assert two["layers"][0]["name"] in out and f"{100 * two['layers'][0]['error']:.2f} %" in out
    circles = ElementTree.fromstring(picture.read_text()).findall("{*}circle")
    assert len(circles) == 2


def test_a_terminal_of_80_columns_cuts_no_figure(
    run: Run, model: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostro.entrypoints.cli.console", lambda: Console(width=80))
    code, out, _ = run("-m", model, "--text", text, "--quant", "afq8,afq2")
    assert code == 0 and "…" not in out


def test_quick_evaluates_fewer_tokens_and_says_so(run: Run, model: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "text.txt", tmp_path / "quality.json"
    file.write_text("one two three four " * 200)
    words = ("-m", model, "--quant", "afq4", "--text", file, "--quick", "--json", out)
    code, table, _ = run(*words)
    assert code == 0 and f"The text was cut to {QUICK} tokens" in table
    found = json.loads(out.read_text())
    assert found["limit"] == QUICK and QUICK / 2 < found["positions"] < QUICK
    code, _, err = run(*words, "--tokens", 100)
    assert code == 2 and "--quick" in err


def interrupted(step: tuple[str, int]) -> Callable[[], Any]:
    """Progress that acts like Ctrl-C at a step."""

    @contextmanager
    def stages() -> Iterator[Callable[[str, int, int], None]]:
        def report(stage: str, done: int, total: int) -> None:
            if (stage, done) == step:
                raise KeyboardInterrupt

        yield report

    return stages


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("step", "names", "positions"),
    [
        (("afq8: evaluating", 0), [], 0),
        (("afq8: evaluating", 1), ["afq8"], 504),
        (("afq8: comparing weights", 0), ["afq8"], 630),
        (("afq2: evaluating", 0), ["afq8"], 630),
    ],
)
def test_an_interrupted_measurement_shows_what_it_knows(
    run: Run,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: tuple[str, int],
    names: list[str],
    positions: int,
) -> None:
    file = tmp_path / "text.txt"
    file.write_text("a" * 640)  # a token each: ten windows of 64, in two steps
    monkeypatch.setattr("ostro.entrypoints.cli.stages.stages", interrupted(step))
    words = ("-m", model, "--text", file, "--quant", "afq8,afq2", "--context", 64)
    code, out, _ = run(*words, "--json")
    assert code == 130
    if not names:
        assert not out
        return
    found = json.loads(out)
    assert found["interrupted"] and [each["name"] for each in found["variants"]] == names
    assert found["variants"][0]["positions"] == positions <= found["positions"] == 630
    code, out, _ = run(*words)
    assert code == 130 and "Interrupted" in out


class Lines(io.StringIO):
    """A stream whose lines another thread waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()

    def write(self, text: str) -> int:
        with self.changed:
            self.changed.notify_all()
            return super().write(text)

    def wait_for(self, text: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: text in self.getvalue(), 60), self.getvalue()


def test_progress_of_a_pipe_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "INTERVAL", 0.0)
    monkeypatch.setattr(sys, "stderr", stream := Lines())
    with stages.stages() as report:
        report("reading weights", 1, 4)
        stream.wait_for(": reading weights, 25 %\n")
        report("measuring", 0, 0)
        stream.wait_for(": measuring\n")
    lines = [line.partition(": ")[2] for line in stream.getvalue().splitlines()]
    kinds = list(dict.fromkeys(lines))
    assert kinds[kinds[0] == "starting" :] == ["reading weights, 25 %", "measuring"]


def test_a_short_command_reports_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "INTERVAL", 1000.0)
    monkeypatch.setattr(sys, "stderr", stream := Lines())
    with stages.stages() as report:
        report("reading weights", 1, 4)
    assert not stream.getvalue()


def test_a_picture_has_every_point_in_its_place() -> None:
    points = [
        plot.Point("eight & more", 8.5, 1e-6),
        plot.Point("four", 4.5, 2e-3),
        plot.Point("four again", 4.5, 2.1e-3),
        plot.Point("two", 2.5, 0.4),
    ]
    root = ElementTree.fromstring(plot.svg(points, "<tiny> on a text"))
    places = [(float(c.get("cx")), float(c.get("cy"))) for c in root.findall("{*}circle")]
    assert all(0 < x < plot.WIDTH and 0 < y < plot.HEIGHT for x, y in places)
    assert [x for x, _ in places] == sorted((x for x, _ in places), reverse=True)
    assert [y for _, y in places] == sorted((y for _, y in places), reverse=True)
    (_, y8), (_, y4), _, (_, y2) = places
    assert (y8 - y4) / (y8 - y2) == pytest.approx(log(2e3) / log(4e5), abs=1e-3)
    texts = {node.text: float(node.get("y")) for node in root.findall(".//{*}text")}
    assert {"eight & more", "<tiny> on a text", "1e-06"} <= texts.keys()
    assert abs(texts["four"] - texts["four again"]) >= plot.LINE, "no label covers another"


def test_other_plot_suffixes_are_rejected(run: Run, model: Path, monkeypatch) -> None:
    with pytest.raises(UsageError, match=r"\.svg"):
        plot.check_plot(Path("x.jpg"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run("-m", model, "--quant", "afq4", "--plot", "x.png")
    assert code == 2 and "install matplotlib" in err


def test_a_png_by_matplotlib(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "x.png"
    plot.draw([plot.Point("four", 4.5, 2e-3)], "tiny", file)
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"x", "fewer than two tokens"),
        (None, "No such file"),
    ],
)
def test_a_text_that_is_none_is_refused(
    run: Run, model: Path, tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "text"
    if content is not None:
        file.write_bytes(content)
    code, _, err = run("-m", model, "--quant", "afq4", "--text", file)
    assert code == 2 and message in err and "--text" in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("prose", "line 2"),
        ('{"prompt": "x"}', "line 2"),
        ('{"prompt": "x", "answer": 3}', "line 2"),
        ('{"prompt": "", "answer": "x"}', "line 2"),
        (json.dumps({"prompt": "x", "answer": "y " * 400}), "--context"),
    ],
)
def test_a_pair_that_is_none_is_refused(
    run: Run, model: Path, tmp_path: Path, line: str, message: str
) -> None:
    file = tmp_path / "text.jsonl"
    file.write_text(f'{{"prompt": "x", "answer": "y"}}\n{line}\n')
    code, _, err = run("-m", model, "--quant", "afq4", "--text", file)
    assert code == 2 and message in err


def test_only_answers_are_evaluated(report, tmp_path: Path) -> None:
    file = tmp_path / "text.jsonl"
    pair = {"prompt": "hello again", "answer": "xyz"}
    file.write_text((json.dumps(pair) + "\n") * 40)
    found = report("--quant", "afq4", text=file)
    assert (found["windows"], found["positions"]) == (40, 120)
    [variant] = found["variants"]
    assert variant["kl"]["value"] > 0, "the same three positions, forty times"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing to compare"),
        (("--quant", "afq5"), "afq"),
        (("--quant", "afq4", "--tokens", "1"), "--tokens"),
        (("--quant", "afq4", "--context", "1"), "--context"),
        (("--quant", "afq4", "--json", "none/x.json"), "the folder does not exist"),
        (("--quant", "afq4", "--plot", "none/x.svg"), "the folder does not exist"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    run: Run, model: Path, text: Path, words: tuple[str, ...], message: str
) -> None:
    code, _, err = run("-m", model, "--text", text, *words)
    assert code == 2 and message in err


@pytest.mark.parametrize("quant", ["q99", "afq4,q99"])
def test_an_unknown_format_is_refused_before_a_model_is_loaded(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch, quant: str
) -> None:
    def load(*words: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("ostro.entrypoints.quality.measure.open_weights", load)
    code, _, err = run("-m", model, "--quant", quant)
    assert code == 2 and "'q99'" in err and "4.5bpw" in err


def test_a_model_may_be_named_as_its_own_reference(report, model: Path) -> None:
    [same] = report("--reference", model)["variants"]
    assert same["kl"]["value"] == 0


def test_a_file_beside_the_folder_it_was_made_of(report, tmp_path: Path) -> None:
    folder, file = make_model(tmp_path / "model"), make_gguf(tmp_path / "model.gguf")
    [same] = report("--reference", folder, model=file)["variants"]
    assert 0 <= same["kl"]["value"] < 1e-9 and same["top1"]["value"] == 1
    names = {layer["name"] for layer in same["layers"]}
    assert DOWN in names and {layer["error"] < 1e-6 for layer in same["layers"]} == {True}


@pytest.mark.parametrize(
    ("name", "spoiled", "unheard"),
    [
        ("mixtral", "model.layers.1.mlp.experts.down", ()),
        ("deepseek_v2", "model.layers.1.mlp.experts.gate_up", ("k_b_proj", "v_b_proj")),
        ("gpt_oss", "model.layers.0.mlp.experts.down", ()),
    ],
)
def test_experts_are_weights_too(name: str, spoiled: str, unheard: tuple[str, ...]) -> None:
    plugins = PluginManager()
    plugins.load(Settings())
    with subject(plugins, name) as tiny, torch.inference_mode():
        loaded = tiny.load()
        engine = tiny.engine(loaded)
        with layers.record_samples(loaded) as samples:
            engine.runner.logits(tiny.prompt)
        found = layers.layer_errors(samples, loaded)
        assert {layer.error for layer in found} == {0}
        silent = layers.weights(loaded.model).keys() - samples.calls.keys()
        assert {path.rpartition(".")[2] for path in silent} == set(unheard)
        [storage] = loaded.model.get_submodule(spoiled).active_storages
        storage.weight *= 2
        first, *rest = layers.layer_errors(samples, loaded)
    assert first.name == spoiled and first.error == pytest.approx(1, abs=1e-5)
    assert {layer.error for layer in rest} == {0}


def test_models_that_cannot_be_compared_are_refused(
    run: Run, model: Path, copy: Path, text: Path
) -> None:
    weights = load_file(copy / "model.safetensors")
    more = {
        name.replace(".", "__"): torch.cat((weights[name], weights[name][:10]))
        for name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    change_weights(change_config(copy, **SIZES, vocab_size=330), **more)
    code, _, err = run("-m", copy, "--reference", model, "--text", text)
    assert code == 2 and "330" in err and "320" in err
    change_weights(copy, **{n: t[:320] for n, t in more.items()})
    change_config(copy, **SIZES, max_position_embeddings=64)
    code, _, err = run("-m", copy, "--reference", model, "--text", text)
    assert code == 2 and "--context 64" in err
    assert run("-m", copy, "--reference", model, "--text", text, "--context", "64")[0] == 0


@pytest.fixture
def few_outcomes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As for a large vocabulary: some tokens, and all others together."""
    monkeypatch.setattr(divergence, "MAX_FULL_VOCAB", 100)
    monkeypatch.setattr(divergence, "TOP", 40)
    yield


def test_a_large_vocabulary_is_compressed(report, few_outcomes: None) -> None:
    few = report("--quant", "afq4", "--exact")
    divergence.MAX_FULL_VOCAB = 1000
    whole = report("--quant", "afq4", "--exact")
    assert (few["outcomes"], whole["outcomes"]) == (41, 320)
    part, all_ = (found["variants"][0] for found in (few, whole))
    assert 0.5 * all_["kl"]["value"] < part["kl"]["value"] < all_["kl"]["value"]
    assert part["perplexity"] == all_["perplexity"] and part["top1"] == all_["top1"]


def test_zero_probabilities_give_finite_divergence() -> None:
    logits = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    logits[:, 20:] = -torch.inf
    kept = divergence.compress(logits, torch.arange(5))
    assert divergence.compare(kept, logits).kl.tolist() == [0] * 5
    assert divergence.compare(kept, logits.flip(1)).kl.isfinite().all()


def test_intervals_cover_the_true_value() -> None:
    """Of 500 samples from known distributions, about 95 % of the intervals hold the truth."""
    random = torch.Generator().manual_seed(0)
    draws = torch.randn(500, 200, generator=random, dtype=torch.float64) + 3
    means = [figures.mean(row) for row in draws]
    assert 0.92 < sum(m.low < 3 < m.high for m in means) / 500 < 0.98
    ratios = [figures.perplexity(row) for row in draws]
    assert 0.92 < sum(r.low < exp(3) < r.high for r in ratios) / 500 < 0.98
    shares = [figures.share(row < 0.98) for row in torch.rand(500, 200, generator=random)]
    assert 0.90 < sum(s.low < 0.98 < s.high for s in shares) / 500 < 0.99
    assert figures.share(torch.ones(10, dtype=torch.bool)).high == pytest.approx(1)


def test_windows_go_together_as_they_fit() -> None:
    cuts = [Window(list(range(n)), 1) for n in (5, 5, 3, 20, 2, 2, 2)]
    sizes = [[len(w.ids) for w in batch] for batch in batches(cuts, rows=10, most=2)]
    assert sizes == [[5, 5], [3], [20], [2, 2], [2]]


def test_prose_is_cut_behind_what_texts_begin_with() -> None:
    class Words:
        prefix: tuple[int, ...] = (1, 2)

        def encode(self, text: str, **options: bool) -> list[int]:
            assert options == {"special": False, "parse_special": True}
            return [10 + i for i in range(len(text))]

    found = windows(read_text(None, "some/model"), Words(), 50, 100)  # type: ignore[arg-type]
    assert [(w.ids[:3], len(w.ids), w.first) for w in found] == [
        ([1, 2, 10], 50, 2), ([1, 2, 58], 50, 2), ([1, 2, 106], 6, 2),
    ]  # fmt: skip


def test_the_starter_s_text_is_what_its_training_leaves_out() -> None:
    from transformers import PreTrainedTokenizerFast

    from ostro.plugins.starter import HOME as STARTER
    from ostro.plugins.starter.training.chats import render
    from ostro.plugins.starter.training.evaluate import held_out_items

    words = PreTrainedTokenizerFast.from_pretrained(STARTER / "model")
    items = [item for _, item in held_out_items(10)]
    Random(6).shuffle(items)
    wanted = "".join(render(words, item) for item in items)
    lines = map(json.loads, (FOLDER / "starter.jsonl").read_text().splitlines())
    assert "".join(f"{line['prompt']}{line['answer']}\n" for line in lines) == wanted
