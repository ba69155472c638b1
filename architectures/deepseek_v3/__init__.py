"""DeepSeek-V3, V3.1 and R1."""

from collections.abc import Iterable
from dataclasses import replace

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.deepseek_v2 import TINY as V2
from ostro.architectures.deepseek_v2 import WIDE as V2_WIDE

DROPPED = ("topk_method",)
TINY = {k: v for k, v in V2.items() if k not in DROPPED} | {"n_shared_experts": 1}
WIDE = {k: v for k, v in V2_WIDE.items() if k not in DROPPED} | {"n_shared_experts": 1}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    hub = Architecture(
        name="deepseek_v3",
        api=(0, 2),
        classes=("DeepseekV3ForCausalLM",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names="ostro.architectures.deepseek_v2.names:names",
        gguf_metadata="ostro.architectures.deepseek_v2.names:gguf_metadata",
        mtp=f"{__name__}.mtp:Head",
        mtp_names=f"{__name__}.mtp:head_names",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:DeepseekV3ForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )
    yield hub
    yield replace(
        hub,
        name="deepseek2",
        classes=(),
        gguf=("deepseek2",),
        config=f"{__name__}.deepseek2:Config",
        model=f"{__name__}.deepseek2:Model",
        gguf_config="ostro.architectures.deepseek_v2.names:gguf_config",
        mtp=f"{__name__}.mtp:GgufHead",
    )
