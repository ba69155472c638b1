"""Gemma 4's assistants: small models that propose tokens for a model of Gemma 4."""

from collections.abc import Iterable

from ostro import Architecture, hookimpl


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="gemma4_assistant",
        api=(0, 2),
        tasks=(),
        classes=("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"),
        gguf=("gemma4-assistant",),
        config=f"{__name__}.config:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
    )
