"""Pipes, folders and sockets in place of the files of a model and of an adapter.

A pipe blocks its reader until a writer appears: an engine that opened one would load nothing more.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny.cli_runner import CliRunner
from tiny.pipes import pipe

from ostro.architectures.llava_next.inputs import find_video
from ostro.architectures.qwen2_5_vl import pixels as qwen_pixels
from ostro.architectures.siglip import pixels as siglip_pixels
from ostro.architectures.whisper.spectrum import read_mel
from ostro.core.adapters.loader import read_weights
from ostro.core.errors import ConfigError, OstroError, TokenizerError
from ostro.core.load.open import generation_defaults, open_container
from ostro.core.load.pooling import read_pooling
from ostro.core.plugins.manager import PluginManager, installed_plugins
from ostro.core.tokenizer import load_tokenizer

MODEL_FILES = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
)
ADAPTER_FILES = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "adapter_model.safetensors.index.json",
    "chat_template.jinja",
    "tokenizer_config.json",
    "added_tokens.json",
)
PARTS = ((1, "Pooling"), (2, "Dense"))
SETTINGS = {
    "processor_config.json": (
        siglip_pixels.find,
        find_video,
        lambda folder: qwen_pixels.read(folder, "image", {}),
    ),
    "preprocessor_config.json": (siglip_pixels.find, read_mel),
    "video_preprocessor_config.json": (find_video,),
}
"""Functions that read the settings of images, videos and audio, by file."""


@pytest.fixture(scope="module")
def plugins() -> PluginManager:
    return installed_plugins()


@pytest.mark.parametrize("name", MODEL_FILES)
def test_a_pipe_in_a_model_is_refused(runner: CliRunner, name: str) -> None:
    config = runner.folder / "tokenizer_config.json"
    if name == "chat_template.json":  # the other file has no template
        config.write_text(json.dumps({"eos_token": "<|im_end|>"}))
    with pipe(runner.folder / name):
        code, out, err = runner.run()
    assert code in (3, 4, 5, 6) and not out, err
    assert err.startswith("ostro: ") and err.count("\n") == 1 and Path(name).name in err


@pytest.mark.parametrize("name", ["model.gguf", "model-0.uqff", "model.bin"])
def test_a_pipe_as_weights_is_refused(
    good: Path, tmp_path: Path, plugins: PluginManager, name: str
) -> None:
    shutil.copy(good / "config.json", tmp_path)
    for path in (tmp_path, tmp_path / name):
        with pipe(tmp_path / name), pytest.raises(OstroError):
            open_container(path, plugins)


def test_a_pipe_has_no_defaults_of_generation(
    good: Path, tmp_path: Path, plugins: PluginManager
) -> None:
    folder = Path(shutil.copytree(good, tmp_path / "m"))
    container = open_container(folder, plugins)
    with pipe(folder / "generation_config.json"):
        assert generation_defaults(container) == {}


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("tokenizer.model", {}),
        ("tekken.json", {}),
        ("qwen.tiktoken", {"tokenizer_class": "QWenTokenizer"}),
        ("vocab.txt", {"tokenizer_class": "BertTokenizer"}),
        ("vocab.json", {"tokenizer_class": "Qwen2Tokenizer"}),
        ("merges.txt", {"tokenizer_class": "Qwen2Tokenizer"}),
    ],
)
def test_a_pipe_as_a_vocabulary_is_refused(
    tmp_path: Path, plugins: PluginManager, name: str, config: dict[str, str]
) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    for beside in {"vocab.json": "merges.txt", "merges.txt": "vocab.json"}.get(name, "").split():
        (tmp_path / beside).write_text("{}")
    for path in (tmp_path, tmp_path / name):
        with pipe(tmp_path / name), pytest.raises(TokenizerError, match=name):
            load_tokenizer(path, plugins=plugins)


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json", "2_Dense/config.json"])
def test_a_pipe_in_a_folder_of_pooling_is_refused(tmp_path: Path, name: str) -> None:
    modules = [{"type": f"x.{kind}", "path": f"{i}_{kind}"} for i, kind in PARTS]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    for i, kind in PARTS:
        (tmp_path / f"{i}_{kind}").mkdir()
        (tmp_path / f"{i}_{kind}" / "config.json").write_text('{"pooling_mode": "mean"}')
    with pipe(tmp_path / name), pytest.raises(ConfigError, match=name):
        read_pooling(tmp_path, "mean", torch.device("cpu"))


@pytest.mark.parametrize(
    ("name", "read"), [(name, read) for name in SETTINGS for read in SETTINGS[name]]
)
def test_a_pipe_as_settings_of_media_is_refused(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    with pipe(tmp_path / name), pytest.raises(ConfigError, match=name):
        read(tmp_path)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """A LoRA adapter that can be read."""
    linear = "base_model.model.model.layers.0.self_attn.q_proj"
    factors = {f"{linear}.lora_A.weight": (2, 32), f"{linear}.lora_B.weight": (32, 2)}
    tensors = {name: torch.ones(shape) for name, shape in factors.items()}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize("name", ADAPTER_FILES)
def test_a_pipe_in_an_adapter_is_refused(adapter: Path, plugins: PluginManager, name: str) -> None:
    assert read_weights(adapter, plugins).weights
    if name.endswith(".index.json"):
        (adapter / "adapter_model.safetensors").unlink()
    for path in (adapter, adapter / name):
        with pipe(adapter / name), pytest.raises(OstroError, match=name) as raised:
            read_weights(path, plugins)
        assert raised.value.status == 422


@pytest.mark.parametrize("name", ["config.json", "chat_template.jinja", "tokenizer.json"])
def test_a_folder_or_a_socket_in_a_model_is_refused(runner: CliRunner, name: str) -> None:
    file = runner.folder / name
    file.unlink(missing_ok=True)
    file.mkdir()
    code, _, err = runner.run()
    assert code and err.count("\n") == 1 and name in err
    file.rmdir()
    with closing(socket.socket(socket.AF_UNIX)) as opened:
        opened.bind(os.path.relpath(file))  # the limit on the length of its path is small
        code, _, err = runner.run()
    assert code and err.count("\n") == 1 and name in err


def test_a_large_file_of_a_tokenizer_is_refused_by_its_size(runner: CliRunner) -> None:
    for name in ("chat_template.jinja", "tokenizer.json"):
        with open(runner.folder / name, "ab") as file:
            file.truncate(1 << 40)  # without blocks on the disk
        runner.assert_rejected(TokenizerError, name, "larger than")
        os.remove(runner.folder / name)
