"""The commands of ostro itself. A plugin cannot have a command with one of these names."""

from __future__ import annotations

COMMANDS = {
    "run": "chat with a model in the terminal",
    "serve": "serve models over HTTP with an OpenAI-compatible API",
    "from-config": "serve the models of a config file",
    "launch": "start a coding agent or a chat page on a model of a server",
    "keys": "create API keys for a server, or check a keys file",
    "embed": "compute embeddings of texts",
    "rerank": "rank documents by relevance to a query",
    "transcribe": "transcribe or translate audio files",
    "draw": "generate images from a prompt",
    "speak": "synthesize speech from a text",
    "bench": "measure throughput and latency of a model or a server",
    "quality": "measure the quality loss of quantization",
    "quantize": "write a quantized model",
    "merge": "write a model with adapters merged into its weights",
    "adapters": "check adapters and their effect on a model",
    "fit": "list which formats and context lengths fit in memory",
    "tune": "measure which options make a model fast on this machine",
    "pull": "download models into the Hugging Face cache",
    "list": "list the models in the cache, or the aliases",
    "show": "show what a model is, from its headers",
    "rm": "delete models from the cache",
    "inspect": "show a checkpoint's config and tensors without loading weights",
    "store": "list and delete what servers have stored",
    "models": "list the supported architectures and formats",
    "plugins": "list the plugins, their records and their errors",
    "doctor": "check devices, kernels and libraries of this machine",
    "completion": "print a completion script for bash, zsh or fish",
}
"""Their help texts, by name; `ostro.entrypoints.cli` has their modules."""
