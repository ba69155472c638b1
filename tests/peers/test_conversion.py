"""GGUF files written by ostro equal those of llama.cpp: its converter and llama-quantize.

The converter needs a checkout of llama.cpp, see `converter.py`; llama-quantize and the logits need
the environment `llama_cpp` (`environments.py`).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader, LlamaFileType, dequantize
from tiny.model import make_tokenizer

sys.path.append(str(Path(__file__).parent))

from conversions import CASES, DENSE, Case
from converter import (
    CHECKOUT,
    ConverterError,
    compare_media,
    convert,
    find_checkout,
    find_python,
)
from environments import default_root, python_of

from ostro.core.load.planning import plan_model
from ostro.core.load.saving import Saving
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.checkpoints.gguf.convert import Converted
from ostro.plugins.checkpoints.gguf.write import write_gguf
from ostro.plugins.conformance.parity import BAR, subject
from ostro.quant.gguf import MIXTURES

pytestmark = pytest.mark.peer

OTHERS = ("add_mtp_layer", "guess")
"""Changes that add layers of multi-token prediction, which ostro does not write."""

ALIKE = ("bytes", "fallback")
"""Tokenizers of which the converter reads the same file as ostro. It reads the others as another
kind (a unigram model as BPE), or from other files."""

OWN = ("general.name", "general.size_label", "general.file_type", "tokenizer.ggml.padding_token_id")
"""Keys that may differ: the folder's name, and a token that the converter adds to tiny models."""

STATED = {
    "hunyuan dense": ("context_length", "rope.scaling.", "tokenizer.ggml.eos_token_id"),
    "granite hybrid": ("context_length",),
    "granite hybrid, dense": ("context_length",),
    "glm": ("tokenizer.ggml.",),
    "glm4": ("tokenizer.ggml.",),
    "glm4 moe": ("tokenizer.ggml.", "block_count", "nextn_predict_layers"),
    "gemma4": ("tokenizer.ggml.token_type",),
    "gemma4, experts": ("tokenizer.ggml.token_type",),
    "modernbert": ("tokenizer.ggml.",),
    "modernbert, classifier": ("tokenizer.ggml.",),
    "qwen2": ("tokenizer.ggml.token",),
    "qwen3.5 moe": ("tokenizer.ggml.token",),
    "text of qwen3.5 vl": ("tokenizer.ggml.token",),
    "xverse": ("tokenizer.ggml.", "tensor_data_layout"),
}
"""Keys in which the converter states what it knows of published models, not the tiny model's."""


def comparable(case: Case) -> bool:
    """Whether both make a file of the same tensors."""
    fused = any("fuse" in option for option in case.options)
    added = case.change is not None and case.change.__name__ in OTHERS
    return not (case.refused or fused or added or case.media is not None)


EQUAL = {name: case for name, case in CASES.items() if comparable(case)}
MEDIA = {name: case for name, case in CASES.items() if case.media is not None and not case.refused}


@pytest.fixture(scope="module")
def checkout() -> Path:
    found = find_checkout(None)
    if found is None:
        pytest.skip(f"{CHECKOUT} names no checkout of llama.cpp")
    return found


@pytest.fixture(scope="module")
def llama_cpp() -> Path:
    python = python_of(default_root(), "llama_cpp")
    if not python.exists():
        pytest.skip("the environment llama_cpp is missing")
    return python


@pytest.mark.parametrize("name", MEDIA)
def test_projectors_equal_those_of_the_converter(
    name: str, checkout: Path, plugins: PluginManager, tmp_path: Path
) -> None:
    case = MEDIA[name]
    with subject(plugins, case.name, config=case.shape(plugins)) as tiny:
        case.prepare(tiny)
        theirs = tmp_path / "theirs.gguf"
        try:
            convert(tiny.folder, theirs, checkout, find_python(), ("--mmproj",))
        except ConverterError as error:
            pytest.skip(str(error))
        ours(tiny.folder, tmp_path / "ours", plugins)
        (written,) = (tmp_path / "ours").glob("mmproj-*.gguf")
        a, b = GGUFReader(written), GGUFReader(theirs)
        compare_tensors(a, b)
        found, expected = keys(a), keys(b)
        own = {key for key in expected if key.startswith(OWN)}
        assert {key: found.get(key) for key in expected.keys() - own} == {
            key: expected[key] for key in expected.keys() - own
        }
        assert compare_media(tiny, tmp_path / "ours") <= BAR


def ours(folder: Path, out: Path, plugins: PluginManager) -> Path:
    found = plan_model(folder, Settings(device="cpu", dtype="float32"), plugins)
    return write_gguf(Saving(found, out, "", plugins, torch.float32), lambda *step: None)


def keys(reader: GGUFReader) -> dict[str, tuple[Any, Any]]:
    """The types and values of a file's keys, without the prefix of its architecture."""
    name = reader.fields["general.architecture"].contents()
    return {
        key.removeprefix(f"{name}."): (field.types, field.contents())
        for key, field in reader.fields.items()
        if not key.startswith("GGUF.")
    }


