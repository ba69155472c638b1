"""Read LoRA files of kohya's sd-scripts for FLUX.1, and convert their names to diffusers'.

`lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight` is A [r, k], `.lora_up.weight` B [n, r];
the scale is `.alpha` / r, or 1 without `.alpha`. Names are Black Forest Labs' with underscores for
dots. Their fused linears are split by rows of B, each part with the full A; the two halves of the
last norm are swapped. `lora_te1_` is CLIP, `lora_te3_` is T5. ComfyUI's names, the same with dots
and the prefix `diffusion_model.`, are converted the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from ostro import AdapterWeights, Container, LowRank, errors
from ostro.adapters.lora.tensors import by_module, finite, low_rank, number

KOHYA, COMFY = "lora_", "diffusion_model."
FACTOR = re.compile(r"(?P<module>.+?)\.(?P<end>lora_(?:down|up|A|B)\.weight|alpha)")
ENDS = {
    "lora_down.weight": "a",
    "lora_A.weight": "a",
    "lora_up.weight": "b",
    "lora_B.weight": "b",
    "alpha": "alpha",
}

STREAMS = {
    "img": ("", ("to_q", "to_k", "to_v"), "to_out.0"),
    "txt": ("_context", ("add_q_proj", "add_k_proj", "add_v_proj"), "to_add_out"),
}
ALONE = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    "time_in_in_layer": "time_text_embed.timestep_embedder.linear_1",
    "time_in_out_layer": "time_text_embed.timestep_embedder.linear_2",
    "guidance_in_in_layer": "time_text_embed.guidance_embedder.linear_1",
    "guidance_in_out_layer": "time_text_embed.guidance_embedder.linear_2",
    "vector_in_in_layer": "time_text_embed.text_embedder.linear_1",
    "vector_in_out_layer": "time_text_embed.text_embedder.linear_2",
    "final_layer_linear": "proj_out",
}
LAST_NORM = "final_layer_adaLN_modulation_1"

DOUBLE = re.compile(r"double_blocks_(?P<i>\d+)_(?P<stream>img|txt)_(?P<part>.+)")
SINGLE = re.compile(r"single_blocks_(?P<i>\d+)_(?P<part>.+)")
CLIP = re.compile(r"text_model_encoder_layers_(?P<i>\d+)_(?P<block>self_attn|mlp)_(?P<part>.+)")
T5 = re.compile(
    r"encoder_block_(?P<i>\d+)_layer_(?P<j>\d)_(?P<block>SelfAttention|DenseReluDense)_(?P<part>.+)"
)

Shares = list[tuple[str, int]]
"""Names of a weight's consecutive row ranges, with their relative numbers of rows."""


def claims(container: Container) -> bool:
    """Whether a file has tensor names of kohya or ComfyUI."""
    return any(name.startswith((KOHYA, COMFY)) for name in container.tensors)


def read(file: str, container: Container) -> AdapterWeights:
    """Read a kohya file. Raises AdapterError with the tensor."""
    weights: dict[str, LowRank] = {}
    modules = by_module(
        file,
        container.tensors,
        FACTOR,
        ENDS,
        "no lora_down, lora_up or alpha: LoHa, LoKr and kohya's DoRA are not read; merge it, or "
        "convert it to LoRA",
    )
    for module, parts in modules.items():
        for name, factors in _module(file, container, module, parts):
            if name in weights:
                raise errors.AdapterError(f"{file}: module {module!r} is there twice, as {name}")
            weights[name] = factors
    return AdapterWeights(kind="lora", weights=weights, config={"format": "kohya"})


