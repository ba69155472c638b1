"""Options, tokenizers, templates and requests that cannot be; none is dropped silently."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny.cli_runner import CliRunner

from ostro.core.errors import (
    ContextLengthExceeded,
    InsufficientMemory,
    OstroError,
    TemplateError,
    TokenizerError,
    Unsupported,
    UnsupportedArchitecture,
    UsageError,
)
from ostro.core.messages.requests import RANGES


def test_a_tokenizer_larger_than_the_embedding(runner: CliRunner) -> None:
    vocabulary = json.loads((runner.folder / "tokenizer.json").read_text())
    vocabulary["added_tokens"] += [
        {**vocabulary["added_tokens"][0], "id": 302 + i, "content": f"<extra {i}>"}
        for i in range(30)
    ]
    (runner.folder / "tokenizer.json").write_text(json.dumps(vocabulary))
    runner.assert_rejected(TokenizerError, "332 ids", "320 rows", "--tokenizer")


def test_a_missing_tokenizer_is_rejected(runner: CliRunner, good: Path) -> None:
    (runner.folder / "tokenizer.json").unlink()
    runner.assert_rejected(TokenizerError, "no tokenizer", "--tokenizer")
    runner.assert_rejected(TokenizerError, "/no/such", options=("--tokenizer", "/no/such"))
    assert runner.run("--tokenizer", str(good))[0] == 0


@pytest.mark.parametrize("text", ["", "{}", '{"model": {"type": "BPE"}}', "[]"])
def test_a_tokenizer_that_is_malformed(runner: CliRunner, text: str) -> None:
    (runner.folder / "tokenizer.json").write_text(text)
    runner.assert_rejected(TokenizerError, "tokenizer.json")


def test_a_chat_without_a_template(runner: CliRunner, tmp_path: Path) -> None:
    (runner.folder / "tokenizer_config.json").write_text("{}")
    code, _, printed = runner.run()
    assert code == 0 and "no chat template" in printed and "--chat-template" in printed
    assert runner.run("--raw")[0] == 0
    runner.assert_rejected(UsageError, "system message", options=("--system", "Be brief."))
    runner.assert_rejected(UsageError, "/no/such", options=("--chat-template", "/no/such"))
    template = tmp_path / "t.jinja"
    template.write_text("{% for x in %}")
    runner.assert_rejected(TemplateError, "line 1", options=("--chat-template", str(template)))
    template.write_text("{{ messages[0].content }}")
    assert runner.run("--chat-template", str(template))[0] == 0


REFUSED: list[tuple[tuple[str, ...], type[OstroError], tuple[str, ...]]] = [
    (("--context", "0"), UsageError, ("--context 0", "1 or more")),
    (("--context", "-5"), UsageError, ("--context -5",)),
    (("--context", "2000"), UsageError, ("--context 2000", "1..1024")),
    (("--memory", "lots"), UsageError, ("'lots'", "512MiB")),
    (("--memory", "0"), UsageError, ("'0'",)),
    (("--memory", "nan"), UsageError, ("'nan'",)),
    (("--memory", "inf"), UsageError, ("'inf'",)),
    (("--memory", "3 parsecs"), UsageError, ("'3 parsecs'",)),
    (("--memory", "900000GB"), InsufficientMemory, ("--memory 900000GB", "free on cpu")),
    (("--memory", "1KB", "--context", "512"), InsufficientMemory, ("512 tokens", "--context")),
    (("--device", "toaster"), UsageError, ("--device 'toaster'", "cuda")),
    (("--device", "mps"), Unsupported, ("--device mps", "cpu or cuda")),
    (("--device", "cpu:3"), Unsupported, ("--device cpu:3",)),
    (("--device", "cuda:99"), Unsupported, ("--device cuda:99", "`ostro doctor`")),
    (("--quant", "q9"), UsageError, ("--quant: unknown format 'q9'", "q4k")),
    (("--task", "speech"), UsageError, ("--task 'speech'", "text")),
    (("--kv-dtype", "fp9"), UsageError, ("--kv-dtype 'fp9'", "bfloat16", "int8, fp8")),
    (("--threads", "1000000"), UsageError, ("--threads 1000000", "1..1024")),
    (("--token-source", "env:HF_TOKEN"), UsageError, ("--token-source", "remove it")),
    (("--raw", "--system", "be brief"), UsageError, ("--raw", "--system")),
    (("--raw", "--think"), UsageError, ("--raw", "--think")),
    (("--raw", "--no-think"), UsageError, ("--raw", "--think")),
    (("--raw", "--chat-template", "x"), UsageError, ("--raw", "--chat-template")),
    (("--arch", "lama"), UnsupportedArchitecture, ("'lama'", "nearest: llama")),
    (("--revision", "main"), UsageError, ("--revision main",)),
    (("--dummy-weights", "qwen3-0.7b"), UsageError, ("qwen3-0.7b", "nearest: qwen3-0.6b")),
    (("--max-seqs", "999999999"), UsageError, ("--max-seqs 999999999",)),
    (("--plugin", "/no/such"), UsageError, ("/no/such is not a plugin",)),
    (("-i", "hello " * 600), ContextLengthExceeded, ("is 1024 tokens", "shorten it")),
    (("--context", "10"), ContextLengthExceeded, ("length is 10 tokens", "larger --context")),
]


@pytest.mark.parametrize(("words", "kind", "expected"), REFUSED, ids=lambda x: str(x)[:40])
def test_an_invalid_setting_is_rejected(
    runner: CliRunner, words: tuple[str, ...], kind: type[OstroError], expected: tuple[str, ...]
) -> None:
    runner.assert_rejected(kind, *expected, options=words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_rejected(runner: CliRunner) -> None:
    runner.assert_rejected(
        Unsupported, "--device cuda", "`ostro doctor`", options=("--device", "cuda")
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--dtype", "float8"),
        ("--threads", "0"),
        ("--threads", "-2"),
        ("--threads", "two"),
        ("--max-seqs", "0"),
        ("--top-k", "many"),
        ("--unheard-of",),
    ],
)
def test_an_invalid_option_is_rejected(runner: CliRunner, words: tuple[str, ...]) -> None:
    code, out, err = runner.run(*words)
    assert code == 2 and not out and words[0] in err.splitlines()[-1]


@pytest.mark.parametrize("words", [("--task", "text"), ("--arch", "llama"), ("--device", "cpu:0")])
def test_valid_settings_change_nothing(runner: CliRunner, words: tuple[str, ...]) -> None:
    assert runner.run(*words) == runner.run()


OPTIONS = {
    "temperature": "--temperature",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "min_p": "--min-p",
    "repetition_penalty": "--repetition-penalty",
    "seed": "--seed",
    "max_tokens": "--max-tokens",
}


def test_out_of_range_sampling_is_rejected(runner: CliRunner) -> None:
    """One model, every option of `run` that has a range, below and above it."""
    tried = 0
    for name, low, high in RANGES:
        if name not in OPTIONS:
            continue
        for value in (low - 1, high + max(1, abs(high))):
            runner.assert_rejected(UsageError, f"{name}=", options=(f"{OPTIONS[name]}={value}",))
            tried += 1
    assert tried == 2 * len(OPTIONS)
