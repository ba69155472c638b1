"""A model that returns wrong hidden states or logits is refused by its class and its plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.engine.engine import Engine
from ostro.core.engine.startup.warm_up import make_ready
from ostro.core.errors import PluginError
from ostro.core.load.model import load_model
from ostro.core.settings import Settings
from ostro.plugins.conformance.parity import Subject

ORIGIN = "(architecture llama, plugin architectures.llama (built in))"
WRONG: dict[str, tuple[str, Callable[[Tensor], Any], str]] = {
    "narrow": ("logits", lambda y: y[:, :7], "[3, 7] float32, expected floats [3, {vocab}]"),
    "few": ("logits", lambda y: y[:1], "[1, {vocab}] float32, expected floats [3, {vocab}]"),
    "integers": ("logits", lambda y: y.int(), "[3, {vocab}] int32, expected floats"),
    "batch": ("logits", lambda y: y[None], "[1, 3, {vocab}] float32, expected"),
    "none": ("logits", lambda y: None, "None, expected floats [3, {vocab}]"),
    "rows": ("hidden", lambda y: y[:1], "[1, {width}] float32, expected floats [3, width]"),
    "rank": ("hidden", lambda y: y[None], "[1, 3, {width}] float32, expected floats [3, width]"),
    "int": ("hidden", lambda y: y.long(), "[3, {width}] int64, expected floats [3, width]"),
    "nothing": ("hidden", lambda y: None, "None, expected floats [3, width]"),
    "tuple": ("hidden", lambda y: (y,), "a value of type tuple, expected floats"),
}


def broken(engine: Engine, name: str) -> str:
    """Let the engine's model return a wrong result; return a part of the error."""
    method, change, fault = WRONG[name]
    model: Any = engine.runner.model
    right = getattr(model, method)
    setattr(model, method, lambda *arguments: change(right(*arguments)))
    return f"Model.{method} returned {fault}"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_result_names_the_class_and_the_plugin(llama: Subject, name: str) -> None:
    engine = llama.engine()
    vocab, width = engine.vocab, engine.runner.hidden([[3]])[0].shape[1]
    fault = broken(engine, name).format(vocab=vocab, width=width)
    with pytest.raises(PluginError) as raised:
        engine.runner.logits([3, 4, 5])
    assert f"ostro.architectures.llama.model.{fault}" in str(raised.value)
    assert str(raised.value).endswith(ORIGIN)


@pytest.mark.parametrize("name", ["rows", "nothing"])
def test_vectors_of_a_wrong_shape_are_refused(llama: Subject, name: str) -> None:
    engine = llama.engine()
    broken(engine, name)
    with pytest.raises(PluginError, match=r"Model.hidden returned .* expected floats \[3, width\]"):
        engine.runner.hidden([[3, 4, 5]])


@pytest.mark.parametrize("name", ["narrow", "integers", "rows"])
def test_a_model_with_wrong_results_does_not_start(llama: Subject, name: str) -> None:
    loaded = load_model(llama.folder, Settings(dtype="float32"), llama.plugins)
    engine = llama.engine()
    broken(engine, name)
    with pytest.raises(PluginError, match="returned"):
        make_ready(engine, loaded)


@pytest.mark.parametrize("name", ["narrow", "rows"])
def test_a_captured_step_is_checked(llama: Subject, name: str) -> None:
    engine = llama.engine()
    broken(engine, name)
    with pytest.raises(PluginError, match="returned"), torch.inference_mode():
        engine.runner.capture()
