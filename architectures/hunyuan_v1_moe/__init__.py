"""Hunyuan with experts: Hunyuan-A13B."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.hunyuan_v1_dense import ROPE
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

MIXTURE = {**ROPE, "num_experts": 6, "moe_topk": [3, 2]}
TINY = {**LLAMA, **MIXTURE}
WIDE = {**LLAMA_WIDE, **MIXTURE}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="hunyuan_v1_moe",
        api=(0, 2),
        classes=("HunYuanMoEV1ForCausalLM",),
        gguf=("hunyuan-moe",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:HunYuanMoEV1ForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )
