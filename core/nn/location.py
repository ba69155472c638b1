"""Where in a model an error was raised: its module and the plugin that brings it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from traceback import walk_tb
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from torch.nn import Module

from ostro.core.errors import InvalidTensor, OstroError
from ostro.core.nn.model import Model

P = ParamSpec("P")
T = TypeVar("T")


class RunsModel(Protocol):
    """An object that runs a model."""

    @property
    def model(self) -> Model: ...


R = TypeVar("R", bound=RunsModel)


def names_modules(
    method: Callable[Concatenate[R, P], T],
) -> Callable[Concatenate[R, P], T]:
    """Add the module and the plugin to errors that `self.model` raises within a method.

    Modules do not know their own paths, and a successful pass pays nothing for them: the path is
    read off the traceback. An InvalidTensor is raised anew, other errors get a note.
    """

    @wraps(method)
    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except InvalidTensor as error:
            path = module_path(self.model, error.__traceback__) or "the model"
            raise InvalidTensor(f"{error.fault} ({self.model.origin})", path) from error
        except OstroError:
            raise
        except Exception as error:
            if path := module_path(self.model, error.__traceback__):
                error.add_note(f"raised in {path} ({self.model.origin})")
            raise

    return call


def module_path(model: Module, traceback: TracebackType | None) -> str:
    """The path of the innermost module of `model` on a traceback; empty where there is none.

    A module that several layers share (`Rope`) is named below the one that calls it.
    """
    module, path = model, ""
    for frame, _ in walk_tb(traceback):
        inner: Any = frame.f_locals.get("self")
        if isinstance(inner, Module) and inner is not module:
            names = (name for name, child in module.named_modules() if child is inner)
            if name := next(names, ""):
                module, path = inner, f"{path}.{name}" if path else name
    return path
