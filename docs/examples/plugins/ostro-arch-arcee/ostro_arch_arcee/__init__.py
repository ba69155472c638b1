"""Arcee."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl

TINY = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
}
WIDE = {**TINY, "hidden_size": 256, "intermediate_size": 512}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="arcee",
        api=(0, 2),
        classes=("ArceeForCausalLM",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:ArceeForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )
