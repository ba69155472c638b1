"""FLUX's parts one by one against diffusers: transformer, autoencoder, schedule, configs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ostro import nn
from ostro.architectures.flux import TINY, claims
from ostro.architectures.flux.batch import Batch
from ostro.architectures.flux.config import Config, SchedulerConfig
from ostro.architectures.flux.scheduler import shift_of, sigmas
from ostro.architectures.flux.transformer import SingleBlock
from ostro.core.errors import ConfigError
from ostro.core.records import Files
from ostro.core.step import ROWS
from ostro.plugins.conformance.mutants import each
from ostro.plugins.conformance.parity import BAR, deviation

diffusers = pytest.importorskip("diffusers")

N, TEXT, SIZE = 2, 7, (4, 6)


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@torch.inference_mode()
def velocity(model: Any) -> Tensor:
    rows = SIZE[0] * SIZE[1]
    inputs = noise(N * rows, 16), noise(N * TEXT, 64), noise(N, 64)
    found: Tensor = model.transformer(
        *inputs, 0.3, 3.5, Batch.of(ROWS, N, TEXT, SIZE, torch.device("cpu"))
    )
    return found.view(N, rows, -1)


@torch.inference_mode()
def velocity_of_diffusers(flux: Any) -> Tensor:
    rows = SIZE[0] * SIZE[1]
    ids = torch.zeros(*SIZE, 3)
    ids[..., 1], ids[..., 2] = torch.arange(SIZE[0])[:, None], torch.arange(SIZE[1])
    guided = flux.raw["transformer"]["guidance_embeds"]
    found: Tensor = flux.pipeline.transformer(
        hidden_states=noise(N * rows, 16).view(N, rows, -1),
        encoder_hidden_states=noise(N * TEXT, 64).view(N, TEXT, -1),
        pooled_projections=noise(N, 64),
        timestep=torch.full((N,), 0.3),
        guidance=torch.full((N,), 3.5) if guided else None,
        img_ids=ids.view(rows, 3),
        txt_ids=torch.zeros(TEXT, 3),
    ).sample
    return found


@pytest.mark.parametrize("kind", ["dev", "schnell"])
def test_the_transformer(kind: str, request: pytest.FixtureRequest) -> None:
    flux = request.getfixturevalue(kind)
    assert deviation(velocity(flux.load()), velocity_of_diffusers(flux)) <= BAR / 10


def test_gelu_is_the_one_with_tanh(faint: Any) -> None:
    """The exact one differs so little that it takes smaller weights, and a lower bar, to show."""
    model, truth = faint.load(), velocity_of_diffusers(faint)
    assert deviation(velocity(model), truth) <= BAR / 10
    each(model, SingleBlock, lambda block: setattr(block, "act", torch.nn.functional.gelu))
    assert deviation(velocity(model), truth) >= BAR
    model = faint.load()
    each(model, nn.MLP, lambda mlp: setattr(mlp, "act", "gelu"))
    assert deviation(velocity(model), truth) >= BAR


@torch.inference_mode()
def test_the_autoencoder(dev: Any) -> None:
    vae, theirs = dev.load().vae, dev.pipeline.vae
    latents, images = noise(2, 4, 6, 10), noise(2, 3, 24, 40).tanh()
    ours = vae.decode(latents, ROWS)
    assert deviation(ours, theirs.decode(latents / 0.36 + 0.12).sample) <= BAR
    found = theirs.encode(images).latent_dist
    draw = noise(2, 4, 6, 10)
    truth = (found.mean + found.std * draw - 0.12) * 0.36
    assert deviation(vae.encode(images, draw, ROWS), truth) <= BAR


@pytest.mark.parametrize("size", [(16, 16), (20, 16), (29, 40), (17, 50)], ids=str)
@torch.inference_mode()
def test_tiles_are_those_of_diffusers(dev: Any, size: tuple[int, int]) -> None:
    vae, theirs = dev.load().vae, dev.pipeline.vae
    latents = noise(1, 4, *size)
    *tiles, ours = vae.decode_tiled(latents, ROWS)
    assert len(tiles) == (vae.tiles(latents) if max(size) > 16 else 0)
    theirs.enable_tiling()
    truth = theirs.decode(latents / 0.36 + 0.12).sample
    theirs.disable_tiling()
    assert deviation(ours, truth) <= BAR
    if max(size) > 16:
        assert deviation(vae.decode(latents, ROWS), truth) > BAR, "tiling changes nothing"


SCHEDULES = {
    "schnell": {"shift": 1.0},
    "shifted": {"shift": 3.0},
    "dev": {"shift": 3.0, "use_dynamic_shifting": True},
    "linear": {"use_dynamic_shifting": True, "time_shift_type": "linear"},
    "other": {"use_dynamic_shifting": True, "base_shift": 0.2, "max_image_seq_len": 1000},
}


@pytest.mark.parametrize("raw", list(SCHEDULES.values()), ids=list(SCHEDULES))
@pytest.mark.parametrize(("steps", "rows"), [(1, 256), (4, 4096), (28, 900), (50, 16384)])
def test_the_schedule(raw: dict[str, Any], steps: int, rows: int) -> None:
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift

    config = SchedulerConfig.from_hf(raw)
    span = config.base_image_seq_len, config.max_image_seq_len
    mu = calculate_shift(rows, *span, config.base_shift, config.max_shift)
    assert shift_of(config, rows) == pytest.approx(mu)
    theirs = diffusers.FlowMatchEulerDiscreteScheduler(**raw)
    even = torch.linspace(1.0, 1 / steps, steps).tolist()
    theirs.set_timesteps(sigmas=even, mu=mu)
    assert sigmas(config, steps, rows) == pytest.approx(theirs.sigmas.tolist(), abs=1e-6)


def test_a_folder_is_known_by_the_class_of_its_pipeline(tmp_path: Any) -> None:
    files = Files(root=tmp_path, names=("model_index.json",))
    assert claims(files, TINY) and not claims(files, {"_class_name": "SanaPipeline"})


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("transformer", {"axes_dims_rope": [8, 8]}, "three even numbers"),
        ("transformer", {"axes_dims_rope": [8, 12, 10]}, "sum to attention_head_dim=32"),
        ("transformer", {"patch_size": 2}, "patch_size=2"),
        ("transformer", {"num_layers": 0}, "num_layers=0"),
        ("transformer", {"in_channels": 64}, "has 64 input channels, packed latents"),
        ("transformer", {"joint_attention_dim": 48}, "has 48 input channels, text_encoder_2"),
        ("vae", {"use_quant_conv": True}, "use_quant_conv=True"),
        ("vae", {"norm_num_groups": 3}, "multiples of norm_num_groups=3"),
        ("vae", {"scaling_factor": 0.0}, "scaling_factor=0.0"),
        ("scheduler", {"use_karras_sigmas": True}, "sets use_karras_sigmas"),
        ("scheduler", {"time_shift_type": "cubic"}, "time_shift_type='cubic'"),
        ("scheduler", {"max_image_seq_len": 256}, "not above base_image_seq_len"),
        ("text_encoder", {"hidden_act": "relu"}, "hidden_act='relu'"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_what_is_not_implemented_is_refused(part: str, change: dict[str, Any], said: str) -> None:
    raw: Any = {**TINY, part: {**TINY[part], **change}}  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=said):
        Config.from_hf(raw)
