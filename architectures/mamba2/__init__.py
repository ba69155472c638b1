"""Mamba 2."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl

TINY = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_heads": 8,
    "head_dim": 16,
    "n_groups": 2,
    "state_size": 24,
    "chunk_size": 32,
    "use_bias": True,
    "time_step_limit": [0.4, 1.2],
}
WIDE = {**TINY, "hidden_size": 256, "head_dim": 64, "state_size": 128}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="mamba2",
        api=(0, 2),
        classes=("Mamba2ForCausalLM",),
        gguf=("mamba2",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Mamba2ForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
