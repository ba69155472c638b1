"""Bamba."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

STATES = {
    "num_hidden_layers": 3,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "mamba_chunk_size": 32,
    "time_step_limit": [0.4, 1.2],
}
LARGE = {"mamba_d_head": 64, "mamba_d_state": 128}
SHAPE = ("head_dim",)
OWN = {"attn_layer_indices": [1], "mamba_proj_bias": True}
TINY = {k: v for k, v in {**LLAMA, **STATES, **OWN}.items() if k not in SHAPE}
WIDE = {k: v for k, v in {**LLAMA_WIDE, **STATES, **LARGE, **OWN}.items() if k not in SHAPE}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="bamba",
        api=(0, 2),
        classes=("BambaForCausalLM",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:BambaForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
