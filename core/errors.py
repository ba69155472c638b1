"""The errors of ostro: messages state what is wrong, where, and what to do next.

Every error that a user can cause is an `OstroError`. `status` and `code` are the HTTP response,
`exit_code` is the exit code of the command line. A traceback is shown only for bugs of ostro.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, Self

Fact = bool | int | str | None
"""The value of an attribute of an error that is sent to other processes."""


class OstroError(Exception):
    """Base of all errors whose message is shown to users.

    facts: the names of further attributes, which `describe_error` sends to another process.
    """

    status = 500
    code = "internal_error"
    exit_code = 1
    facts: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UsageError(OstroError):
    """Invalid options of the command line or arguments of a Python call."""

    status, code, exit_code = 400, "invalid_request_error", 2


class RequestError(OstroError):
    """A request is malformed or out of range; `param` names the field."""

    status, code = 400, "invalid_request_error"


class ContextLengthExceeded(RequestError):
    """The prompt leaves no room in the context for the tokens to generate.

    `of` writes the message from the numbers. Of an error with another message they are None:

    context        the most tokens of prompt and output together
    prompt_tokens  the tokens of the prompt, or a number that it has at least
    counted        whether `prompt_tokens` is exact
    to_generate    the fewest tokens to generate, 0 for a prompt that is not continued
    advice         what helps besides a shorter prompt, as the end of a message
    """

    code = "context_length_exceeded"
    facts = ("context", "prompt_tokens", "counted", "to_generate", "advice")
    context: int | None = None
    prompt_tokens: int | None = None
    counted = True
    to_generate = 1
    advice = "load with a larger --context"

    @classmethod
    def of(
        cls,
        context: int,
        prompt_tokens: int,
        *,
        counted: bool = True,
        to_generate: int = 1,
        reason: str = "",
        advice: str = advice,
        param: str = "prompt",
    ) -> Self:
        """The error with these attributes. `reason` says where the numbers come from."""
        needs = "" if prompt_tokens > context else f", and at least {to_generate} must be generated"
        # Clients recognize an overflow by OpenAI's words, and then shorten the conversation.
        error = cls(
            f"This model's maximum context length is {context} tokens. However, your prompt "
            f"resulted in {'' if counted else 'at least '}{prompt_tokens} tokens{needs}"
            f"{f' ({reason})' if reason else ''}; shorten it, or {advice}",
            param=param,
        )
        error.context, error.prompt_tokens, error.counted = context, prompt_tokens, counted
        error.to_generate, error.advice = to_generate, advice
        return error

    @property
    def needed(self) -> int:
        """The tokens that exceed the context: the prompt's, with those to generate if it fits.

        0 without numbers.
        """
        prompt, context = self.prompt_tokens or 0, self.context or 0
        return prompt if prompt > context or not context else prompt + self.to_generate


class NotFound(OstroError):
    """No model or adapter of that name is served."""

    status, code = 404, "model_not_found"


class Overloaded(OstroError):
    """The server has no capacity for the request now; it can be retried."""

    status, code = 503, "overloaded"


class ModelNotFound(OstroError):
    """A reference does not resolve to a model: no such folder, no config, not cached, gated."""

    status, code, exit_code = 404, "model_not_found", 3


class ConfigError(OstroError):
    """A config is invalid or requires something that the architecture does not implement."""

    status, code, exit_code = 422, "invalid_config", 4


class UnsupportedArchitecture(ConfigError):
    """No plugin claims the model."""

    code = "unsupported_architecture"


class CheckpointError(OstroError):
    """A weight file is malformed, or its tensors do not match the model."""

    status, code, exit_code = 422, "invalid_checkpoint", 5


class PickleRefused(CheckpointError):
    """The weights are pickle files, which can run code and are never opened."""

    code = "pickle_refused"


class AdapterError(OstroError):
    """An adapter is malformed, does not fit the model, or has no effect."""

    status, code, exit_code = 422, "invalid_lora_adapter", 10


class AdapterNameRefused(AdapterError):
    """An invalid adapter name: a path, not printable, or too long."""

    status, code = 400, "invalid_lora_name"


class AdapterForbidden(AdapterError):
    """An adapter is outside of the folder that adapters may be loaded from."""

    status, code = 403, "adapter_path_forbidden"


class AdapterNotFound(AdapterError):
    """No adapter has that name or generation, or the path contains none."""

    status, code, exit_code = 404, "adapter_not_found", ModelNotFound.exit_code


class AdapterConflict(AdapterError):
    """The adapter name is in use, or the adapter is at another generation than expected."""

    status, code = 409, "adapter_conflict"


class AdapterBusy(AdapterError):
    """Another adapter is being loaded; the request can be retried."""

    status, code = 429, "lora_load_busy"


class AdapterLimit(AdapterError):
    """The adapter exceeds the number or the rank that the server was started for."""

    status, code = 429, "adapter_limit"


class TokenizerError(OstroError):
    """A tokenizer is missing or malformed."""

    status, code, exit_code = 422, "invalid_tokenizer", 6


class TemplateError(RequestError):
    """A chat template is missing, fails, or exceeds its time or memory limit."""

    code = "invalid_chat_template"


class PluginError(OstroError):
    """A plugin is missing, broken or in conflict; the message names it and its source."""

    status, code, exit_code = 500, "plugin_error", 7


class InvalidTensor(PluginError):
    """A module passes a tensor of the wrong shape, dtype, device or layout to a kernel or linear.

    The message is `module` followed by `fault`: "expects inputs of width 512, got 100".
    """

    fault = ""

    def __init__(self, fault: str, module: str = "a module") -> None:
        super().__init__(f"{module} {fault}")
        self.fault = fault


class Unsupported(OstroError):
    """Not supported by this build or device; the message names an alternative."""

    status, code, exit_code = 400, "unsupported", 8


class InsufficientMemory(OstroError):
    """The model or its cache does not fit in memory."""

    status, code, exit_code = 507, "insufficient_memory", 9


class DocumentNotFound(NotFound):
    """No such response, file or other stored document, or another owner's."""

    code = "not_found"


