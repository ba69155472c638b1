"""`ostro bench --url`: what a server is asked, and what its stream is taken for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ostro.core.errors import OstroError, UsageError
from ostro.entrypoints.bench import remote
from ostro.entrypoints.bench.remote import WORDS, measure
from ostro.entrypoints.cli import main

OPTIONS: dict[str, Any] = {
    "model": "m", "key": None, "prompt": 20, "tokens": 6, "runs": 2, "concurrency": 1,
}  # fmt: skip


def test_a_server_is_measured(serve, bench) -> None:
    fake = serve()
    words = ("-p", "20", "-n", "6", "-r", "2", "--concurrency", "1,3", "--json")
    code, out, _ = bench("--url", f"{fake.url}/v1/", "-m", "some-model", "--api-key", "k", *words)
    rows = json.loads(out)
    assert code == 0 and [row["concurrency"] for row in rows] == [1, 3]
    assert all(row["test"] == "pp20+tg6" and row["cached_tokens"] == 10 for row in rows)
    assert all(row[name] > 0 for row in rows for name in ("prefill", "total", "ttft_p50"))
    assert rows[0]["decode"] > 0
    assert len(fake.asked) == 3 * 1 + 3 * 3, "one warm-up and two runs of each"
    assert set(fake.keys) == {"Bearer k"}
    for body in fake.asked:
        assert body["path"] == "/v1/completions" and body["model"] == "some-model"
        assert len(body["prompt"].split()) == 20 and set(body["prompt"].split()) <= set(WORDS)
        assert body["max_tokens"] == 7 and body["ignore_eos"] and body["temperature"] == 0
    assert len({body["prompt"] for body in fake.asked}) == len(fake.asked), "none is in a cache"


def test_the_default_output_is_a_table(serve, bench) -> None:
    code, out, _ = bench("--url", serve().url, "-p", "8", "-n", "2", "-r", "1", "-m", "m")
    row = next(line for line in out.splitlines() if "pp8+tg2" in line)
    assert code == 0 and row.split("│")[-2].strip() == "4"


def test_only_tokens_are_counted(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(remote, "summarize", lambda test, runs: seen.append(runs))
    measure(serve().url, **OPTIONS)
    assert [len(trace.times) for run in seen[0] for trace in run] == [7, 7]
    assert [trace.prompt for run in seen[0] for trace in run] == [20, 20]


def test_the_beginning_is_shared(serve) -> None:
    fake = serve()
    measure(fake.url, **{**OPTIONS, "shared": 12, "concurrency": 2})
    prompts = [body["prompt"].split() for body in fake.asked]
    assert len({tuple(p[:12]) for p in prompts}) == 1
    assert len({tuple(p[12:]) for p in prompts}) == len(prompts) == 6


def test_given_prompts_are_sent(serve, bench, tmp_path) -> None:
    fake, file = serve(), tmp_path / "prompts.jsonl"
    file.write_text('one\n\n{"prompt": "two and more"}\n')
    words = ("--prompts", str(file), "--concurrency", "3", "-r", "1", "-n", "2", "--json")
    code, out, _ = bench("--url", fake.url, *words)
    assert code == 0 and json.loads(out)[0]["test"] == "given+tg2"
    assert sorted(body["prompt"] for body in fake.asked) == ["one"] * 4 + ["two and more"] * 2


@pytest.mark.parametrize(
    ("events", "status", "message"),
    [
        (lambda body: [{"error": {"message": "out of luck"}}], 200, "out of luck"),
        (lambda body: ['{"error": '], 200, "not JSON"),
        (lambda body: ["[DONE]"], 200, "no tokens"),
        (lambda body: ["the model is asleep"], 503, "503"),
    ],
)
def test_a_server_that_fails_is_quoted(serve, events, status: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        measure(serve(events, status).url, **OPTIONS)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense", "http://[", "http://x:y"])
def test_where_no_server_listens(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert main(["bench", "--url", url, "-p", "4", "-n", "1", "-r", "1"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"ostro: --url {url}: ") and "check that the server is running" in err


def test_local_options_exclude_url(serve) -> None:
    fake = serve()
    with pytest.raises(OstroError, match="disable the cache"):
        main(["bench", "--url", fake.url, "--no-prefix-cache", "--debug"])
    for words in (["--dtype", "float16"], ["--max-seqs", "4"], ["--explain"], ["--plugin", "x"]):
        with pytest.raises(UsageError, match=f"{words[0]} applies to a local model"):
            main(["bench", "--url", fake.url, *words, "--debug"])
    assert not fake.asked
