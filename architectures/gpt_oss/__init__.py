"""gpt-oss."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

OWN = {
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "sliding_window": 8,
    "swiglu_limit": 1.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "beta_fast": 8.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
    },
}
TINY = {**LLAMA, **OWN, "head_dim": 32}
WIDE = {**LLAMA_WIDE, **OWN}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="gpt_oss",
        api=(0, 2),
        classes=("GptOssForCausalLM",),
        gguf=("gpt-oss",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:GptOssForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )
