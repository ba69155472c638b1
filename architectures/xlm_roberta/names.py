"""XLM-RoBERTa's names on the hub: BERT's, with another prefix in checkpoints with a head."""

from __future__ import annotations

from ostro import Names, Pair
from ostro.architectures.bert import names as bert
from ostro.architectures.xlm_roberta.model import Config

PREFIXED = bert.prefixed("roberta")
UNUSED = ("embeddings.position_ids", "pooler.{any}", "lm_head.{any}")


def names(config: Config) -> Names:
    ignore = UNUSED + tuple(f"roberta.{name}" for name in UNUSED)
    return Names(hub=bert.HUB + PREFIXED, ignore=ignore)


def classifier_names(config: Config) -> Names:
    head = (Pair("classifier.dense", "pooler"), Pair("classifier.out_proj", "classifier"))
    return Names(hub=PREFIXED + head, ignore=names(config).ignore)
