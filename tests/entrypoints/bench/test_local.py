"""`ostro bench` of a model here: figures that can be, and a cache that is on or off."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ostro.core.messages.outputs import Stats
from ostro.entrypoints.bench import local
from ostro.entrypoints.bench.figures import Trace, summarize
from ostro.entrypoints.cli import main
from ostro.entrypoints.cli.bench import encode, show
from ostro.entrypoints.python.load import tokenizer

SMALL = ("-p", "200", "-n", "6", "-r", "2")
FIGURES = ("prefill", "decode", "total", "ttft_p50", "ttft_p95", "itl_p50", "itl_p95")


@pytest.fixture
def rows(bench, tiny: str):
    """The rows that `ostro bench` gives as JSON."""

    def run(*words: str) -> list[dict[str, Any]]:
        code, out, _ = bench("-m", tiny, *SMALL, "--json", *words)
        assert code == 0
        found: list[dict[str, Any]] = json.loads(out)
        return found

    return run


def test_the_figures_of_a_lone_request(rows) -> None:
    [row] = rows()
    assert row["test"] == "pp200+tg6" and row["concurrency"] == 1
    assert all(row[name] > 0 for name in FIGURES)
    assert row["ttft_p50"] <= row["ttft_p95"] and row["itl_p50"] <= row["itl_p95"]
    slowest, fastest = 200e3 / row["ttft_p95"], 200e3 / row["ttft_p50"]
    assert slowest * 0.999 <= row["prefill"] <= fastest * 1.001, "two runs: both ends are shown"
    assert 0.999e3 / row["itl_p95"] <= row["decode"], (
        "of 12 gaps the 95th percentile is the longest"
    )
    blocks, token = 4, 2 * 2 * 2 * 8 * 4
    assert row["peak_kv_bytes"] == blocks * 64 * token, "206 tokens of two layers, in blocks of 64"
    assert row["cached_tokens"] == 0 and row["prefix_cache"] is True


def test_several_at_once(rows) -> None:
    one, three = rows("--concurrency", "1,3")
    assert (one["concurrency"], three["concurrency"]) == (1, 3)
    assert three["peak_kv_bytes"] == 3 * one["peak_kv_bytes"]


def test_a_shared_beginning_is_cached(rows) -> None:
    [row] = rows("--shared-prefix", "150", "--concurrency", "2")
    assert row["cached_tokens"] == 128, "two of the blocks of 64 tokens are shared whole"


def test_nothing_is_cached_where_the_cache_is_off(rows) -> None:
    [row] = rows("--shared-prefix", "150", "--concurrency", "2", "--no-prefix-cache")
    assert row["cached_tokens"] == 0 and row["prefix_cache"] is False


def test_tokens_before_a_prompt_are_cached_and_do_not_count(rows) -> None:
    none, deep = rows("-d", "0,300", "--concurrency", "2")
    assert (none["test"], none["depth"], none["cached_tokens"]) == ("pp200+tg6", 0, 0)
    assert (deep["test"], deep["depth"]) == ("pp200+tg6 @ d300", 300)
    assert deep["cached_tokens"] == 256, "four blocks of 64 tokens, of each request its own"
    computed = 2 * (300 + 200 - 256)
    assert deep["prefill"] <= computed * 1e3 / deep["ttft_p50"] * 1.001
    assert deep["peak_kv_bytes"] > none["peak_kv_bytes"]


def test_tokens_that_the_cache_cannot_hold_are_refused(
    capsys: pytest.CaptureFixture[str], tiny: str
) -> None:
    words = ["-d", "500", "--concurrency", "4", "--context", "1000", "--memory", "300000"]
    assert main(["bench", "-m", tiny, *SMALL, *words]) == 2
    assert "-d 500: the cache has no room for so many tokens before each of 4 prompts" in (
        " ".join(capsys.readouterr().err.split())
    )


def test_given_prompts(rows, tmp_path) -> None:
    file = tmp_path / "prompts"
    file.write_text('hello\n{"prompt": "good morning to the world"}\n')
    [row] = rows("--prompts", str(file), "--concurrency", "3")
    assert row["test"] == "given+tg6" and row["concurrency"] == 3


def test_accepted_drafts_are_printed_by_position(capsys: pytest.CaptureFixture[str]) -> None:
    row = summarize("pp5+tg1", [[Trace(0.0, 5, [1.0, 2.0])]])
    show([row], "tiny")
    assert "proposed" not in capsys.readouterr().out
    row.proposals, row.drafted_tokens, row.accepted_at = 4, 8, [3, 1, 0]
    show([row], "tiny")
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 requests: 4 of 8 proposed tokens accepted, by position 75%, 25% of 4" in printed


def test_drafts_of_the_warm_up_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = Stats()

    def run(*args: object, **options: object) -> list[Trace]:
        stats.proposals += 1
        stats.drafted_tokens += 4
        stats.accepted_at = [stats.proposals, 2 * stats.proposals]
        return [Trace(0.0, 5, [1.0, 2.0])]

    monkeypatch.setattr(local, "run", run)
    engine: Any = SimpleNamespace(vocab=9, prefix_cache=True, stats=lambda: stats)
    row = local.measure(engine, prompt=5, tokens=1, runs=2, concurrency=1)
    assert (row.proposals, row.drafted_tokens, row.accepted_at) == (2, 8, [2, 4])


def test_the_default_output_is_a_table(bench, tiny: str) -> None:
    code, out, err = bench("-m", tiny, *SMALL, "--explain")
    cells = next(line for line in out.splitlines() if "pp200+tg6" in line).split("│")
    assert code == 0 and len(cells) == 11 and cells[2].strip() == "1"
    assert "attention: " in err


def test_the_name_is_in_the_table_and_in_the_json(bench, rows, tiny: str) -> None:
    assert [row["model"] for row in rows("--name", "little")] == ["little"]
    assert [row["model"] for row in rows()] == [tiny]
    assert "little" in bench("-m", tiny, *SMALL, "--name", "little")[1]


def test_prompts_go_through_a_chat_template(tiny: str, tmp_path: Path) -> None:
    words, template = tokenizer(tiny), tmp_path / "template.jinja"
    template.write_text("{{ messages[0].role }}: {{ messages[0].content }}")
    assert encode(words, ["hello"], None) == [words.encode("hello")]
    through = encode(words, ["hello"], str(template))
    assert [words.decode(ids) for ids in through] == ["user: hello"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--concurrency", "1,x"], "--concurrency '1,x'"),
        (["--concurrency", "0"], "--concurrency '0'"),
        (["--concurrency", ""], "--concurrency ''"),
        (["--depth", "1,x"], "--depth '1,x'"),
        (["--depth", "9", "--no-prefix-cache"], "--depth excludes"),
        (["--depth", "9", "--with-adapters", "2"], "--depth excludes"),
        (["--depth", "0,1000"], "the context is 1024"),
        (["--shared-prefix", "201"], "201: expected 0 to"),
        (["--shared-prefix", "-1"], "-1: expected 0 to"),
        (["-n", "0"], "must be positive"),
        (["-r", "0"], "must be positive"),
        (["-p", "0"], "must be positive"),
        (["-p", "2000"], "the context is 1024"),
        (["--context", "100"], "the context is 100"),
        (["--prompts", "/no/such/file"], "--prompts /no/such/file"),
        (["--api-key", "k"], "--api-key requires --url"),
        (["--tokenizer", "x"], "--tokenizer requires --prompts"),
        (["--chat-template", "x"], "--chat-template requires --prompts"),
        (["--token-source", "none"], "--token-source applies to models of the hub"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    capsys: pytest.CaptureFixture[str], tiny: str, words: list[str], message: str
) -> None:
    assert main(["bench", "-m", tiny, *SMALL, *words]) == 2
    out, err = capsys.readouterr()
    assert message in err and not out


@pytest.mark.parametrize("text", ["", "\n\n", '{"question": "x"}', '{"prompt": 5}', '{"prompt"'])
def test_a_file_without_prompts_is_refused(
    capsys: pytest.CaptureFixture[str], tiny: str, tmp_path, text: str
) -> None:
    file = tmp_path / "prompts"
    file.write_text(text)
    assert main(["bench", "-m", tiny, *SMALL, "--prompts", str(file)]) == 2
    assert f"--prompts {file}: " in capsys.readouterr().err
