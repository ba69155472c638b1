"""RoBERTa, XLM-RoBERTa and CamemBERT, with sentence encoders and rerankers based on them."""

from collections.abc import Iterable
from dataclasses import replace

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.bert import TINY as BERT
from ostro.architectures.bert import WIDE as BERT_WIDE

PADDING = {"pad_token_id": 7}
TINY = {**BERT, **PADDING}
WIDE = {**BERT_WIDE, **PADDING}
FAMILIES = ("XLMRoberta", "Roberta", "Camembert")


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    """GGUF files of these families are those of BERT: their positions start at 0."""
    encoder = Architecture(
        name="xlm_roberta",
        api=(0, 2),
        tasks=("embed",),
        classes=tuple(f"{name}{kind}" for name in FAMILIES for kind in ("Model", "ForMaskedLM")),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:XLMRobertaModel",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )
    yield encoder
    yield replace(
        encoder,
        name="xlm_roberta_classifier",
        tasks=("classify", "rerank"),
        classes=tuple(f"{name}ForSequenceClassification" for name in FAMILIES),
        model=f"{__name__}.model:Classifier",
        names=f"{__name__}.names:classifier_names",
        conformance=replace(
            encoder.conformance,
            wide={**WIDE, "num_labels": 8},
            reference="transformers:XLMRobertaForSequenceClassification",
        ),
    )
