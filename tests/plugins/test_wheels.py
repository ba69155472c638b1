"""Plugins from outside, as their users have them: wheels, beside the wheel of ostro.

All is built and installed into a fresh environment, which borrows torch and the like from ours.
From API 1.0 on, wheels built at each version are kept in `wheels/` and tested unmodified; those of
a past 0.n are refused with the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from ostro.core.records import API

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples" / "plugins"
NAMES = ("ostro-arch-arcee", "ostro-quant-int8-rows", "ostro-api-llamacpp")
PROJECTS = tuple(EXAMPLES / name for name in NAMES)
KEPT = Path(__file__).with_name("wheels")
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
COUNT = 12

IN_PROCESS = """
import json, sys, ostro
with ostro.load(sys.argv[1], dtype="float32") as text:
    prompt = text.encode(json.loads(sys.argv[2]))
    rules = {"temperature": 0, "max_tokens": int(sys.argv[3]), "ignore_eos": True}
    [answer] = text.stream(prompt, return_token_ids=True, **rules).collect()
    print(json.dumps([ostro.__file__, prompt, answer.tokens, answer.text]))
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class WheelVenv:
    """A fresh environment: its `bin` folder, and the wheels that were built for it."""

    bin: Path
    dist: Path

    def run(self, program: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.bin / program), *words],
            cwd=self.dist,
            env=self.environment(**env),
            capture_output=True,
            text=True,
            check=False,
        )

    @staticmethod
    def environment(**more: str) -> dict[str, str]:
        """Ours without what would let Python find this checkout."""
        bare = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OSTRO_"))}
        return {**bare, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}

    def pip(self, *words: str) -> None:
        ran = self.run("python", "-m", "pip", "--disable-pip-version-check", *words)
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> WheelVenv:
    """An environment with ostro's wheel and those of the examples."""
    home = tmp_path_factory.mktemp("wheels")
    venv.create(home / "env", with_pip=True)
    made = WheelVenv(home / "env" / "bin", home / "dist")
    made.dist.mkdir()
    if made.run("python", "-m", "pip", "install", "-q", "hatchling>=1.27").returncode:
        pytest.skip("hatchling cannot be installed: is there no package index in reach?")
    sources = [copied(source, home / "src") for source in (ROOT, *PROJECTS)]
    made.pip("wheel", "-q", "--no-deps", "--no-build-isolation", "-w", ".", *map(str, sources))
    [site] = (home / "env").glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    wheels = sorted(map(str, made.dist.glob("*.whl")))
    assert len(wheels) == 1 + len(PROJECTS), wheels
    made.pip("install", "-q", "--no-deps", "--no-index", "--force-reinstall", *wheels)
    return made


def copied(source: Path, home: Path) -> Path:
    """A project's sources, so that building leaves nothing behind."""
    left = shutil.ignore_patterns(".venv", ".git", ".*_cache", "__pycache__", "tests", "dist")
    return Path(shutil.copytree(source, home / source.name, ignore=left, symlinks=True))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A small Arcee of random weights with the starter's tokenizer, and its reference."""
    import transformers

    from ostro.plugins.conformance.weights import reinitialise

    starter = ROOT / "plugins" / "starter" / "model"
    said = json.loads((starter / "config.json").read_text())
    config = transformers.ArceeConfig(
        vocab_size=said["vocab_size"],
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=said["eos_token_id"],
    )
    reference = transformers.ArceeForCausalLM(config).eval()
    reinitialise(reference, 0.2)
    folder = tmp_path_factory.mktemp("model") / "tiny-arcee"
    reference.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(starter / name, folder / name)
    return folder, reference


def test_ostro_finds_all(wheels: WheelVenv) -> None:
    ran = wheels.run("ostro", "plugins")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = [line.split("\t") for line in ran.stdout.splitlines()]
    assert ["arcee", "active", "ostro-arch-arcee 1.0", "architectures: arcee"] in lines
    formats = "quantizers: int8-rows"
    assert ["int8-rows", "active", "ostro-quant-int8-rows 1.0", formats] in lines
    assert ["llamacpp", "active", "ostro-api-llamacpp 1.0"] in [line[:3] for line in lines]
    assert not [line for line in lines if line[1] != "active"]


def test_each_wheel_is_clean(wheels: WheelVenv) -> None:
    for wheel in sorted(wheels.dist.glob("ostro_[aq]*.whl")):
        ran = wheels.run("ostro", "plugin", "check", str(wheel))
        assert ran.returncode == 0 and "0 errors, 0 warnings" in ran.stdout, ran.stdout


def test_an_author_needs_nothing_but_the_wheel(wheels: WheelVenv, tmp_path: Path) -> None:
    for kind in ("architecture", "quantizer"):
        ran = wheels.run("ostro", "plugin", "new", "x", "--kind", kind, "-o", str(tmp_path / kind))
        assert ran.returncode == 0 and ".gitignore" in ran.stdout, ran.stderr
        assert wheels.run("ostro", "plugin", "check", str(tmp_path / kind)).returncode == 0
    assert "| `nn.Linear` |" in wheels.run("ostro", "plugin", "blocks").stdout


