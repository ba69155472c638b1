"""Granite 3 with experts, with and without a shared MLP."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.granite import TINY as GRANITE
from ostro.architectures.granite import WIDE as GRANITE_WIDE

MIXTURE = {"num_local_experts": 6, "num_experts_per_tok": 3, "shared_intermediate_size": 48}
TINY = {**GRANITE, **MIXTURE}
WIDE = {**GRANITE_WIDE, **MIXTURE, "shared_intermediate_size": 256}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="granitemoe",
        api=(0, 2),
        classes=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
        gguf=("granitemoe",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:GraniteMoeSharedForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
