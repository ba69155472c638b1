"""EmbeddingGemma."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.gemma3 import TINY as GEMMA
from ostro.architectures.gemma3 import WIDE as GEMMA_WIDE

BIDIRECTIONAL = {"use_bidirectional_attention": True, "sliding_window": 14}
TINY = {**GEMMA, **BIDIRECTIONAL}
WIDE = {**GEMMA_WIDE, **BIDIRECTIONAL}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="embeddinggemma",
        api=(0, 2),
        tasks=("embed",),
        classes=("Gemma3TextModel",),
        gguf=("gemma-embedding",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Gemma3TextModel",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )
