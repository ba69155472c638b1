"""Checkpoints of decoders without a head, as transformers' AutoModel saves them.

Most embedding models are such checkpoints. Their class is MistralModel in place of
MistralForCausalLM, or the names of their tensors lack the prefix "model.", or both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostro.core.records import Architecture, resolve
from ostro.core.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

    from ostro.core.config import ModelConfig
    from ostro.core.load.container import Container
    from ostro.core.load.names import Names
    from ostro.core.nn import Model

BARE, FULL = re.compile("(Text)?Model$"), "ForCausalLM"
"""Ends of the class names of a decoder without and with its head."""

LAYERS = "layers"
"""The first component of the names of a decoder's layers that lack a prefix."""


def full_classes(classes: Sequence[str], raw: Mapping[str, Any]) -> list[str]:
    """The classes with a head of the decoders that a config names; none for models of parts."""
    if "text_config" in raw:
        return []
    return [BARE.sub(FULL, name) for name in classes if BARE.search(name)]


def is_bare(container: Container) -> bool:
    """Whether the names of a decoder's layers lack the prefix of the model with a head."""
    return any(name.partition(".")[0] == LAYERS for name in container.tensors)


def is_headless(record: Architecture, container: Container, raw: Mapping[str, Any]) -> bool:
    """Whether a decoder's checkpoint has no head; `record` is that of the model with one."""
    if not {"text", "embed"} <= {*record.tasks}:
        return False
    named = any(name.startswith("lm_head.") for name in container.tensors)
    classes = full_classes(raw.get("architectures") or [], raw)
    return not named and (is_bare(container) or bool({*classes} & {*record.classes}))


def without_text(
    record: Architecture, container: Container, raw: Mapping[str, Any], settings: Settings
) -> Architecture:
    """The record, with embeddings as its only task if the checkpoint has no head and needs one."""
    if not is_headless(record, container, raw):
        return record
    config = resolve(record.config).from_hf(raw, allow=tuple(settings.allow_config))
    return record if config.tie_word_embeddings else replace(record, tasks=("embed",))


def bare_class(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the class of a decoder without a head, for folders written from it."""
    classes = [re.sub(f"{FULL}$", "Model", name) for name in raw.get("architectures") or []]
    return {**raw, "architectures": classes}


def build(config: ModelConfig, model_class: Any) -> Model:
    """A decoder whose head is the table of its embedding; without text among its tasks, no request
    uses the head.
    """
    from ostro.core.load.heads import tied_heads

    model: Model = model_class(replace(config, tie_word_embeddings=True))  # type: ignore[call-arg]
    for head in tied_heads(model).values():
        head.bias, head.biased = None, frozenset()
    return model


class PrefixedContainer:
    """A `Container` whose names lack the prefix of the model with a head, with that prefix."""

    def __init__(self, bare: Container, prefix: str) -> None:
        self.bare, self.prefix = bare, f"{prefix}."
        self.metadata = bare.metadata
        self.tensors = {
            name: replace(info, name=name)
            for name, info in ((self.prefix + old, info) for old, info in bare.tensors.items())
        }

    @property
    def path(self) -> Path:
        return self.bare.path

    def read(self, name: str) -> Tensor:
        """As `Container.read`."""
        return self.bare.read(name.removeprefix(self.prefix))

    def config(self) -> dict[str, Any] | None:
        """As `Container.config`."""
        return self.bare.config()

    def close(self) -> None:
        """As `Container.close`."""
        self.bare.close()


def add_prefix(model: Model, container: Container, names: Names) -> tuple[Container, Names]:
    """A bare checkpoint with the names of the model with a head, and the names of its adapters."""
    from ostro.core.load.names import Pair
    from ostro.core.nn import Head

    (prefix,) = (name for name, part in model.named_children() if not isinstance(part, Head))
    parts = model.get_submodule(prefix).named_children()
    hub = [replace(pair, theirs=pair.theirs.removeprefix(f"{prefix}.")) for pair in names.hub]
    added = [*hub, *(Pair(name, f"{prefix}.{name}") for name, _ in parts)]
    return PrefixedContainer(container, prefix), replace(names, tree=[*names.tree, *added])
