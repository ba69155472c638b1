"""ModernBERT, with sentence encoders and rerankers based on it."""

from collections.abc import Iterable
from dataclasses import replace

from ostro import Architecture, Conformance, hookimpl

TINY = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "norm_eps": 1e-5,
    "local_attention": 12,
    "global_attn_every_n_layers": 3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
WIDE = {**TINY, "hidden_size": 256, "intermediate_size": 512}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    encoder = Architecture(
        name="modernbert",
        api=(0, 2),
        tasks=("embed",),
        classes=("ModernBertModel", "ModernBertForMaskedLM"),
        gguf=("modern-bert",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:ModernBertModel",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )
    yield encoder
    yield replace(
        encoder,
        name="modernbert_classifier",
        tasks=("classify", "rerank"),
        classes=("ModernBertForSequenceClassification",),
        gguf=(),
        model=f"{__name__}.model:Classifier",
        names=f"{__name__}.names:classifier_names",
        conformance=replace(
            encoder.conformance,
            tiny={**TINY, "classifier_pooling": "mean"},
            wide={**WIDE, "num_labels": 8},
            reference="transformers:ModernBertForSequenceClassification",
        ),
    )
