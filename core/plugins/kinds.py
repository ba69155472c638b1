"""The kinds of records that plugins declare."""

from __future__ import annotations

from collections.abc import Mapping

from ostro.core.records import (
    Adapter,
    Alias,
    Architecture,
    Cache,
    Checkpoint,
    Command,
    LogitsProcessor,
    Parser,
    Pipeline,
    Planner,
    Quantizer,
    Record,
    Speculator,
    Store,
    TokenizerFormat,
)
from ostro.core.routes import Route

KINDS: Mapping[str, type[Record]] = {
    "architectures": Architecture,
    "pipelines": Pipeline,
    "caches": Cache,
    "quantizers": Quantizer,
    "planners": Planner,
    "checkpoints": Checkpoint,
    "tokenizers": TokenizerFormat,
    "adapters": Adapter,
    "logits_processors": LogitsProcessor,
    "parsers": Parser,
    "speculators": Speculator,
    "stores": Store,
    "aliases": Alias,
    "routes": Route,
    "commands": Command,
}
"""The record type of each declaration hook, by its name without prefix."""
