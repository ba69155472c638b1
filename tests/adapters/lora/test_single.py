"""Single-file adapters of diffusers and of kohya's sd-scripts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxTransformer2DModel
from diffusers.loaders.lora_conversion_utils import _convert_kohya_flux_lora_to_diffusers
from torch import Tensor

from ostro import AdapterWeights, LowRank, errors

Read = Callable[[Path], AdapterWeights]
Write = Callable[..., AdapterWeights]

R, D = 3, 16
DIFFUSERS = "pytorch_lora_weights.safetensors"
Q = "transformer.transformer_blocks.0.attn.to_q"
CLIP = "text_encoder.text_model.encoder.layers.0.self_attn.q_proj"
KOHYA = "lora_unet_double_blocks_0_img_attn_proj"

FLUX = {
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 8,
    "num_attention_heads": 2,
    "joint_attention_dim": 12,
    "pooled_projection_dim": 10,
    "in_channels": 4,
    "axes_dims_rope": (2, 2, 4),
    "guidance_embeds": True,
}


def product(made: LowRank) -> Tensor:
    return made.scale * made.b @ made.a


def factors(name: str, a: str = "lora_A", b: str = "lora_B", n: int = D) -> dict[str, Tensor]:
    torch.manual_seed(len(name))
    return {f"{name}.{a}.weight": torch.randn(R, D), f"{name}.{b}.weight": torch.randn(n, R)}


def kohya(name: str, n: int = D, alpha: float | None = None) -> dict[str, Tensor]:
    said = {} if alpha is None else {f"{name}.alpha": torch.tensor(alpha)}
    return factors(name, "lora_down", "lora_up", n) | said


@pytest.fixture
def single(write: Write) -> Write:
    def run(tensors: Mapping[str, Tensor], **metadata: Any) -> AdapterWeights:
        said = {key: json.dumps(value) for key, value in metadata.items()}
        return write(tensors, name=DIFFUSERS, metadata=said)

    return run


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("lora_A", "lora_B"),
        ("lora.down", "lora.up"),
        ("lora_linear_layer.down", "lora_linear_layer.up"),
    ],
)
def test_diffusers_names_are_kept(a: str, b: str, single: Write) -> None:
    tensors = factors(Q, a, b)
    weights = single(tensors | factors(CLIP, a, b)).weights
    assert weights.keys() == {Q, CLIP}
    theirs = tensors[f"{Q}.{b}.weight"] @ tensors[f"{Q}.{a}.weight"]
    torch.testing.assert_close(product(weights[Q]), theirs)


def test_an_alpha_beside_the_factors_scales(single: Write) -> None:
    weights = single(factors(Q) | {f"{Q}.alpha": torch.tensor(6.0)} | factors(CLIP)).weights
    assert (weights[Q].scale, weights[CLIP].scale) == (2.0, 1.0)


def test_a_config_in_the_header_scales_its_part(single: Write) -> None:
    said = {
        "transformer.r": 2,
        "transformer.lora_alpha": 8,
        "transformer.rank_pattern": {"transformer_blocks.0.attn.to_q": R},
        "transformer.alpha_pattern": {"attn.to_q": 12},
    }
    weights = single(factors(Q) | factors(CLIP), lora_adapter_metadata=said).weights
    assert (weights[Q].scale, weights[CLIP].scale) == (4.0, 1.0)


def test_dora_of_diffusers_has_lengths(single: Write) -> None:
    lengths = torch.rand(D)
    made = single(factors(Q) | {f"{Q}.lora_magnitude_vector": lengths}).weights[Q]
    assert made.magnitude is not None and torch.equal(made.magnitude, lengths)


DOUBLE = {
    f"double_blocks_0_{stream}_{part}": n
    for stream in ("img", "txt")
    for part, n in {
        "attn_qkv": 3 * D,
        "attn_proj": D,
        "mlp_0": 4 * D,
        "mlp_2": D,
        "mod_lin": 6 * D,
    }.items()
}
SINGLE = {"linear1": 7 * D, "linear2": D, "modulation_lin": 3 * D}
OURS = DOUBLE | {f"single_blocks_0_{part}": n for part, n in SINGLE.items()}


def of_the_size_of_flux(name: str, n: int) -> dict[str, Tensor]:
    """Tensors with the widths of FLUX.1, which diffusers assumes when it splits linear1."""
    return kohya(f"lora_unet_{name}", n * 3072 // D, alpha=1.5)


def test_kohyas_names_and_parts_are_those_of_diffusers(single: Write) -> None:
    tensors: dict[str, Tensor] = {}
    for name, n in OURS.items():
        tensors |= of_the_size_of_flux(name, n)
    theirs = _convert_kohya_flux_lora_to_diffusers(dict(tensors))
    ours = single(tensors).weights
    assert {name.rpartition(".lora_")[0] for name in theirs} == ours.keys()
    for name, made in ours.items():
        a, b = theirs[f"{name}.lora_A.weight"], theirs[f"{name}.lora_B.weight"]
        torch.testing.assert_close(product(made), b @ a, rtol=1e-4, atol=1e-4)


def test_every_linear_of_flux_can_be_named_by_kohya(single: Write) -> None:
    model = FluxTransformer2DModel(**FLUX)
    linears = {
        f"transformer.{name}": module.out_features
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    alone = {
        "img_in": D,
        "txt_in": D,
        "time_in_in_layer": D,
        "time_in_out_layer": D,
        "guidance_in_in_layer": D,
        "guidance_in_out_layer": D,
        "vector_in_in_layer": D,
        "vector_in_out_layer": D,
        "final_layer_linear": 4,
        "final_layer_adaLN_modulation_1": 2 * D,
    }
    tensors: dict[str, Tensor] = {}
    for name, n in (OURS | alone).items():
        tensors |= kohya(f"lora_unet_{name}", n)
    ours = single(tensors).weights
    assert {name: len(made.b) for name, made in ours.items()} == linears


def test_the_last_norms_halves_change_places(single: Write) -> None:
    name = "lora_unet_final_layer_adaLN_modulation_1"
    tensors = kohya(name, 2 * D)
    made = single(tensors).weights["transformer.norm_out.linear"]
    shift, scale = tensors[f"{name}.lora_up.weight"].chunk(2)
    assert torch.equal(made.b, torch.cat((scale, shift)))


def test_names_with_their_dots_mean_the_same(single: Write) -> None:
    under = single(kohya("lora_unet_double_blocks_0_img_attn_qkv", 3 * D)).weights
    tensors = kohya("lora_unet_double_blocks_0_img_attn_qkv", 3 * D)
    front = "diffusion_model.double_blocks.0.img_attn.qkv"
    dotted = dict(
        zip((f"{front}.lora_A.weight", f"{front}.lora_B.weight"), tensors.values(), strict=True)
    )
    ours = single(dotted).weights
    assert ours.keys() == under.keys()
    assert all(torch.equal(product(made), product(under[name])) for name, made in ours.items())


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("lora_te1_text_model_encoder_layers_0_self_attn_q_proj", CLIP),
        (
            "lora_te1_text_model_encoder_layers_11_mlp_fc1",
            "text_encoder.text_model.encoder.layers.11.mlp.fc1",
        ),
        (
            "lora_te3_encoder_block_0_layer_1_DenseReluDense_wi_0",
            "text_encoder_2.encoder.block.0.layer.1.DenseReluDense.wi_0",
        ),
    ],
)
def test_text_encoders_are_clip_and_t5(theirs: str, ours: str, single: Write) -> None:
    weights = single(kohya(theirs, alpha=1.5)).weights
    assert [*weights] == [ours] and weights[ours].scale == 0.5


def said(**config: Any) -> dict[str, Any]:
    return {f"transformer.{key}": value for key, value in config.items()}


BAD: dict[str, tuple[dict[str, Tensor], Any, str]] = {
    "half": ({f"{Q}.lora_A.weight": torch.ones(R, D)}, None, "lora_A.weight.*no lora_B.weight"),
    "alpha alone": ({f"{Q}.alpha": torch.ones(())}, None, f"{Q}.alpha.*no factors"),
    "alien": (factors(Q) | {"transformer.x.weight": torch.ones(1)}, None, "transformer.x.weight"),
    "part": (factors("prior.x"), None, "prior.x.lora_A.weight"),
    "twice": (factors(Q) | factors(Q, "lora.down", "lora.up"), None, "the same factor"),
    "alphas": (
        factors(Q) | {f"{Q}.alpha": torch.ones(2)}, None, f"{Q}.alpha.*must be one number"
    ),
    "NaN": (factors(Q) | {f"{Q}.alpha": torch.tensor(torch.nan)}, None, f"{Q}.alpha.*NaN"),
    "rank": (factors(Q), said(r=2, lora_alpha=2), f"{Q}: .*rank 2"),
    "config": (factors(Q), said(r=0), "transformer: r must"),
    "beginning": (factors(Q), said(r=R, init_lora_weights="pissa"), "init_lora_weights='pissa'"),
    "both": (factors(Q) | {f"{Q}.alpha": torch.ones(())}, said(r=R), f"{Q}.alpha.*keep one"),
    "no object": (factors(Q), [], "lora_adapter_metadata is not a JSON object"),
    "nothing": ({}, None, "holds no LoRA tensor"),
    "kohya half": ({f"{KOHYA}.lora_up.weight": torch.ones(D, R)}, None, "lora_up.*no lora_down"),
    "kohya alpha": ({f"{KOHYA}.alpha": torch.ones(())}, None, f"{KOHYA}.alpha.*no factors"),
    "loha": (kohya(KOHYA) | {f"{KOHYA}.hada_w1_a": torch.ones(1)}, None, "hada_w1_a.*LoHa"),
    "another model": (
        kohya("lora_unet_down_blocks_0_attentions_0"), None, "down_blocks_0.*no weight of FLUX"
    ),
    "another part": (
        kohya("lora_te1_text_projection"), None, "lora_te1_text_projection.*no weight of FLUX"
    ),
    "rows": (
        kohya("lora_unet_single_blocks_0_linear1", D), None, "linear1: B .*7 blocks of rows"
    ),
    "kohya twice": (
        kohya(KOHYA) | factors("diffusion_model.double_blocks.0.img_attn.proj"), None, "there twice"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_named(case: str, single: Write) -> None:
    tensors, config, message = BAD[case]
    metadata = {} if config is None else {"lora_adapter_metadata": config}
    with pytest.raises(errors.AdapterError, match=message):
        single(tensors, **metadata)
    assert single(factors(Q)).weights


def test_of_several_files_diffusers_own_is_taken_or_none(
    tmp_path: Path, read: Read, write: Write
) -> None:
    for name in ("one", "two"):
        path = tmp_path / f"{name}.safetensors"
        path.touch()
    with pytest.raises(errors.AdapterError, match=r"several weight files.*one.safetensors, two"):
        read(tmp_path)
    assert write(factors(Q), name=DIFFUSERS).weights


def test_pickles_are_refused_by_name(tmp_path: Path, read: Read) -> None:
    (tmp_path / "pytorch_lora_weights.bin").write_bytes(b"\x80")
    with pytest.raises(errors.AdapterError, match=r"pytorch_lora_weights\.bin: is a pickle"):
        read(tmp_path)
