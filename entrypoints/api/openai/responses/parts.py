"""The parts of items: the texts, images and files of messages, and the tokens of outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

Status = Literal["in_progress", "completed", "incomplete"]


class Tagged(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """A struct whose field `type` names its class."""


class CacheBreakpoint(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The end of a prefix to cache. The prefix cache keeps all prefixes."""

    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | UnsetType = UNSET


class InputText(Tagged, kw_only=True, tag="input_text"):
    """A text of the input."""

    text: str
    prompt_cache_breakpoint: CacheBreakpoint | UnsetType = UNSET


class InputImage(Tagged, kw_only=True, tag="input_image"):
    """An image of the input: a URL or data URL, or the id of a stored file."""

    detail: Literal["auto", "low", "high", "original"] = "auto"
    image_url: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET
    prompt_cache_breakpoint: CacheBreakpoint | UnsetType = UNSET


class InputFile(Tagged, kw_only=True, tag="input_file"):
    """A file of the input: a data URL, or the id of a stored file."""

    unsupported: ClassVar[Mapping[str, str]] = {
        "file_url": "a file by its address; use file_data or file_id"
    }

    file_data: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET
    filename: str | UnsetType = UNSET
    prompt_cache_breakpoint: CacheBreakpoint | UnsetType = UNSET


class AlternativeToken(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A token that the model considered; `bytes` are those of its text in UTF-8."""

    token: str
    logprob: float
    bytes: list[int]


class SampledToken(AlternativeToken, kw_only=True):
    """A token of an output, and the most probable ones at its position."""

    top_logprobs: list[AlternativeToken]


class OutputText(Tagged, kw_only=True, tag="output_text"):
    """A text of an output message. The server makes no annotations."""

    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[SampledToken] | UnsetType = UNSET


class OutputRefusal(Tagged, kw_only=True, tag="refusal"):
    """A refusal of an earlier answer."""

    refusal: str


class SummaryText(Tagged, kw_only=True, tag="summary_text"):
    """A part of a summary of reasoning."""

    text: str


class ReasoningText(Tagged, kw_only=True, tag="reasoning_text"):
    """A text of reasoning."""

    text: str


InputPart = InputText | InputImage | InputFile
Part = InputText | InputImage | InputFile | OutputText | OutputRefusal
