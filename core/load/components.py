"""Join the checkpoints of a model with several components, such as an image model's text encoder.

The record names the components, or a container finds them in its folder. The tensors of a component
are named "part.name", its config is nested in the model's under the name of the part, and its
metadata is merged into the model's, whose own values win.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostro.core.load.container import Container
from ostro.core.load.open import gguf_name, open_container
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, TensorInfo, resolve
from ostro.core.settings import Settings

if TYPE_CHECKING:
    import torch


class JoinedContainer:
    """A `Container` of a model and its components."""

    def __init__(self, main: Container, parts: Mapping[str, Container]) -> None:
        self.main, self.parts = main, parts
        self.tensors: dict[str, TensorInfo] = dict(main.tensors)
        self.owners = {name: (main, name) for name in main.tensors}
        self.metadata: dict[str, Any] = {}
        for part, container in parts.items():
            for name, info in container.tensors.items():
                full = f"{part}.{name}"
                self.tensors[full] = replace(info, name=full, file=f"{part}/{info.file}")
                self.owners[full] = container, name
            self.metadata |= container.metadata
        self.metadata |= main.metadata

    @property
    def path(self) -> Path:
        return self.main.path

    def read(self, name: str) -> torch.Tensor:
        """As `Container.read`."""
        container, theirs = self.owners.get(name, (self.main, name))
        return container.read(theirs)

    def config(self) -> dict[str, Any] | None:
        """As `Container.config`, with the configs of the parts."""
        config = self.main.config()
        parts = {part: container.config() or {} for part, container in self.parts.items()}
        return None if config is None else {**config, **parts}

    def close(self) -> None:
        """As `Container.close`."""
        for container in (self.main, *self.parts.values()):
            container.close()


def join(
    container: Container,
    raw: dict[str, Any],
    architecture: Architecture,
    settings: Settings,
    plugins: PluginManager,
) -> tuple[Container, dict[str, Any]]:
    """A model's container and config, joined with those of its components, if it has any.

    Components are located and downloaded like models. Components that a container found are dropped
    if the architecture does not use them. Raises an OstroError if a component is not found.
    """
    if isinstance(container, JoinedContainer) and gguf_name(container) not in architecture.gguf:
        container = container.main
    if architecture.companions is None:
        return container, raw
    # A revision belongs to the model's own repository, not to those of its components.
    unversioned = replace(settings, revision=None)
    parts = {
        part: open_container(plugins.locate(reference, unversioned), plugins)
        for part, reference in resolve(architecture.companions)(container.path).items()
    }
    joined = JoinedContainer(container, parts)
    return joined, joined.config() or raw
