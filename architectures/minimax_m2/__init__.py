"""MiniMax-M2, M2.1 and M2.5."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.mixtral import TINY as MIXTRAL
from ostro.architectures.mixtral import WIDE as MIXTRAL_WIDE

MIXTURE = {"num_experts_per_tok": 3}
TINY = {**MIXTRAL, **MIXTURE, "rotary_dim": 8}
WIDE = {**MIXTRAL_WIDE, **MIXTURE, "rotary_dim": 32}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="minimax_m2",
        api=(0, 2),
        classes=("MiniMaxM2ForCausalLM",),
        gguf=("minimax-m2",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:MiniMaxM2ForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )
