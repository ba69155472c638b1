"""Options of Ollama's requests, and the sampling parameters that they stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from ostro.errors import RequestError, Unsupported
from ostro.http import ignore
from ostro.pipelines import ReasoningEffort, TextRequest

SAMPLING: Mapping[str, str] = {
    "frequency_penalty": "frequency_penalty",
    "logit_bias": "logit_bias",
    "min_p": "min_p",
    "num_ctx": "max_total_tokens",
    "num_predict": "max_tokens",
    "presence_penalty": "presence_penalty",
    "repeat_penalty": "repetition_penalty",
    "seed": "seed",
    "stop": "stop",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "typical_p": "typical_p",
}
"""Options, and the fields of chat and completion requests with the same meaning."""
NEUTRAL: Mapping[str, tuple[Any, str]] = {
    "mirostat": (0, "Mirostat sampling"),
    "penalize_newline": (True, "exempting newlines from penalties"),
    "tfs_z": (1.0, "tail-free sampling"),
}
"""Options with one supported value, which stands for their absence, and what others request.

Others are ignored by name: they change how tokens are drawn, not what a response contains.
"""
BIAS = re.compile(r"\s*(\d{1,11})\s*:\s*(-?\d+(?:\.\d+)?)\s*", re.ASCII)
"""A token id and its bias in a text."""


class OllamaOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of a request.

    Those from `numa` to `num_keep` configure Ollama's own runner and have no effect on a running
    server, as `mirostat_tau` and `mirostat_eta` without Mirostat. `num_ctx` limits the tokens of
    prompt and output together; the context length that the server determines when it starts is the
    limit of larger ones. `logit_bias` maps token ids to biases, as an object or as the text
    "5:1, 17:-2" of Open WebUI; `reasoning_effort` is that of chats without `think`.
    """

    unsupported: ClassVar[Mapping[str, str]] = {"grammar": "a grammar; use the field format"}

    num_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | str | None = None
    reasoning_effort: ReasoningEffort | None = None
    num_ctx: int | None = None
    repeat_last_n: int | None = None
    penalize_newline: bool | None = None
    tfs_z: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    numa: bool | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    vocab_only: bool | None = None
    embedding_only: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    num_keep: int | None = None


def check_options(options: OllamaOptions) -> None:
    """Raise RequestError for an option out of range, Unsupported for one that is not ignored."""
    for name, (neutral, meaning) in NEUTRAL.items():
        value = getattr(options, name)
        if value not in (None, neutral):
            ignore_option(name, value, meaning, f"use {json_of(neutral)} or leave it out")
    window = options.repeat_last_n
    if window is not None and window > 0:
        meaning = "a window of penalties, which always count the whole context,"
        ignore_option("repeat_last_n", window, meaning, "use -1, 0 or leave it out")
    wanted = options.num_ctx
    if wanted is not None and wanted < 1:
        raise RequestError(f"options.num_ctx={wanted} is not positive", param="options.num_ctx")


def ignore_option(name: str, value: Any, meaning: str, hint: str) -> None:
    """Ignore an option by name. Raises Unsupported if the server refuses what it ignores."""
    place = f"options.{name}"
    if not ignore(place):
        raise Unsupported(
            f"{place}={json_of(value)}: {meaning} is not supported; {hint}", param=place
        )


def set_sampling(request: TextRequest, options: OllamaOptions) -> None:
    """Set the sampling parameters of a request.

    As in Ollama, `num_predict` below 1 sets no limit, and a window of 0 tokens turns the penalties
    off. Raises as `check_options`.
    """
    check_options(options)
    for name, field in SAMPLING.items():
        if (value := getattr(options, name)) is not None:
            setattr(request, field, value)
    if isinstance(options.logit_bias, str):
        request.logit_bias = read_bias(options.logit_bias)
    if options.num_predict is not None and options.num_predict < 1:
        request.max_tokens = None
    if options.repeat_last_n == 0:
        request.repetition_penalty = 1.0
        request.presence_penalty = request.frequency_penalty = 0.0


def read_bias(text: str) -> dict[int, float]:
    """Return the biases in a text by token id. Raises RequestError for a malformed one."""
    pairs = [BIAS.fullmatch(each) for each in text.split(",")] if text.strip() else []
    if None in pairs:
        raise RequestError(
            "options.logit_bias: expected token ids and their biases in the form 5:1, 17:-2, got "
            f"{text!r:.80}",
            param="options.logit_bias",
        )
    return {int(pair[1]): float(pair[2]) for pair in pairs if pair is not None}


def json_of(value: Any) -> str:
    """Return a value as JSON."""
    return msgspec.json.encode(value).decode()
