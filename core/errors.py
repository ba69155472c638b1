"""What can go wrong, in the user's words: what, where, and what to do next.

Every error a user can cause is an `OstroError`. `status` and `code` are what HTTP answers,
`exit_code` is what the command line returns; a traceback is for our own mistakes only.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class OstroError(Exception):
    """Base of all errors whose message is meant for people."""

    status = 500
    code = "internal_error"
    exit_code = 1

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UsageError(OstroError):
    """The command line or a Python call asks for something impossible."""

    status, code, exit_code = 400, "invalid_request_error", 2


class RequestError(OstroError):
    """A request is malformed or out of range; `param` names the field."""

    status, code = 400, "invalid_request_error"


class ContextLengthExceeded(RequestError):
    """A prompt and the tokens asked for do not fit the context."""

    code = "context_length_exceeded"


class NotFound(OstroError):
    """A model or an adapter of that name is not served here."""

    status, code = 404, "model_not_found"


class Overloaded(OstroError):
    """There is no room for the request now; it may be tried again."""

    status, code = 503, "overloaded"


class ModelNotFound(OstroError):
    """A reference leads to no model: no such folder, no config, not cached, gated."""

    status, code, exit_code = 404, "model_not_found", 3


class ConfigError(OstroError):
    """A config file lies or asks for what the architecture does not implement."""

    status, code, exit_code = 422, "invalid_config", 4


class UnsupportedArchitecture(ConfigError):
    """No plugin claims the model."""

    code = "unsupported_architecture"


class CheckpointError(OstroError):
    """A weight file is malformed, or its tensors and the model's do not agree."""

    status, code, exit_code = 422, "invalid_checkpoint", 5


class PickleRefused(CheckpointError):
    """Weights come only as pickles, which can run code; they are never opened."""

    code = "pickle_refused"


class AdapterError(OstroError):
    """An adapter is malformed, does not fit the model, or does nothing to it."""

    status, code, exit_code = 422, "invalid_lora_adapter", 10


class AdapterNameRefused(AdapterError):
    """A name that no adapter may have: a path, what cannot be printed, or too long."""

    status, code = 400, "invalid_lora_name"


class AdapterForbidden(AdapterError):
    """An adapter lies outside the folder that adapters may be loaded from."""

    status, code = 403, "adapter_path_forbidden"


class AdapterNotFound(AdapterError):
    """No adapter goes by that name or generation, or there is none at that place."""

    status, code = 404, "adapter_not_found"


class AdapterConflict(AdapterError):
    """The name is taken, or goes to another generation than was expected."""

    status, code = 409, "adapter_conflict"


class AdapterBusy(AdapterError):
    """Another adapter is being loaded; it may be tried again."""

    status, code = 429, "lora_load_busy"


class AdapterLimit(AdapterError):
    """One more adapter, or a larger one, than the server was started for."""

    status, code = 429, "adapter_limit"


class TokenizerError(OstroError):
    """A tokenizer is missing or malformed."""

    status, code, exit_code = 422, "invalid_tokenizer", 6


class TemplateError(RequestError):
    """A chat template is missing, fails, or takes more time or room than it may."""

    code = "invalid_chat_template"


class PluginError(OstroError):
    """A plugin is missing, broken or in conflict; the message names it and its source."""

    status, code, exit_code = 500, "plugin_error", 7


class InvalidTensor(PluginError):
    """A module hands a tensor of the wrong shape, dtype, device or layout to a kernel or a linear.

    `fault` is a predicate, "expects inputs of width 512, got 100"; `module` its subject.
    """

    def __init__(self, fault: str, module: str = "a module") -> None:
        super().__init__(f"{module} {fault}")
        self.fault = fault


class Unsupported(OstroError):
    """A thing this build or device cannot do; the message says which and what can."""

    status, code, exit_code = 400, "unsupported", 8


class InsufficientMemory(OstroError):
    """The model or its cache does not fit."""

    status, code, exit_code = 507, "insufficient_memory", 9


class EngineDied(OstroError):
    """The engine process is gone; requests in flight cannot be answered."""

    status, code = 503, "engine_unavailable"


def nearest(name: str, names: Iterable[str], n: int = 3) -> str:
    """Say which of the names come near, as a clause that can end a message."""
    # The search takes time in proportion to the length: names come from outside.
    close = get_close_matches(name[:80], list(names), n=n, cutoff=0.5)
    return f"; nearest: {', '.join(close)}" if close else ""
