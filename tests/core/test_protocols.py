"""The objects that import strings name have the types of their Protocols, checked by mypy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ostro.core.plugins.manager import PluginManager

ROOT = Path(__file__).resolve().parents[2]

TARGETS = {
    ("architectures", "config"): "ConfigClass",
    ("architectures", "names"): "NamesFunction",
    ("architectures", "gguf_config"): "ConfigReader",
    ("quantizers", "storage"): "StorageClass",
    ("planners", "plan"): "FormatPlanner",
    ("checkpoints", "open"): "CheckpointOpener",
    ("checkpoints", "write"): "CheckpointWriter",
    ("tokenizers", "load"): "TokenizerLoader",
    ("adapters", "load"): "AdapterReader",
    ("pipelines", "pipeline"): "PipelineClass",
    ("logits_processors", "processor"): "LogitsProcessorClass",
    ("stores", "open"): "StoreOpener",
    ("commands", "parser"): "CommandParser",
    ("commands", "run"): "CommandRunner",
}
"""Fields of records that hold import strings, and the types of the objects that they name."""

OTHER = {("checkpoints", "dummy", "open"), ("architectures", "transformers", "config")}
"""Targets that the core calls in a way of its own: noise has no file, the transformers backend
makes a config of a record.
"""

PIPELINES = {
    "embed": "VectorPipeline",
    "rerank": "VectorPipeline",
    "classify": "VectorPipeline",
    "transcribe": "TranscriptionPipeline",
    "speak": "SpeechPipeline",
    "draw": "ImagePipeline",
}
"""Tasks, and the types of their pipelines in `ostro.pipelines`."""

NO_DOTS = str.maketrans(".-", "__")

WRONG = """
from pathlib import Path
import ostro

def opens_text(path: str) -> int: ...
def reads_nothing() -> None: ...
class NoStorage:
    def read(self) -> None: ...

a: ostro.CheckpointOpener = opens_text
b: ostro.AdapterReader = reads_nothing
c: ostro.StorageClass = NoStorage
"""


def assignments() -> Iterator[str]:
    """Lines for each import string of a built-in plugin: its object, assigned to its type."""
    plugins = PluginManager()
    plugins.load()
    for (kind, field), protocol in TARGETS.items():
        for name, record in plugins.collect(kind).items():
            module, _, attribute = (getattr(record, field) or "").partition(":")
            if not module.startswith("ostro.") or (kind, name, field) in OTHER:
                continue
            quantizes = field == "storage" and record.makes
            target = "QuantizingStorageClass" if quantizes else protocol
            yield f"import {module}"
            yield f"{kind}_{field}_{name.translate(NO_DOTS)}: ostro.{target} = {module}.{attribute}"
            if kind == "pipelines" and name in PIPELINES:
                yield f"def of_{name}(pipeline: {module}.{attribute}) -> types.{PIPELINES[name]}:"
                yield "    return pipeline"


def check(folder: Path, source: str) -> str:
    (folder / "checked.py").write_text(source)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    cache = ["--cache-dir", str(folder / "cache"), str(folder / "checked.py")]
    found = subprocess.run([*command, *cache], cwd=ROOT, capture_output=True, text=True)
    return found.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_built_in_target_has_its_type(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    lines = list(assignments())
    assert len(lines) > 200
    imports = ["import ostro", "import ostro.pipelines as types"]
    assert "Success" in (found := check(tmp_path, "\n".join([*imports, *lines]))), found
    wrong = check(tmp_path, WRONG)
    assert wrong.count("[assignment]") == 3, wrong
