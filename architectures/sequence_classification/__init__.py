"""Decoders with a head of label scores: classifiers, rerankers and reward models."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.gemma import SHAPE as GEMMA
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE
from ostro.architectures.qwen2 import TINY as QWEN2
from ostro.architectures.qwen2 import WIDE as QWEN2_WIDE
from ostro.architectures.qwen3 import TINY as QWEN3
from ostro.architectures.qwen3 import WIDE as QWEN3_WIDE

Shape = Mapping[str, Any]
WINDOW = {"sliding_window": 8}
SHAPES: Mapping[str, tuple[Shape, Shape]] = {
    "Llama": (LLAMA, LLAMA_WIDE),
    "Mistral": ({**LLAMA, **WINDOW}, {**LLAMA_WIDE, **WINDOW}),
    "Qwen2": (QWEN2, QWEN2_WIDE),
    "Qwen3": (QWEN3, QWEN3_WIDE),
    "Gemma": ({**LLAMA, **GEMMA}, {**LLAMA_WIDE, **GEMMA}),
}
"""Tiny and wide configs of the decoders."""

RERANKER_TEMPLATE = """\
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: Given a web search query, retrieve relevant passages that answer the query
<Query>: {{ messages[0].content }}
<Document>: {{ messages[1].content }}<|im_end|>
<|im_start|>assistant
<think>

</think>

{{ "" }}"""
"""The prompt on which Qwen3-Reranker was trained, with its default instruction."""


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    for family, (tiny, wide) in SHAPES.items():
        yield Architecture(
            name=f"{family.lower()}_classifier",
            api=(0, 2),
            tasks=("classify", "rerank"),
            classes=(f"{family}ForSequenceClassification",),
            config=f"{__name__}.model:{family}Config",
            model=f"{__name__}.model:{family}",
            names=f"{__name__}.names:{family.lower()}",
            gguf_config=f"{__name__}.names:gguf_config",
            gguf_metadata=f"{__name__}.names:gguf_metadata",
            conformance=Conformance(
                tiny={**tiny, "num_labels": 3},
                wide={**wide, "num_labels": 8},
                reference=f"transformers:{family}ForSequenceClassification",
                mutants=f"{__name__}.mutants:mutants",
            ),
        )
    yield Architecture(
        name="qwen2_reward",
        api=(0, 2),
        tasks=("classify", "rerank"),
        classes=("Qwen2ForRewardModel",),
        config=f"{__name__}.model:RewardConfig",
        model=f"{__name__}.model:Reward",
        names=f"{__name__}.names:reward",
        conformance=Conformance(
            tiny={**QWEN2, "num_labels": 3},
            wide={**QWEN2_WIDE, "num_labels": 8},
            reference=f"{__name__}.reference:Reward",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )
    yield Architecture(
        name="qwen3_reranker",
        api=(0, 2),
        tasks=("rerank",),
        config=f"{__name__}.model:RerankerConfig",
        model=f"{__name__}.model:Reranker",
        names=f"{__name__}.names:reranker",
        gguf_config="ostro.architectures.llama.names:gguf_config",
        conformance=Conformance(
            tiny={**QWEN3, "label_token_ids": [3, 7]},
            # Two scores that lie apart: the deviation is a fraction of their distance.
            wide={**QWEN3_WIDE, "label_token_ids": [0, 16]},
            reference=f"{__name__}.reference:Reranker",
            mutants=f"{__name__}.mutants:reranker_mutants",
        ),
        labels=("no", "yes"),
        score_template=RERANKER_TEMPLATE,
    )
