"""The hook specifications: all hooks that a plugin can implement.

Declarations are called once, when their records are first needed, and yield records. Decisions stop
at the first result that is not None. Events are sent to all plugins. No hook is called inside the
token loop. The docstring of a hook has the process that calls it: *both*, *api* (the HTTP server)
or *engine* (the process that owns the device).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from ostro.core.deprecated import RemovedInOstro1

if TYPE_CHECKING:
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
        Speculator,
        Store,
        TokenizerFormat,
    )
    from ostro.core.routes import Route
    from ostro.core.settings import Settings

PREFIX = "ostro_"
hookspec = pluggy.HookspecMarker("ostro")
hookimpl = pluggy.HookimplMarker("ostro")
ARGUMENTS_OF_ROUTES = {
    "server": RemovedInOstro1(
        "ostro_routes(server) is deprecated: write ostro_routes(); the operations are the first "
        "argument of a handler, and ostro.http.operations_of(request) in an endpoint"
    ),
    "engine": RemovedInOstro1(
        "ostro_routes(engine) is deprecated: write ostro_routes(); the engine is service.engine of "
        "the operations, the first argument of a handler, and ostro.http.operations_of(request) in "
        "an endpoint"
    ),
}


@hookspec
def ostro_architectures() -> Iterable[Architecture]:
    """Declare (both): yield the model families that this plugin implements."""
    return ()


@hookspec
def ostro_pipelines() -> Iterable[Pipeline]:
    """Declare (both): yield pipelines, which map a task's requests to engine requests and back."""
    return ()


@hookspec
def ostro_caches() -> Iterable[Cache]:
    """Declare (both): yield cache kinds, such as a paged KV cache or a recurrent state."""
    return ()


@hookspec
def ostro_quantizers() -> Iterable[Quantizer]:
    """Declare (both): yield weight formats: the storages that read, write and multiply them."""
    return ()


@hookspec
def ostro_planners() -> Iterable[Planner]:
    """Declare (both): yield planners, which choose a format for each weight within a budget."""
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
    """Declare (both): yield adapter kinds: deltas of linears, selected per request."""
    return ()


@hookspec
def ostro_logits_processors() -> Iterable[LogitsProcessor]:
    """Declare (both): yield logits processors, which run between the logits and sampling."""
    return ()


@hookspec
def ostro_parsers() -> Iterable[Parser]:
    """Declare (both): yield parsers that find tool calls and reasoning in generated text."""
    return ()


@hookspec
def ostro_speculators() -> Iterable[Speculator]:
    """Declare (both): yield proposers of tokens for speculative decoding."""
    return ()


@hookspec
def ostro_stores() -> Iterable[Store]:
    """Declare (api): yield stores of responses, files and other documents."""
    return ()


@hookspec
def ostro_aliases() -> Iterable[Alias]:
    """Declare (api): yield short names of models, which `ostro_locate` of this plugin resolves."""
    return ()


@hookspec(warn_on_impl_args=ARGUMENTS_OF_ROUTES)
def ostro_routes(server: Any, engine: Any) -> Iterable[Route]:
    """Declare (api): yield routes to add to the server.

    Both arguments are deprecated: only a running server has them, so the routes of an
    implementation that names one are missing in `ostro plugins` and in the OpenAPI document of
    `ostro serve --print-openapi`.
    """
    return ()


@hookspec
def ostro_commands() -> Iterable[Command]:
    """Declare (api): yield subcommands of the command line."""
    return ()


@hookspec(firstresult=True)
def ostro_locate(reference: str, kind: str, settings: Settings) -> Path | None:
    """Decide (both): resolve a reference to a local file or folder, or return None.

    `kind` is "model" or "adapter". The first result that is not None wins; plugins that are not
    built in are called first.
    """


@hookspec(historic=True)
def ostro_configure(settings: Settings) -> None:
    """Event (both): the settings are final."""


@hookspec
def ostro_model_loaded(model: Any) -> None:
    """Event (engine): a model is loaded and its kernels are selected; no step has run yet."""