@pytest.mark.parametrize("name", EQUAL)
def test_files_equal_those_of_the_converter(
    name: str, checkout: Path, llama_cpp: Path, plugins: PluginManager, tmp_path: Path
) -> None:
    case = EQUAL[name]
    with subject(plugins, case.name, config=case.shape(plugins)) as tiny:
        case.prepare(tiny)
        theirs = tmp_path / "theirs.gguf"
        try:
            convert(tiny.folder, theirs, checkout, find_python(), case.options)
        except ConverterError as error:
            pytest.skip(str(error))
        if case.tokenizer not in ALIKE:
            make_tokenizer().save(str(tiny.folder / "tokenizer.json"))
        written = ours(tiny.folder, tmp_path / "ours", plugins)
    a, b = GGUFReader(written), GGUFReader(theirs)
    compare_tensors(a, b)
    ignored = (*OWN, *STATED.get(name, ()), *(() if case.tokenizer in ALIKE else ("tokenizer.",)))
    found, expected = keys(a), keys(b)
    wrong = {
        key: (found.get(key), value)
        for key, value in expected.items()
        if not key.startswith(ignored) and found.get(key) != value
    }
    assert not wrong
    compare_logits(written, theirs, llama_cpp, tmp_path)


def compare_tensors(a: GGUFReader, b: GGUFReader) -> None:
    """Equal names, shapes and values; poolers of classifiers are not in the converter's files."""
    ours, theirs = ({each.name: each for each in reader.tensors} for reader in (a, b))
    assert ours.keys() - {"cls.weight", "cls.bias"} == theirs.keys() - {"cls.weight", "cls.bias"}
    for name in theirs:
        x, y = ours[name], theirs[name]
        assert list(x.shape) == list(y.shape), name
        values = [dequantize(each.data, each.tensor_type).ravel() for each in (x, y)]
        np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-6, err_msg=name)


PROMPT = [3, 17, 99, 250, 8, 44, 101, 12, 5, 77, 130, 9] * 3
SAY = """
import ctypes, sys
from pathlib import Path
import numpy as np, llama_cpp, quantizer
llama_cpp.llama_log_set(quantizer.QUIET, ctypes.c_void_p())
prompt = [int(token) for token in sys.argv[3].split(",")]
logits, _ = quantizer.say(Path(sys.argv[1]), prompt, 0, False)
np.save(sys.argv[2], logits)
"""


def compare_logits(ours: Path, theirs: Path, python: Path, folder: Path) -> None:
    """The logits of llama.cpp for both files, if it loads the converter's tiny file."""
    found = [logits(file, folder / f"{i}.npy", python) for i, file in enumerate((theirs, ours))]
    if found[0] is not None:
        assert found[1] is not None, "llama.cpp loads the converter's file only"
        assert np.abs(found[0] - found[1]).max() <= 1e-5 * found[0].std()


def logits(file: Path, out: Path, python: Path) -> np.ndarray[Any, Any] | None:
    words = ",".join(map(str, PROMPT))
    run(python, SAY, str(file), str(out), words, check=False)
    return np.load(out) if out.exists() else None


def run(python: Path, code: str, *words: str, check: bool = True) -> None:
    command = [str(python), "-c", code, *words]
    subprocess.run(
        command, cwd=Path(__file__).parent, check=check, timeout=250, capture_output=True
    )


QUANTIZE = """
import ctypes, sys
from pathlib import Path
import llama_cpp, quantizer
llama_cpp.llama_log_set(quantizer.QUIET, ctypes.c_void_p())
for ftype in sys.argv[2:]:
    source = Path(sys.argv[1])
    quantizer.quantize(source, source.with_name(f"{ftype}.gguf"), int(ftype))
"""
SHAPES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"num_hidden_layers": 16}),
    "tied, groups of 4": (
        "llama",
        {"num_hidden_layers": 18, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "rows of 288": ("llama", {"num_hidden_layers": 8, "intermediate_size": 288}),
    "fused": ("phi3", {"num_hidden_layers": 9}),
    "8 experts": ("qwen3_moe", {**DENSE, "num_hidden_layers": 8, "num_experts": 8}),
    "6 experts": ("qwen3_moe", {**DENSE, "num_hidden_layers": 8, "num_experts": 6}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_mixtures_have_the_formats_of_llama_quantize(
    name: str, llama_cpp: Path, plugins: PluginManager, tmp_path: Path
) -> None:
    record, changes = SHAPES[name]
    wide = {**plugins.get("architectures", record).conformance.wide, "vocab_size": 320, **changes}
    types = {each: LlamaFileType[f"MOSTLY_{each}"] for each in MIXTURES}
    with subject(plugins, record, config=wide) as tiny:
        make_tokenizer().save(str(tiny.folder / "tokenizer.json"))
        source = ours(tiny.folder, tmp_path, plugins)
        run(llama_cpp, QUANTIZE, str(source), *(str(int(each)) for each in types.values()))
        for mixture, number in types.items():
            found = plan_model(tiny.folder, Settings(device="cpu", quant=mixture), plugins)
            saving = Saving(found, tmp_path, mixture, plugins, torch.float32)
            written = {each.name: each.format for each in Converted(saving).entries()}
            file = GGUFReader(tmp_path / f"{int(number)}.gguf")
            expected = {each.name: each.tensor_type.name for each in file.tensors}
            assert written == expected, mixture