class StoreError(OstroError):
    """The store of documents cannot be read or written: damaged, full, or not reachable.

    path: where the store is, for operators. Clients get `reason` without it.
    """

    status, code = 503, "store_unavailable"
    reason = "the store: see the server's log"

    def __init__(self, reason: str, *, path: object = None) -> None:
        super().__init__(reason if path is None else f"the store {path}: {reason}")
        self.reason = reason if path is None else f"the store: {reason}"


class StoreConflict(StoreError):
    """Another request has changed the document meanwhile."""

    status, code = 409, "conflict"


class StepFailed(OstroError):
    """A step of the engine raised; only the requests of that step fail."""

    status, code = 503, "step_failed"


class EngineDied(OstroError):
    """The engine process has terminated; requests in flight fail."""

    status, code = 503, "engine_unavailable"


def describe_error(error: OstroError) -> dict[str, Any]:
    """The arguments of `rebuild_error`: plain data to send to another process.

    `kind` is the class, or the nearest base of it that this module has: the other process may lack
    the class of a plugin. `status` and `code` are those of the class itself.
    """
    names = (cls.__name__ for cls in type(error).__mro__ if globals().get(cls.__name__) is cls)
    return {
        "kind": next(names),
        "message": str(error),
        "param": error.param,
        "status": error.status,
        "code": error.code,
        "facts": {name: getattr(error, name) for name in error.facts} or None,
    }


def rebuild_error(
    kind: str,
    message: str,
    param: str | None = None,
    status: int | None = None,
    code: str | None = None,
    facts: Mapping[str, Fact] | None = None,
) -> OstroError:
    """The error that `describe_error` described; an OstroError for an unknown `kind`.

    status, code, facts: None for those of the class.
    """
    named = globals().get(kind)
    cls = named if isinstance(named, type) and issubclass(named, OstroError) else OstroError
    # Not by the constructor of the class, whose arguments may differ from those of the base.
    error = cls.__new__(cls, message)
    OstroError.__init__(error, message, param=param)
    error.status = cls.status if status is None else status
    error.code = cls.code if code is None else code
    for name in cls.facts:
        if facts is not None and name in facts:
            setattr(error, name, facts[name])
    return error


def close_names(name: str, names: Iterable[str], n: int = 3) -> list[str]:
    """The names that are similar to one, the most similar first."""
    # The time of the search grows with the length, and the name may be untrusted input.
    return get_close_matches(name[:80], list(names), n=n, cutoff=0.5)


def nearest(name: str, names: Iterable[str], n: int = 3) -> str:
    """The most similar names, as the end of a message; empty if there are none."""
    close = close_names(name, names, n)
    return f"; nearest: {', '.join(close)}" if close else ""