def _module(
    file: str, container: Container, module: str, parts: dict[str, str]
) -> Iterator[tuple[str, LowRank]]:
    shares = _renamed(module)
    if shares is None:
        raise errors.AdapterError(
            f"{file}: tensor {parts['a']!r} is of no weight of FLUX.1 that is known; of single "
            "files, those for FLUX.1 alone are read"
        )
    a, b = finite(file, container, parts["a"]), finite(file, container, parts["b"])
    scale = alpha(file, container, parts["alpha"]) / a.shape[0] if "alpha" in parts else 1.0
    whole = low_rank(file, module, a, b, scale)
    if module.replace(".", "_").endswith(LAST_NORM):
        # kohya stores shift before scale, diffusers scale before shift
        whole = low_rank(file, module, whole.a, _swapped(whole.b), scale)
    for name, rows in _split(file, module, whole.b, shares):
        yield name, LowRank(a=whole.a, b=rows, scale=scale)


def alpha(file: str, container: Container, name: str) -> float:
    """The value of a tensor of one element. Raises AdapterError for other sizes."""
    tensor = finite(file, container, name)
    if tensor.numel() != 1:
        raise errors.AdapterError(f"{file}: tensor {name!r} must be one number")
    return number(file, name, tensor.item())


def _swapped(b: Tensor) -> Tensor:
    return torch.cat(b.chunk(2)[::-1])


def _split(file: str, module: str, b: Tensor, shares: Shares) -> Iterator[tuple[str, Tensor]]:
    total = sum(share for _, share in shares)
    if len(b) % total:
        raise errors.AdapterError(
            f"{file}: {module}: B {[*b.shape]} does not come apart into {total} blocks of rows"
        )
    start = 0
    for name, share in shares:
        rows = share * len(b) // total
        yield name, b[start : start + rows]
        start += rows


def _renamed(module: str) -> Shares | None:
    """The diffusers names of a weight's row ranges, or None if the weight is unknown."""
    if module.startswith(COMFY):
        return _transformer(module.removeprefix(COMFY).replace(".", "_"))
    front, _, name = module.removeprefix(KOHYA).partition("_")
    known = {"unet": _transformer, "te1": _clip, "te3": _t5}.get(front)
    return known(name) if known else None


def _transformer(name: str) -> Shares | None:
    if match := DOUBLE.fullmatch(name):
        block = f"transformer.transformer_blocks.{match['i']}"
        return _double(block, match["stream"], match["part"])
    if match := SINGLE.fullmatch(name):
        return _single(f"transformer.single_transformer_blocks.{match['i']}", match["part"])
    found = "norm_out.linear" if name == LAST_NORM else ALONE.get(name)
    return [(f"transformer.{found}", 1)] if found else None


def _double(block: str, stream: str, part: str) -> Shares | None:
    end, qkv, out = STREAMS[stream]
    if part == "attn_qkv":
        return [(f"{block}.attn.{name}", 1) for name in qkv]
    found = {
        "attn_proj": f"attn.{out}",
        "mlp_0": f"ff{end}.net.0.proj",
        "mlp_2": f"ff{end}.net.2",
        "mod_lin": f"norm1{end}.linear",
    }.get(part)
    return [(f"{block}.{found}", 1)] if found else None


def _single(block: str, part: str) -> Shares | None:
    if part == "linear1":
        # the feed-forward is four times as wide as q, k and v
        qkv = [(f"{block}.attn.{name}", 1) for name in STREAMS["img"][1]]
        return [*qkv, (f"{block}.proj_mlp", 4)]
    found = {"linear2": "proj_out", "modulation_lin": "norm.linear"}.get(part)
    return [(f"{block}.{found}", 1)] if found else None


def _clip(name: str) -> Shares | None:
    if match := CLIP.fullmatch(name):
        layer = f"text_encoder.text_model.encoder.layers.{match['i']}"
        return [(f"{layer}.{match['block']}.{match['part']}", 1)]
    return None


def _t5(name: str) -> Shares | None:
    if match := T5.fullmatch(name):
        layer = f"text_encoder_2.encoder.block.{match['i']}.layer.{match['j']}"
        return [(f"{layer}.{match['block']}.{match['part']}", 1)]
    return None
