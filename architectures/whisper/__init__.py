"""Whisper."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl

TINY = {
    "vocab_size": 160,
    "num_mel_bins": 20,
    "d_model": 64,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "max_source_positions": 50,
    "max_target_positions": 96,
    "pad_token_id": 100,
    "bos_token_id": 100,
    "eos_token_id": 100,
    "decoder_start_token_id": 101,
    "begin_suppress_tokens": [20, 100],
}
WIDE = {
    **TINY,
    "d_model": 256,
    "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512,
}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="whisper",
        api=(0, 2),
        tasks=("transcribe",),
        classes=("WhisperForConditionalGeneration",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names=f"{__name__}.model:names",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:WhisperForConditionalGeneration",
            mutants=f"{__name__}.mutants:mutants",
            examples=f"{__name__}.examples:examples",
        ),
        trunk=True,
    )
