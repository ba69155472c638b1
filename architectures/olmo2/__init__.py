"""OLMo 2 and 3."""

from collections.abc import Iterable
from dataclasses import replace

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

SHAPE = ("head_dim",)
TOKENS = {"pad_token_id": 0, "eos_token_id": 2}
TINY = {k: v for k, v in {**LLAMA, **TOKENS}.items() if k not in SHAPE}
LARGE = {**LLAMA_WIDE, **TOKENS, "rms_norm_eps": 1e-3}  # norms of small outputs amplify rounding
WIDE = {k: v for k, v in LARGE.items() if k not in SHAPE}
LAYERS = {
    "sliding_window": 8,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "attention_factor": 1.2,
        },
    },
}
TYPES = {"layer_types": ["sliding_attention", "full_attention"]}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    olmo2 = Architecture(
        name="olmo2",
        api=(0, 2),
        classes=("Olmo2ForCausalLM",),
        gguf=("olmo2",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Olmo2ForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
    yield olmo2
    yield replace(
        olmo2,
        name="olmo3",
        classes=("Olmo3ForCausalLM",),
        gguf=(),
        config=f"{__name__}.model:Olmo3Config",
        conformance=Conformance(
            tiny={**TINY, **LAYERS, "num_hidden_layers": 4},
            wide={**WIDE, **LAYERS, **TYPES},
            reference="transformers:Olmo3ForCausalLM",
            mutants=f"{__name__}.mutants:olmo3_mutants",
        ),
        trunk=False,
    )
