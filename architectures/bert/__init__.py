"""BERT, with sentence encoders, rerankers and classifiers based on it."""

from collections.abc import Iterable
from dataclasses import replace

from ostro import Architecture, Conformance, hookimpl

TINY = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "layer_norm_eps": 1e-5,
}
WIDE = {**TINY, "hidden_size": 256, "intermediate_size": 512}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    encoder = Architecture(
        name="bert",
        api=(0, 2),
        tasks=("embed",),
        classes=("BertModel", "BertForMaskedLM"),
        gguf=("bert",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:BertModel",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
    yield encoder
    yield replace(
        encoder,
        name="bert_classifier",
        trunk=False,
        tasks=("classify", "rerank"),
        classes=("BertForSequenceClassification",),
        gguf=(),
        model=f"{__name__}.model:Classifier",
        names=f"{__name__}.names:classifier_names",
        conformance=replace(
            encoder.conformance,
            wide={**WIDE, "num_labels": 8},
            reference="transformers:BertForSequenceClassification",
        ),
    )
