"""What a server serves: one model, under a name, through an engine that may not be ready yet."""

from __future__ import annotations

import time

from ostro.core.engine.client import AsyncEngine
from ostro.core.errors import NotFound, Overloaded
from ostro.core.text import TextPipeline

DEFAULT = "default"
"""The name by which the model always goes."""


class Service:
    """The state of a server. `text` appears when the engine is ready."""

    def __init__(self, engine: AsyncEngine, name: str) -> None:
        self.engine, self.name = engine, name
        self.text: TextPipeline | None = None
        self.started = int(time.time())

    @property
    def ready(self) -> bool:
        """Whether a request would be answered now."""
        return self.engine.ready and self.text is not None

    def check_name(self, name: str | None) -> None:
        """Raise NotFound unless the model goes by that name."""
        if name is not None and name not in (DEFAULT, self.name):
            raise NotFound(
                f"there is no model {name!r:.100}; {self.name!r} and {DEFAULT!r} are served",
                param="model",
            )

    def admit(self, name: str | None) -> TextPipeline:
        """The pipeline that answers for a model.

        Raises NotFound for an unknown name, Overloaded when no request can be taken now, and
        EngineDied when none ever can.
        """
        self.check_name(name)
        self.engine.admit()
        if self.text is None:
            raise Overloaded("the model is still loading; see /ready")
        return self.text
