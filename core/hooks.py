"""Every question ostro asks of its plugins: the contract, on one page.

Declarations are asked once, at start, and answered with records. Decisions stop at the first
answer. Events are told to everyone. None is called inside the token loop. Each hook says in which
process it runs: *both*, *api* (the one that speaks HTTP) or *engine* (the one that owns the
device).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from ostro.core.records import (
        Adapter,
        Architecture,
        Cache,
        Checkpoint,
        Command,
        LogitsProcessor,
        Parser,
        Pipeline,
        Planner,
        Quantizer,
        Route,
        Settings,
        TokenizerFormat,
    )

PREFIX = "ostro_"
hookspec = pluggy.HookspecMarker("ostro")
hookimpl = pluggy.HookimplMarker("ostro")


@hookspec
def ostro_architectures() -> Iterable[Architecture]:
    """Declare (both): yield the model families this plugin can build."""
    return ()


@hookspec
def ostro_pipelines() -> Iterable[Pipeline]:
    """Declare (both): yield what turns a task's request into engine work and an answer."""
    return ()


@hookspec
def ostro_caches() -> Iterable[Cache]:
    """Declare (both): yield cache kinds: what a layer remembers of a sequence."""
    return ()


@hookspec
def ostro_quantizers() -> Iterable[Quantizer]:
    """Declare (both): yield weight formats: how stored tensors become a matmul."""
    return ()


@hookspec
def ostro_planners() -> Iterable[Planner]:
    """Declare (both): yield planners: what chooses a format for each weight within a budget."""
    return ()


@hookspec
def ostro_checkpoints() -> Iterable[Checkpoint]:
    """Declare (both): yield file containers of named tensors."""
    return ()


@hookspec
def ostro_tokenizers() -> Iterable[TokenizerFormat]:
    """Declare (both): yield file formats of tokenizers."""
    return ()


@hookspec
def ostro_adapters() -> Iterable[Adapter]:
    """Declare (both): yield adapter kinds: deltas on linears, chosen per request."""
    return ()


@hookspec
def ostro_logits_processors() -> Iterable[LogitsProcessor]:
    """Declare (both): yield named steps between logits and the drawn token."""
    return ()


@hookspec
def ostro_parsers() -> Iterable[Parser]:
    """Declare (both): yield parsers that find tool calls and reasoning in generated text."""
    return ()


@hookspec
def ostro_routes(engine: Any) -> Iterable[Route]:
    """Declare (api): yield HTTP routes to add to the server; `engine` is the async client."""
    return ()


@hookspec
def ostro_commands() -> Iterable[Command]:
    """Declare (api): yield subcommands of the command line."""
    return ()


@hookspec(firstresult=True)
def ostro_locate(reference: str, kind: str, settings: Settings) -> Path | None:
    """Decide (both): turn a reference into a local file or folder, or None to leave it to others.

    `kind` is "model" or "adapter". The first answer wins; outside plugins are asked first.
    """


@hookspec(historic=True)
def ostro_configure(settings: Settings) -> None:
    """Event (both): the settings are final."""


@hookspec
def ostro_model_loaded(model: Any) -> None:
    """Event (engine): a model is loaded and its kernels are chosen; the first step comes next."""
