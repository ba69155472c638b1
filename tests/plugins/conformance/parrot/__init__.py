"""An architecture that is not installed, with a reference of its own."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="parrot",
        api=(0, 2),
        config="parrot.model:Config",
        model="parrot.model:Model",
        conformance=Conformance(
            tiny={
                "vocab_size": 128,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 1,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "max_position_embeddings": 256,
            },
            reference="parrot.reference:Plain",
        ),
    )
