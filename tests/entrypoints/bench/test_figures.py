"""What the clock said, summarize up: by hand, on traces whose figures are known."""

from __future__ import annotations

import pytest

from ostro.entrypoints.bench.figures import Trace, percentile, summarize, take, title
from ostro.entrypoints.bench.local import random_prompts
from ostro.entrypoints.bench.remote import random_texts


def test_a_lone_request() -> None:
    """100 tokens of prompt in half a second, then four tokens a tenth of a second apart."""
    trace = Trace(10.0, 100, [10.5, 10.6, 10.7, 10.8, 10.9], cached=16)
    row = summarize("x", [[trace]])
    assert row.concurrency == 1 and row.cached_tokens == 16
    assert row.prefill == pytest.approx(200) and row.decode == pytest.approx(10)
    assert row.total == pytest.approx(5 / 0.9)
    assert row.ttft_p50 == row.ttft_p95 == pytest.approx(500)
    assert [row.itl_p50, row.itl_p95] == pytest.approx([100, 100])
    assert row.prefill_spread == row.decode_spread == 0


def test_requests_that_ran_together() -> None:
    """Decode counts only while both were decoding; prefill until both had their first token."""
    fast = Trace(0.0, 10, [1.0, 2.0, 3.0, 4.0])
    slow = Trace(0.0, 30, [2.5, 3.5, 4.5, 5.5])
    row = summarize("x", [[fast, slow]])
    assert row.prefill == pytest.approx(40 / 2.5)
    assert row.decode == pytest.approx(3 / 1.5), "3, 3.5 and 4, between 2.5 and 4"
    assert row.total == pytest.approx(8 / 5.5)


def test_runs_give_a_median_and_a_spread() -> None:
    runs = [[Trace(0.0, 60, [1 / n, 2 / n, 3 / n])] for n in (1, 2, 6)]
    row = summarize("x", runs)
    assert row.prefill == pytest.approx(120) and row.decode == pytest.approx(2)
    assert row.decode_spread == pytest.approx(2.6458, abs=1e-3)
    assert row.ttft_p50 == pytest.approx(500) and row.ttft_p95 == pytest.approx(1000)


@pytest.mark.parametrize(
    ("count", "share", "rank"),
    [(1, 50, 1), (1, 95, 1), (2, 50, 1), (4, 50, 2), (5, 50, 3), (20, 95, 19), (100, 95, 95)],
)
def test_percentiles_are_nearest_ranks(count: int, share: int, rank: int) -> None:
    values = list(range(count, 0, -1))
    assert percentile(values, share) == rank


def test_no_values_have_no_percentile() -> None:
    assert percentile([], 50) == 0


def test_prompts_share_their_beginning_and_nothing_else() -> None:
    first = random_prompts(1000, 30, 2, 10, seed=1)
    second = random_prompts(1000, 30, 2, 10, seed=2)
    every = [*first, *second]
    assert all(len(prompt) == 30 and prompt[:10] == every[0][:10] for prompt in every)
    assert len({tuple(prompt[10:]) for prompt in every}) == 4
    texts = [text.split() for seed in (1, 2) for text in random_texts(30, 2, 10, seed)]
    assert all(len(text) == 30 and text[:10] == texts[0][:10] for text in texts)
    assert len({tuple(text[10:]) for text in texts}) == 4


def test_given_prompts_go_round() -> None:
    assert take(["a", "b"], 5) == ["a", "b", "a", "b", "a"]
    assert take([], 3) == []
    assert title(512, 64, []) == "pp512+tg64" and title(512, 64, ["a"]) == "given+tg64"
