"""Whole drawings against diffusers' pipelines: the same seed, the same image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.architectures.flux.config import Config
from ostro.architectures.flux.model import Model, pack, unpack
from ostro.architectures.flux.mutants import mutants
from ostro.architectures.flux.request import Drawing
from ostro.core.errors import RequestError
from ostro.core.nn import Embedding, Linear
from ostro.core.records import Mutant
from ostro.core.step import ROWS, Step
from ostro.plugins.conformance.architecture import NonzeroDelta
from ostro.plugins.conformance.parity import BAR, RED, deviation

diffusers = pytest.importorskip("diffusers")

TEXT = Drawing(
    clip_tokens=[[1, 9, 5, 2, 0, 0], [1, 30, 2, 0, 0, 0]],
    t5_tokens=[[17, 4, 90, 55, 1, 0, 0], [88, 3, 1, 0, 0, 0, 0]],
    seeds=[11, 12],
    width=48,
    height=32,
    steps=3,
    guidance=2.5,
)
PIXELS = torch.randint(0, 256, (2, 32, 48, 3), generator=torch.Generator().manual_seed(3))
IMAGE = replace(TEXT, image=PIXELS.to(torch.uint8), steps=5, strength=0.7)


def draw(model: Model, request: Drawing) -> tuple[Tensor, Tensor, Tensor]:
    """Images as floats [n, H, W, 3] within 0..1 and as bytes, and the latents they come from."""
    caught: list[Any] = []
    decode = model.vae.decode_tiled

    def catch(latents: Tensor, step: Any) -> Any:
        for images in decode(latents, step):
            caught.extend([latents, images])
            yield images

    model.vae.decode_tiled = catch  # type: ignore[method-assign]
    try:
        with torch.inference_mode():
            *_, final = model.draw(request, ROWS)
    finally:
        model.vae.decode_tiled = decode  # type: ignore[method-assign]
    latents, images = caught[-2:]
    assert isinstance(final, Tensor) and final.dtype == torch.uint8
    return (images / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1), final, latents


@torch.inference_mode()
def truth(flux: Any, request: Drawing) -> tuple[Tensor, Tensor]:
    """diffusers' images [n, H, W, 3] and latents [n, c, h, w]."""
    pipe = flux.pipeline
    asked: dict[str, Any] = {
        "prompt_embeds": pipe.text_encoder_2(torch.tensor(request.t5_tokens))[0],
        "pooled_prompt_embeds": pipe.text_encoder(torch.tensor(request.clip_tokens)).pooler_output,
        "width": request.width,
        "height": request.height,
        "num_inference_steps": request.steps,
        "guidance_scale": request.guidance,
    }
    if request.image is not None:
        pipe = diffusers.FluxImg2ImgPipeline(**pipe.components)
        asked |= {"image": request.image.permute(0, 3, 1, 2) / 255, "strength": request.strength}
    pipe.set_progress_bar_config(disable=True)
    found = []
    for kind in ("np", "latent"):
        generator = [torch.Generator().manual_seed(seed) for seed in request.seeds]
        found.append(pipe(**asked, generator=generator, output_type=kind).images)
    cell = 2 * flux.pipeline.vae_scale_factor
    rows, size = found[1].flatten(0, 1), (request.height // cell, request.width // cell)
    return torch.from_numpy(found[0]), unpack(rows, len(found[1]), *size)


REQUESTS: Mapping[str, Drawing] = {"text": TEXT, "image": IMAGE}


@pytest.mark.sample(1)
@pytest.mark.parametrize("asked", list(REQUESTS.values()), ids=list(REQUESTS))
@pytest.mark.parametrize("kind", ["dev", "schnell"])
def test_the_same_seed_draws_the_same_image(
    kind: str, asked: Drawing, request: pytest.FixtureRequest
) -> None:
    flux = request.getfixturevalue(kind)
    images, final, latents = draw(flux.load(), asked)
    theirs, noise = truth(flux, asked)
    assert deviation(latents, noise) <= BAR
    assert float((images - theirs).abs().max()) <= 1e-3
    assert int((final.int() - (theirs * 255).round().int()).abs().max()) <= 1
    assert float(theirs.std()) > 0.1, "an empty image proves nothing"


@pytest.fixture(scope="module")
def truths(dev: Any) -> dict[str, tuple[Tensor, Tensor]]:
    return {kind: truth(dev, asked) for kind, asked in REQUESTS.items()}


@pytest.mark.sample(2)
@pytest.mark.parametrize("mutant", list(mutants()), ids=lambda mutant: mutant.name)
def test_every_mutant_fails_parity(
    mutant: Mutant, dev: Any, truths: dict[str, tuple[Tensor, Tensor]]
) -> None:
    model, deviations = dev.load(), []
    mutant.apply(model)
    for kind, (theirs, noise) in truths.items():
        images, _, latents = draw(model, REQUESTS[kind])
        deviations += [deviation(images, theirs), deviation(latents, noise)]
    assert max(deviations) >= RED


def test_progress_is_reported_per_slice(dev: Any) -> None:
    model = dev.load()
    wide = replace(TEXT, width=160, height=96, preview=2, steps=4)
    with torch.inference_mode():
        *slices, final = model.draw(wide, ROWS)
    assert final.shape == (2, 96, 160, 3)
    dones, totals, previews = zip(*slices, strict=True)
    tiles = model.vae.tiles(torch.empty(1, 4, 24, 40))
    assert tiles == 8 and set(totals) == {1 + 4 + tiles}
    assert list(dones) == list(range(1, 1 + 4 + tiles + 1))
    shown = [i for i, preview in enumerate(previews) if preview is not None]
    assert shown == [2, 4]
    assert all(previews[i].shape == (2, 76, 128, 3) for i in shown)
    assert previews[2].dtype == torch.uint8


def test_the_last_preview_is_the_image_made_small(dev: Any) -> None:
    """At the end nothing is left to guess; an image of this size is not even shrunk."""
    model = dev.load()
    with torch.inference_mode():
        *slices, final = model.draw(replace(TEXT, preview=3), ROWS)
    assert [s[0] for s in slices if s[2] is not None] == [4]
    assert int((slices[3][2].int() - final.int()).abs().max()) <= 1


def test_equal_texts_are_encoded_once(dev: Any) -> None:
    model = dev.load()
    same = replace(
        TEXT,
        clip_tokens=[TEXT.clip_tokens[1]] * 3,
        t5_tokens=[TEXT.t5_tokens[1]] * 3,
        seeds=[12, 12, 5],
    )
    seen: list[int] = []
    hidden = model.text_encoder_2.hidden

    def watch(step: Step) -> Any:
        seen.append(len(step.tokens))
        return hidden(step)

    model.text_encoder_2.hidden = watch
    images, _, _ = draw(model, same)
    assert seen == [7]
    assert deviation(images[:2], draw(model, TEXT)[0][1:].expand(2, -1, -1, -1)) <= BAR
    assert deviation(images[2], images[0]) > RED


def test_adapter_deltas_reach_every_linear(dev: Any) -> None:
    model, small = dev.load(), replace(IMAGE, width=16, height=16, image=IMAGE.image[:, :16, :16])
    asked = replace(small, steps=2, strength=0.5)
    before, silent = draw(model, asked)[0], []
    for path, module in model.named_modules():
        if isinstance(module, Linear | Embedding):
            module.deltas.append(NonzeroDelta())
            if torch.equal(draw(model, asked)[0], before):
                silent.append(path)
            module.deltas.clear()
    assert not silent, f"a delta is not deviations on: {', '.join(silent)}"


class Owner:
    """A delta that records the rows it is applied to."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[int]]] = []

    def watch(self, path: str, module: Any) -> None:
        owner = self

        class Watch(NonzeroDelta):
            def matmul(self, x: Tensor, y: Tensor, step: Step) -> Tensor:
                assert step.mixture is not None and len(step.mixture) == len(x), path
                owner.seen.append((path, step.mixture.tolist()))
                return y

            def rows(self, ids: Tensor, y: Tensor, step: Step) -> Tensor:
                return self.matmul(ids, y, step)

        module.deltas.append(Watch())


def test_every_linear_gets_the_image_of_each_row(dev: Any) -> None:
    """A mixture of adapters per image reaches every linear, row by row."""
    model, owner = dev.load(), Owner()
    for path, module in model.named_modules():
        if isinstance(module, Linear | Embedding):
            owner.watch(path, module)
    none = torch.zeros(2, dtype=torch.int64)
    step = Step(tokens=none, positions=none[None], mixture=torch.tensor([3, 8]))
    with torch.inference_mode():
        list(model.draw(IMAGE, step))
    assert {path.split(".")[0] for path, _ in owner.seen} == {
        "transformer",
        "vae",
        "text_encoder",
        "text_encoder_2",
    }
    for path, mixture in owner.seen:
        half = len(mixture) // 2
        assert mixture == [3] * half + [8] * half, path


def test_half_precision_draws_nearly_the_same(dev: Any) -> None:
    """In bfloat16 the seed's noise itself is rounded: near, not equal."""
    images, _, _ = draw(dev.load(dtype=torch.bfloat16), replace(TEXT, steps=1))
    whole, _, _ = draw(dev.load(), replace(TEXT, steps=1))
    assert images.dtype == torch.bfloat16
    assert float((images.float() - whole).abs().mean()) <= 0.05


def test_packing_is_undone() -> None:
    latents = torch.randn(2, 4, 6, 10)
    rows = pack(latents)
    assert rows.shape == (2 * 15, 16)
    assert torch.equal(rows[1, :4], latents[0, 0, :2, 2:4].flatten())
    assert torch.equal(unpack(rows, 2, 3, 5), latents)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"width": 50}, "width"),
        ({"height": 0}, "height"),
        ({"width": 9000}, "width"),
        ({"width": 4096, "height": 2048}, "width"),
        ({"steps": 0}, "steps"),
        ({"guidance": float("nan")}, "guidance"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [1]}, "clip_tokens"),
        ({"clip_tokens": [[1, 2], [1]]}, "clip_tokens"),
        ({"clip_tokens": [[1] * 78] * 2}, "the length of clip_tokens"),
        ({"t5_tokens": [[1] * 513] * 2}, "the length of t5_tokens"),
        ({"t5_tokens": [[128], [1]]}, "t5_tokens"),
        ({"image": torch.zeros(1, 32, 48, 3)}, "image"),
        ({"image": PIXELS, "strength": 0.1}, "strength"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_drawn_is_refused(dev: Any, change: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as raised:
        replace(TEXT, **change).check(Config.from_hf(dev.raw))
    assert raised.value.param == field
