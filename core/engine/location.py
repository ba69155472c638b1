"""Calls of a model: on its device, and with the module path and the plugin added to errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from traceback import walk_tb
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch
from torch.nn import Module

from ostro.core.device import current_device
from ostro.core.errors import InvalidTensor, OstroError
from ostro.core.nn.model import Model
from ostro.core.results import InvalidResult

P = ParamSpec("P")
T = TypeVar("T")


class RunsModel(Protocol):
    """An object that runs a model on a device."""

    @property
    def device(self) -> torch.device: ...

    @property
    def model(self) -> Model: ...


R = TypeVar("R", bound=RunsModel)


def runs_model(
    method: Callable[Concatenate[R, P], T],
) -> Callable[Concatenate[R, P], T]:
    """Decorate a method that runs `self.model`: `self.device` is the current device meanwhile, and
    errors of the model get the module path and the plugin.

    Modules do not store their paths. The path is computed from the traceback, so that a pass
    without errors has no overhead. An InvalidTensor is raised again, other errors get a note.
    """

    @wraps(method)
    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with current_device(self.device):
                return method(self, *args, **kwargs)
        except InvalidTensor as error:
            path = module_path(self.model, error.__traceback__) or "the model"
            raise InvalidTensor(f"{error.fault} ({self.model.origin})", path) from error
        except Exception as error:
            if isinstance(error, OstroError) and not isinstance(error, InvalidResult):
                raise
            if path := module_path(self.model, error.__traceback__):
                error.add_note(f"raised in {path} ({self.model.origin})")
            raise

    return call


def module_path(model: Module, traceback: TracebackType | None) -> str:
    """The path of the innermost module of `model` on a traceback; empty if there is none.

    A module shared by several layers (`Rope`) is named below the layer that calls it.
    """
    module, path = model, ""
    for frame, _ in walk_tb(traceback):
        inner: Any = frame.f_locals.get("self")
        if isinstance(inner, Module) and inner is not module:
            names = (name for name, child in module.named_modules() if child is inner)
            if name := next(names, ""):
                module, path = inner, f"{path}.{name}" if path else name
    return path
