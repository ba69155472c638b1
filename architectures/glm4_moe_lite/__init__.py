"""GLM-4.7-Flash."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.deepseek_v2 import TINY as V2
from ostro.architectures.deepseek_v2 import WIDE as V2_WIDE

DROPPED = ("topk_method", "first_k_dense_replace")
LAYERS = {"n_shared_experts": 1, "mlp_layer_types": ["sparse", "dense", "sparse"]}
TINY = {k: v for k, v in V2.items() if k not in DROPPED} | LAYERS
WIDE = {k: v for k, v in V2_WIDE.items() if k not in DROPPED} | LAYERS


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="glm4_moe_lite",
        api=(0, 2),
        classes=("Glm4MoeLiteForCausalLM",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names="ostro.architectures.deepseek_v2.names:names",
        gguf_metadata="ostro.architectures.deepseek_v2.names:gguf_metadata",
        mtp=f"{__name__}.mtp:Head",
        mtp_names=f"{__name__}.mtp:head_names",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Glm4MoeLiteForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )
