"""The settings of a model, references to models, and the callback for progress of loading."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

STARTER = "starter"
"""The reference of the model included in ostro, used by default."""

HUB_REFERENCE = re.compile(
    r"(?P<id>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[^:@]+))?(:(?P<selector>.+))?", re.ASCII
)


@dataclass(frozen=True, kw_only=True)
class HubReference:
    """A hub id with a revision (branch, tag or commit) and a selector (file or format)."""

    id: str
    revision: str | None = None
    selector: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubReference | None:
        """Parse org/name[@revision][:selector]; None for other text."""
        match = HUB_REFERENCE.fullmatch(text)
        return cls(**match.groupdict()) if match else None


ProgressCallback = Callable[[str, int, int], None]
"""Receives a stage ("reading weights", "compiling kernels", "warming up"), the units done and the
units in total, 0 if unknown; weights count in bytes.
"""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of one model: plain data that is sent between processes."""

    reference: str | None = None
    arch: str | None = None
    task: str | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    generation_config: Literal["auto", "none"] = "auto"
    dtype: str = "auto"
    device: str = "auto"
    placement: str | None = None
    quant: str | None = None
    topology: str | None = None
    importance: str | None = None
    threads: int | None = None
    context: int | None = None
    max_seqs: int = 32
    memory: str | None = None
    kv_dtype: str = "auto"
    revision: str | None = None
    token_source: str | None = None
    offline: bool = False
    name: str | None = None
    adapters: Sequence[str] = ()
    adapter_folder: str | None = None
    adapter_root: str | None = None
    adapter_resolvers: bool = False
    adapter_slots: int = 32
    adapter_memory: str | None = None
    max_adapters: int = 1024
    max_adapter_rank: int = 256
    deterministic: bool = False
    exact: bool = False
    speculate: str | None = None
    replay: bool = False
    allow_config: Sequence[str] = ()
    dummy_weights: str | None = None
    explain: bool = False
