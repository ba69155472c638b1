"""What the HTTP process needs of a model: where it is, its tokenizer, its template, its name."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostro.core.chat import ChatTemplate, load_template
from ostro.core.errors import TemplateError
from ostro.core.load.open import generation_defaults, open_container
from ostro.core.plugins import PluginManager
from ostro.core.records import STARTER, Settings
from ostro.core.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, kw_only=True)
class Found:
    """A model on this machine. `sampling` is what its own generation config suggests."""

    path: Path
    tokenizer: Tokenizer
    template: ChatTemplate | None
    sampling: dict[str, float]


def find(settings: Settings, plugins: PluginManager) -> Found:
    """Find the model, downloading it if need be, and read what is not its weights.

    Raises an OstroError that says what is missing or malformed.
    """
    path = plugins.locate(settings.reference or STARTER, settings)
    words = Path(settings.tokenizer) if settings.tokenizer else path
    with closing(open_container(path, plugins)) as container:
        sampling = suggested(generation_defaults(container))
        metadata = container.metadata if words.suffix == ".gguf" else None
        tokenizer = load_tokenizer(words, metadata=metadata)
    template = template_of(settings, tokenizer)
    return Found(path=path, tokenizer=tokenizer, template=template, sampling=sampling)


def template_of(settings: Settings, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The chat template of the settings or of the model, if there is one."""
    file = Path(settings.chat_template) if settings.chat_template else None
    if file is None and not tokenizer.chat_template:
        return None
    template = load_template(tokenizer, file=file)
    # The process that renders is started now, not by the first request.
    with suppress(TemplateError):
        template.render([{"role": "user", "content": "hello"}])
    return template


def name_of(settings: Settings) -> str:
    """The name a model is served under: never a path, which would tell about this machine."""
    reference = settings.reference or STARTER
    if settings.name:
        return settings.name
    path = Path(reference)
    return (
        (path.stem if path.suffix == ".gguf" else path.resolve().name)
        if path.exists()
        else reference
    )


def suggested(found: dict[str, Any]) -> dict[str, float]:
    """The sampling that a model's generation config asks for where a request does not."""
    if found.get("do_sample") is False:
        return {"temperature": 0.0}
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    return {name: found[name] for name in names if isinstance(found.get(name), int | float)}
