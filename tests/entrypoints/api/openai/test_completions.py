"""Fields of completions: length, best_of, suffix."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ostro.core.messages.outputs import TokenLogprobs, TokenOutput
from ostro.core.messages.requests import TokenRequest
from ostro.plugins.pipelines.text.best import mean_logprob


def test_the_default_length_is_16(server: Any) -> None:
    for prompt in ("a" * 40, [97] * 40):
        choice = server.complete(prompt).json()["choices"][0]
        assert (len(choice["text"]), choice["finish_reason"]) == (16, "length")
    assert len(server.complete("a" * 40, max_tokens=40).json()["choices"][0]["text"]) == 40
    assert server.echo.seen[-1].sampling.max_tokens == 40
    server.complete("a" * 40, min_tokens=20)
    assert server.echo.seen[-1].sampling.max_tokens == 20


def test_the_default_length_fits_the_context(server: Any) -> None:
    answer = server.complete("x" * 4090, ignore_eos=True).json()
    assert answer["usage"]["completion_tokens"] == 6


def test_max_total_tokens_is_a_shorter_context(server: Any) -> None:
    for ask in (server.complete, server.chat):
        size = ask("abcd").json()["usage"]["prompt_tokens"]
        usage = ask("abcd", max_total_tokens=size + 3, ignore_eos=True).json()["usage"]
        assert usage["total_tokens"] == size + 3
        usage = ask("abcd", max_total_tokens=size + 3, max_tokens=1).json()["usage"]
        assert usage["completion_tokens"] == 1
        usage = ask("abcd", max_total_tokens=size + 3, max_tokens=4, ignore_eos=True).json()[
            "usage"
        ]
        assert usage["completion_tokens"] == 3
        error = ask("abcd", max_total_tokens=size).json()["error"]
        assert error["code"] == "context_length_exceeded", error
        assert "the request limits its context" in error["message"]
    assert ask("abcd", max_total_tokens=10**6).status_code == 200


@pytest.mark.parametrize("most", [{}, {"max_tokens": 100_000}])
def test_min_tokens_beyond_the_context_are_refused(server: Any, most: dict[str, int]) -> None:
    assert server.complete("x" * 4090, min_tokens=6, **most).status_code == 200
    error = server.complete("x" * 4090, min_tokens=7, **most).json()["error"]
    assert (error["param"], error["code"]) == ("min_tokens", "context_length_exceeded")
    assert "in 4090 tokens, and at least 7 must be generated" in error["message"]


def test_control_tokens_in_prompts(server: Any) -> None:
    """They are parsed as in vLLM, llama.cpp and transformers, unless the request says otherwise."""
    text, tokens = "a<|im_start|>b<|im_end|>", [97, 256, 98, 257]
    for prompt in (text, [text, text]):
        server.complete(prompt, max_tokens=1)
        assert server.echo.seen[-1].tokens == tokens
    server.complete(text, max_tokens=1, parse_special=False)
    assert server.echo.seen[-1].tokens == list(text.encode())
    assert server.complete(text, parse_special="no").json()["error"]["param"] == "parse_special"
    assert server.chat(text, parse_special=True).status_code == 400


def test_a_control_token_breaks_repetitions(server: Any) -> None:
    server.complete("a", dry_multiplier=0.5, dry_sequence_breakers=["<|im_end|>", "b"])
    assert server.echo.seen[-1].sampling.dry.breakers == (257, 98)


def test_the_echo_of_control_tokens(server: Any) -> None:
    text = "a<|im_start|>b"
    fields = {"echo": True, "logprobs": 0, "max_tokens": 2, "ignore_eos": True}
    choice = server.complete(text, **fields).json()["choices"][0]
    assert choice["text"] == text + "a"
    assert choice["logprobs"]["tokens"] == ["a", "<|im_start|>", "b", "a", "<|im_start|>"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 13, 14, 15]
    choice = server.complete([97, 256, 98], **fields).json()["choices"][0]
    assert choice["text"] == "aba"
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 2, 3]


def test_best_of(server: Any, monkeypatch: Any) -> None:
    """The choices with the highest mean log probability are returned, best first."""
    draw = server.echo.draw

    def varied(request: TokenRequest, index: int, count: int) -> TokenOutput:
        output: TokenOutput = draw(request, index, count)
        if output.tokens:
            output.tokens = [ord("abcd"[index])]
            logprob = (-3.0, -1.0, -4.0, -2.0)[index]
            output.logprobs = [TokenLogprobs(output.tokens[0], logprob, ())]
        return output

    monkeypatch.setattr(server.echo, "draw", varied)
    answer = server.complete("xy", n=2, best_of=4, max_tokens=2).json()
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "bb"), (1, "dd")]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 8
    many = server.complete(["xy", "zw"], best_of=3, logprobs=1, max_tokens=1).json()
    assert [(c["index"], c["text"]) for c in many["choices"]] == [(0, "b"), (1, "b")]
    assert many["choices"][0]["logprobs"]["token_logprobs"] == [-1.0]
    fields = {"prompt_logprobs": 0, "max_tokens": 1}
    first, second = server.complete("xy", best_of=4, n=2, **fields).json()["choices"]
    assert (first["text"], len(first["prompt_logprobs"])) == ("b", 2)
    assert (second["text"], second.get("prompt_logprobs")) == ("d", None)


def test_a_choice_is_not_worse_because_it_is_longer() -> None:
    choices: dict[str, Any] = {
        "long": SimpleNamespace(logprob=-3.0, tokens=3),
        "short": SimpleNamespace(logprob=-2.0, tokens=1),
        "empty": SimpleNamespace(logprob=0.0, tokens=0),
    }
    ranks = sorted(choices, key=lambda name: mean_logprob(choices[name]), reverse=True)
    assert ranks == ["long", "short", "empty"]


def test_best_of_is_checked(server: Any) -> None:
    for fields in ({"best_of": 1, "n": 2}, {"best_of": 2, "stream": True}, {"best_of": 65}):
        response = server.complete(**fields)
        assert response.status_code == 400, fields
        assert response.json()["error"]["param"] == "best_of", fields


def test_a_suffix_needs_a_model_that_can(server: Any) -> None:
    error = server.complete(suffix="}").json()["error"]
    assert (error["param"], error["code"]) == ("suffix", "unsupported")
    assert "fill in the middle" in error["message"]
    assert server.complete(suffix="").status_code == 200
    error = server.complete(suffix="}", echo=True).json()["error"]
    assert "excludes echo" in error["message"]


def test_usage_has_details(server: Any) -> None:
    used = server.complete("abc", max_tokens=2).json()["usage"]
    assert used["prompt_tokens_details"] == {
        "cached_tokens": 1,
        "text_tokens": 3,
        "image_tokens": 0,
        "audio_tokens": 0,
    }
    assert used["completion_tokens_details"] == {
        "reasoning_tokens": 0,
        "text_tokens": 2,
        "audio_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    }


def test_another_method_below_models_is_an_unknown_route(server: Any) -> None:
    for method in ("POST", "DELETE"):
        response = server.http.request(method, "/v1/models/none")
        assert response.status_code == 404
        error = response.json()["error"]
        assert error["code"] == "unknown_url" and "/docs" in error["message"]
    wrong = server.http.get("/v1/completions")
    assert wrong.status_code == 405 and "use POST" in wrong.json()["error"]["message"]
