"""Llama, and architectures that equal Llama."""

from collections.abc import Iterable
from dataclasses import replace

from ostro import Architecture, Conformance, hookimpl

TINY = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
WIDE = {
    **TINY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    llama = Architecture(
        name="llama",
        api=(0, 2),
        classes=("LlamaForCausalLM", "LLaMAForCausalLM", "AquilaForCausalLM"),
        gguf=("llama",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        conformance=Conformance(tiny=TINY, wide=WIDE, reference="transformers:LlamaForCausalLM"),
        trunk=True,
    )
    yield llama
    yield replace(
        llama,
        name="llama_variants",
        classes=(
            "IQuestCoderForCausalLM",
            "NanbeigeForCausalLM",
            "XverseForCausalLM",
            "YiForCausalLM",
        ),
        gguf=("nanbeige", "xverse"),
        config=f"{__name__}.variants:Config",
        names=f"{__name__}.variants:names",
        gguf_config=f"{__name__}.variants:gguf_config",
        gguf_metadata=f"{__name__}.variants:gguf_metadata",
        conformance=replace(llama.conformance, reference=f"{__name__}.reference:YiForCausalLM"),
        trunk=False,
    )
