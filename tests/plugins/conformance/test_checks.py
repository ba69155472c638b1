"""No check is one that cannot fail: each is shown something wrong, and must say so."""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from ostro.architectures.gemma2 import model as gemma2
from ostro.architectures.llama import model as llama
from ostro.architectures.llama import names as llama_names
from ostro.architectures.qwen3 import naive as qwen3
from ostro.core import config, nn
from ostro.core.adapters.delta import AdapterDelta
from ostro.core.adapters.mixture_table import MixtureTable
from ostro.core.engine.blocks import BlockManager
from ostro.core.engine.buckets import DecodeBucket
from ostro.core.engine.runner import ModelRunner
from ostro.core.errors import OstroError
from ostro.core.load.names import Names, Pair
from ostro.core.nn.linear import WeightSlot
from ostro.core.ops import Fused
from ostro.core.records import Architecture, Mutant
from ostro.plugins.authoring.surface import Import, breach, imports
from ostro.plugins.conformance import kernel_parity, mutants, package
from ostro.plugins.conformance.architecture import all_plugins
from ostro.plugins.conformance.checks import CHECKS, checks_of
from ostro.plugins.conformance.kernel_parity import runnable
from ostro.plugins.conformance.names import fault_of
from ostro.plugins.conformance.parity import Subject, subject
from ostro.quant.planes import storage as planes

Wrong = Callable[[], AbstractContextManager[Any]]
replaced = mock.patch.object


def around(owner: Any, name: str, change: Callable[..., Any]) -> AbstractContextManager[Any]:
    """A function's answer, changed: `change(answer, *arguments)`."""
    plain = getattr(owner, name)
    return replaced(owner, name, lambda *args, **kw: change(plain(*args, **kw), *args))


def deaf(self: nn.Linear, x: Tensor, step: Any) -> Tensor:
    y = torch.cat([s.matmul(x) for s in self.storages.values()] or [self.whole.matmul(x)], -1)
    return y if self.bias is None else y + self.bias


