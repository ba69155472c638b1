"""Faults of a plugin that reads adapters are errors that name the plugin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.adapters.loader import read_weights
from ostro.core.adapters.weights import AdapterWeights, LowRank
from ostro.core.errors import AdapterError
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings

PLUGIN = """
from ostro import Adapter, hookimpl

def claims(files, config):
    return config.get("format") == "odd"

def read(source):
    from {module} import RESULTS
    result = RESULTS[source.config["result"]]
    if isinstance(result, BaseException):
        raise result
    return result

@hookimpl
def ostro_adapters():
    yield Adapter(name="odd", claims=claims, load="odd_reader:read")
"""


def weights(a: Any = None, b: Any = None, **more: Any) -> AdapterWeights:
    factors = LowRank(a=ones(2, 4) if a is None else a, b=ones(3, 2) if b is None else b, **more)
    return AdapterWeights(kind="odd", weights={"x.q_proj": factors})


def ones(*shape: int) -> Tensor:
    return torch.ones(shape)


RESULTS: dict[str, Any] = {
    "none": None,
    "a dict": {},
    "int32 b": weights(b=ones(3, 2).int()),
    "bool bias": weights(bias=ones(3).bool()),
    "a list": weights(a=[[1.0]]),
    "int whole": AdapterWeights(kind="odd", whole={"x.weight": ones(3, 2).long()}),
    "raises": KeyError("/srv/secret"),
    "exits": SystemExit(3),
    "refuses": AdapterError("odd.bin has no scale"),
    "right": weights(),
}
PLACE = "^folder: plugin odd_reader \\(.*\\) "
FAULTS = {
    "none": PLACE + "returned None, expected AdapterWeights$",
    "a dict": PLACE + "returned a value of type dict, expected AdapterWeights$",
    "int32 b": PLACE + r"returned \[3, 2\] int32 as x.q_proj.b, expected floats$",
    "bool bias": PLACE + r"returned \[3\] bool as x.q_proj.bias, expected floats$",
    "a list": PLACE + "returned a value of type list as x.q_proj.a, expected floats$",
    "int whole": PLACE + r"returned \[3, 2\] int64 as x.weight, expected floats$",
    "raises": PLACE + "raised KeyError; see the log$",
    "exits": PLACE + "raised RuntimeError; see the log$",
    "refuses": "^odd.bin has no scale$",
}


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> PluginManager:
    file = tmp_path_factory.mktemp("plugins") / "odd_reader.py"
    file.write_text(PLUGIN.replace("{module}", __name__))
    manager = PluginManager()
    manager.load(Settings(), [file])
    return manager


def read(plugins: PluginManager, tmp_path: Path, result: str) -> AdapterWeights:
    folder = tmp_path / "folder"
    folder.mkdir()
    config = {"format": "odd", "result": result}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return read_weights(folder, plugins)


@pytest.mark.parametrize("result", FAULTS)
def test_a_fault_of_the_reader_names_its_plugin(
    plugins: PluginManager, tmp_path: Path, caplog: pytest.LogCaptureFixture, result: str
) -> None:
    with pytest.raises(AdapterError, match=FAULTS[result]):
        read(plugins, tmp_path, result)
    logged = {"raises": "KeyError: '/srv/secret'", "exits": "it called sys.exit(3)"}
    assert logged.get(result, "") in caplog.text
    assert bool(caplog.text) == (result in logged)


def test_right_weights_are_returned(plugins: PluginManager, tmp_path: Path) -> None:
    assert read(plugins, tmp_path, "right").kind == "odd"
