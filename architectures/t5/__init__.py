"""T5's encoder, in the versions 1.0 (relu) and 1.1 (gated gelu)."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl

TINY = {
    "vocab_size": 128,
    "d_model": 64,
    "d_kv": 12,
    "d_ff": 96,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 24,
    "feed_forward_proj": "gated-gelu",
}
WIDE = {**TINY, "d_model": 256, "d_kv": 64, "d_ff": 512}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="t5",
        api=(0, 2),
        tasks=("embed",),
        classes=("T5EncoderModel",),
        gguf=("t5encoder",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:T5EncoderModel",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