def from_zero(self: nn.Rope, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Positions that begin anew in every step."""
    out: tuple[Tensor, Tensor] = self.rotate(q, k, positions - positions[:, :1], self.table)
    return out


def moved(answer: None, bucket: DecodeBucket, step: Any, batches: Any) -> None:
    bucket.positions += 1


def together(self: nn.EncoderAttention, x: Tensor, step: Any) -> Tensor:
    """Every row sees the rows of all texts."""
    q, k, v = self.qkv(x, step).view(len(x), 3, self.heads, -1).unbind(1)
    y = self.attend(q, k, v, [0, len(x)], self.scale)
    return self.o_proj(y.flatten(1), step)


def louder(kernels: Any, *_: Any) -> list[tuple[Any, Any]]:
    return [(kernel, lambda *args, run=run: run(*args) * 1.01) for kernel, run in kernels]


def roomy(tiny: Subject, *args: Any, **kwargs: Any) -> Any:
    return plain_engine(tiny, *args, **{**kwargs, "blocks": 64})


plain_engine = Subject.engine
MUTE = Mutant(name="a bug that does nothing", apply=lambda model: None)

WRONG: dict[str, tuple[str, Wrong]] = {
    "outputs match the reference": (
        "llama",
        lambda: around(nn.RMSNorm, "forward", lambda y, *_: (y[0] * 1.01, y[1])),
    ),
    "plain compositions match fused kernels": (
        "qwen3",
        lambda: around(nn.Attention, "rotate_and_write", lambda q, *_: q * 1.01),
    ),
    "every mutant fails parity": (
        "llama",
        lambda: replaced(mutants, "of", lambda record, model: [MUTE]),
    ),
    "adapter deltas reach every linear": ("llama", lambda: replaced(nn.Linear, "forward", deaf)),
    "chunked prefill matches full prefill": (
        "llama",
        lambda: replaced(nn.Rope, "forward", from_zero),
    ),
    "ragged batches match single sequences": (
        "llama",
        lambda: replaced(nn.Rope, "forward", from_zero),
    ),
    "captured loop matches eager": ("llama", lambda: around(DecodeBucket, "load", moved)),
    "prefix cache hits do not change outputs": (
        "llama",
        lambda: replaced(BlockManager, "match_prefix", lambda self, keys: 0),
    ),
    "preemption does not change outputs": (
        "llama",
        lambda: replaced(Subject, "engine", roomy),
    ),
    "encoder batches match single inputs": (
        "bert",
        lambda: replaced(nn.EncoderAttention, "forward", together),
    ),
    "config round trips": (
        "llama",
        lambda: around(llama.Config, "derive", lambda v, *_: v | {"hidden_size": 32}),
    ),
    "mistyped config values are rejected by field name": (
        "llama",
        lambda: replaced(config, "typed", lambda name, value, hint: value),
    ),
    "media features do not depend on the batch": (
        "whisper",
        lambda: replaced(nn.EncoderAttention, "forward", together),
    ),
    "unimplemented config keys are rejected by name": (
        "gemma3",
        lambda: replaced(config, "refuse_unimplemented", lambda *_: None),
    ),
    "only the public surface is imported": (
        "llama",
        lambda: replaced(package, "imports", lambda *_: [Import(1, "ostro.core.engine", "loop")]),
    ),
    "plugin is listed without importing torch": (
        "llama",
        lambda: replaced(package, "plugin_of", lambda tiny: llama),
    ),
    "gguf names cover every weight": (
        "llama",
        lambda: replaced(llama_names, "GGUF", llama_names.GGUF[1:]),
    ),
    "quantized models match dequantized weights": (
        "llama",
        lambda: around(planes.Packed, "dequantized", lambda weight, *_: weight * 1.01),
    ),
    "adapters match merged weights": (
        "llama",
        lambda: around(MixtureTable, "scales_of", lambda scales, *_: scales * 0.9),
    ),
    "adapters on quantized weights match merged floats": (
        "llama",
        lambda: around(
            AdapterDelta, "gains_of", lambda gains, *_: None if gains is None else gains**2
        ),
    ),
    "batch rows use only their own adapters": (
        "llama",
        lambda: around(ModelRunner, "mixture_rows", lambda rows, *_: rows[::-1]),
    ),
    "kernels match their naive versions": (
        "qwen3",
        lambda: around(kernel_parity, "runnable", louder),
    ),
}


FAILS = (AssertionError, pytest.fail.Exception, OstroError, TypeError)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", WRONG)
def test_a_check_fails_where_it_should(name: str) -> None:
    architecture, wrong = WRONG[name]
    with subject(all_plugins(), architecture) as tiny:
        [check] = [check for check in checks_of(tiny.record) if check.name == name]
        check.run(tiny)
        wronged = wrong()
        with wronged, pytest.raises(FAILS):
            check.run(tiny)


@pytest.mark.parametrize(
    ("architecture", "where"), [("gemma3", ""), ("gemma3_images", "text_config.")]
)
def test_a_key_that_changes_the_reference_must_be_named(architecture: str, where: str) -> None:
    check = CHECKS["unimplemented config keys are rejected by name"]
    said = f"^{where}use_bidirectional_attention=True is accepted and ignored"
    with subject(all_plugins(), architecture) as tiny:
        unnamed = replaced(gemma2.Config, "unimplemented", {})
        with unnamed, pytest.raises(AssertionError, match=said):
            check.run(tiny)


def test_every_check_is_shown_something_wrong() -> None:
    checks_of(Architecture(name="any", api=(0, 2), config="a:b", model="a:b"))
    ours = [
        n for n, c in CHECKS.items() if c.run.__module__.startswith("ostro.plugins.conformance.")
    ]
    assert sorted(ours) == sorted(WRONG)


@pytest.mark.parametrize(
    ("tasks", "meant"),
    [
        (("text", "embed"), "chunked prefill matches full prefill"),
        (("embed",), "encoder batches match single inputs"),
        (("image",), None),
    ],
)
def test_the_tasks_of_a_record_say_which_checks_are_meant(
    tasks: tuple[str, ...], meant: str | None
) -> None:
    record = Architecture(name="any", api=(0, 2), config="a:b", model="a:b", tasks=tasks)
    names = [check.name for check in checks_of(record)]
    kinds = {"chunked prefill matches full prefill", "encoder batches match single inputs"} & {
        *names
    }
    assert kinds == ({meant} if meant else set())
    assert "only the public surface is imported" in names


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("from ostro import nn, Step", True),
        ("from ostro.config import TextConfig", True),
        ("from ostro.errors import ConfigError", True),
        ("from ostro.core.errors import ConfigError", False),
        ("from ostro.nn import Router", True),
        ("from ostro.trunks import llama", True),
        ("from ostro.architectures.llama import model", True),
        ("from . import names", True),
        ("from .names import GGUF", True),
        ("from ostro.core.load.names import Names", False),
        ("from ostro.core.engine.engine import Engine", False),
        ("from ostro.architectures.glm4 import model", False),
        ("from ostro.trunks import glm4", False),
        ("import ostro.quant.dense.storage", False),
        ("from ostro import nothing", False),
        ("def f():\n    from ostro.plugins.pipelines import text", False),
    ],
)
def test_the_public_surface(text: str, allowed: bool) -> None:
    found = [each for each in imports(ast.walk(ast.parse(text)), ["wheel"]) if breach(each)]
    assert bool(found) is not allowed


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("from ostro.core.step import Step", "write `from ostro import Step`"),
        ("from ostro.core.config import TextConfig", "write `from ostro.config import TextConfig`"),
        ("from ostro.core.load.weights import fill", "docs/api.md lists the public names"),
        ("from ostro.trunks import lama", "build on one of "),
    ],
)
def test_a_breach_says_what_to_write(text: str, instead: str) -> None:
    [only] = imports(ast.walk(ast.parse(text)), ["wheel"])
    assert str(breach(only)[-1]).startswith(instead)  # type: ignore[index]


def test_a_built_in_plugin_may_import_itself() -> None:
    own = Import(1, "ostro.architectures.glm4.model", "Model")
    assert breach(own) and breach(own, "ostro.architectures.mistra")
    assert breach(own, "ostro.architectures.glm4") is None


def test_only_kernels_that_something_can_run_are_compared() -> None:
    part = Fused(qwen3.KERNELS, head_dim=16, whole=False)
    whole = Fused(qwen3.KERNELS, head_dim=16, whole=True)
    found = [kernel.name for place in ("cpu", "cuda") for kernel, _ in runnable(whole, place)]
    assert sorted(found) == ["native", "triton"]
    assert not [*runnable(part, "cpu"), *runnable(part, "cuda")]


def test_a_transform_without_a_way_back_is_named() -> None:
    class Twice:
        packed = False

        def read(self, tensor: Tensor) -> Tensor:
            return tensor * 2

        write = read

    names = Names(gguf=(Pair("blk.{i}.norm", "layers.{i}.norm", Twice()),))
    slot = WeightSlot("layers.0.norm.weight", "tensor", (3,), nn.Module())
    assert "does not invert its write" in str(fault_of(names, slot))
    assert fault_of(Names(gguf=(Pair("blk.{i}.norm", "layers.{i}.norm"),)), slot) is None


def test_a_plugin_in_one_file_has_one_source(tmp_path: Path) -> None:
    module = SimpleNamespace(__file__=str(tmp_path / "one.py"), __name__="one")
    assert package.sources(module) == [tmp_path / "one.py"]  # type: ignore[arg-type]
