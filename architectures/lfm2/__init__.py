"""LFM2, dense."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

LFM2 = {
    "num_hidden_layers": 3,
    "layer_types": ["conv", "full_attention", "conv"],
    "block_multiple_of": 16,
    "block_ffn_dim_multiplier": 1.2,
    "conv_bias": True,
}
TINY = {key: value for key, value in LLAMA.items() if key != "head_dim"} | LFM2
WIDE = {k: v for k, v in LLAMA_WIDE.items() if k != "head_dim"} | LFM2 | {"block_multiple_of": 256}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="lfm2",
        api=(0, 2),
        classes=("Lfm2ForCausalLM",),
        gguf=("lfm2",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Lfm2ForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