@torch.inference_mode()
def continued(reference: Any, prompt: list[int]) -> list[int]:
    """The reference's greedy continuation, recomputed from scratch for each token."""
    tokens = list(prompt)
    for _ in range(COUNT):
        tokens.append(int(reference(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.fixture(scope="module")
def server(wheels: WheelVenv, model: tuple[Path, Any]) -> Iterator[str]:
    """The URL of `ostro serve` in the fresh environment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ("serve", "-m", str(model[0]), "--dtype", "float32", "-p", str(port))
    log = wheels.dist / "serve.log"
    with log.open("w") as file:
        running = subprocess.Popen(
            [str(wheels.bin / "ostro"), *words],
            env=wheels.environment(),
            cwd=wheels.dist,
            stdout=file,
            stderr=file,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 120
        while not answers(f"{url}/v1/models"):
            assert running.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        yield url
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(30)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_the_architecture_is_served(
    wheels: WheelVenv, model: tuple[Path, Any], server: str
) -> None:
    """HTTP, the process at hand, and transformers say the same tokens."""
    folder, reference = model
    ran = wheels.run("python", "-c", IN_PROCESS, str(folder), json.dumps(MESSAGES), str(COUNT))
    assert ran.returncode == 0, ran.stderr
    home, prompt, tokens, answer = json.loads(ran.stdout.splitlines()[-1])
    assert Path(home).is_relative_to(wheels.bin.parent), "this is not the wheel's ostro"
    assert tokens == continued(reference, prompt)
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": COUNT, "ignore_eos": True}
    made = httpx.post(f"{server}/v1/chat/completions", json=body, timeout=60).json()
    assert made["choices"][0]["message"]["content"] == answer
    assert made["usage"]["completion_tokens"] == COUNT
    assert made["usage"]["prompt_tokens"] == len(prompt)


def test_the_api_is_served(server: str) -> None:
    """The same tokens as those of OpenAI's route, whole and streamed."""
    body = {"prompt": "The capital of France is", "temperature": 0, "ignore_eos": True}
    expected = httpx.post(f"{server}/v1/completions", json={**body, "max_tokens": COUNT}).json()
    answer = httpx.post(f"{server}/completion", json={**body, "n_predict": COUNT}).json()
    assert answer["content"] == expected["choices"][0]["text"]
    streamed = {**body, "n_predict": COUNT, "stream": True}
    response = httpx.post(f"{server}/completion", json=streamed)
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line]
    assert "".join(event["content"] for event in events) == answer["content"]
    assert events[-1]["tokens_predicted"] == COUNT


def test_the_kit_is_satisfied(wheels: WheelVenv) -> None:
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--ostro-arch", "arcee")
    ran = wheels.run("python", *words, "--pyargs", "ostro.testing")
    assert ran.returncode == 0 and " passed" in ran.stdout, ran.stdout[-3000:] + ran.stderr


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)
def test_their_own_tests_pass(wheels: WheelVenv, project: Path, tmp_path: Path) -> None:
    shutil.copytree(project / "tests", tmp_path / "tests")
    shutil.copy(project / "pyproject.toml", tmp_path)
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", str(tmp_path))
    ran = wheels.run("python", *words)
    assert ran.returncode == 0 and " passed" in ran.stdout, ran.stdout[-3000:] + ran.stderr


def test_a_wheel_of_the_past_is_refused_with_the_reason(wheels: WheelVenv, tmp_path: Path) -> None:
    """Its metadata is read before any of it is imported."""
    [wheel] = wheels.dist.glob("ostro_arch_arcee-*.whl")
    old = tmp_path / "old"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(old)
    [metadata] = old.glob("*.dist-info/METADATA")
    text = metadata.read_text().replace("Name: ostro-arch-arcee", "Name: ostro-arch-old")
    past = "Requires-Dist: ostro<0.2,>=0.1; extra == 'ostro'"
    lines = [past if "ostro<0.3" in line else line for line in text.splitlines()]
    assert past in lines, text
    metadata.write_text("\n".join(lines))
    (old / "ostro_arch_arcee").rename(old / "ostro_arch_old")
    (old / "ostro_arch_old" / "__init__.py").write_text("raise AssertionError('imported')")
    entry = metadata.with_name("entry_points.txt")
    entry.write_text("[ostro]\nold = ostro_arch_old\n")
    ran = wheels.run("ostro", "plugins", PYTHONPATH=str(old))
    ours = ".".join(map(str, API))
    reason = f"it requires the plugin API <0.2,>=0.1, this ostro has {ours}"
    assert ran.returncode == 1 and f"old\tbroken\tostro-arch-old 1.0\t{reason}" in ran.stdout
    assert "arcee\tactive" in ran.stdout, "one bad wheel took another with it"
    checked = wheels.run("ostro", "plugin", "check", str(zipped(old, tmp_path / "old.whl")))
    assert checked.returncode == 1 and reason in checked.stdout


def zipped(folder: Path, target: Path) -> Path:
    with zipfile.ZipFile(target, "w") as archive:
        for file in folder.rglob("*"):
            archive.write(file, file.relative_to(folder).as_posix())
    return target


@pytest.mark.skipif(not KEPT.is_dir(), reason="the first wheels are kept at API 1.0")
def test_wheels_of_every_version_are_used_unmodified(wheels: WheelVenv, tmp_path: Path) -> None:
    kept = sorted(KEPT.glob("*.whl"))
    assert kept, f"{KEPT} holds no wheels"
    for wheel in kept:
        site = tmp_path / wheel.stem
        wheels.pip("install", "-q", "--no-deps", "--no-index", "--target", str(site), str(wheel))
        ran = wheels.run("ostro", "plugins", "--json", PYTHONPATH=str(site))
        name = wheel.name.split("-")[0].replace("_", "-")
        found = [each for each in json.loads(ran.stdout) if each["source"].startswith(name)]
        assert found and all(each["status"] == "active" for each in found), ran.stdout
