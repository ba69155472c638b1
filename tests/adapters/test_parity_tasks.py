"""Adapters on encoders, classifiers, image and speech models match PEFT and diffusers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from tiny.dia import make_dia
from tiny.flux import make_flux
from tiny.trained import BAR, FELT, LoadedAdapters, Names, Served, distance, draw, train, wrapped
from torch import Tensor

from ostro.architectures.flux.model import unpack
from ostro.core.adapters.registry import Registry
from ostro.core.device import free_bytes
from ostro.core.engine.jobs import JobEngine
from ostro.core.engine.startup.start import build_entries, build_pooling_engine
from ostro.core.load.model import load_model
from ostro.core.messages.commands import ModelSpec
from ostro.core.messages.requests import JobRequest, PoolingRequest
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.core.step import ROWS, Step
from ostro.plugins.conformance.parity import subject

pytestmark = pytest.mark.slow

diffusers = pytest.importorskip("diffusers")

Config = Mapping[str, Any]

BASE: Config = {"r": 4, "lora_alpha": 8}
ALL: Config = {**BASE, "target_modules": "all-linear"}
SETTINGS = Settings(dtype="float32")


# Encoders

ROBERT = ["query", "value", "dense"]
READING: Mapping[str, tuple[str, Config]] = {
    "bert": ("bert", ALL),
    "bert: dora": ("bert", {**ALL, "use_dora": True}),
    "bert: biases": ("bert", {**BASE, "target_modules": ROBERT, "bias": "lora_only"}),
    "bert: tables": (
        "bert",
        {**BASE, "target_modules": ["word_embeddings", "position_embeddings", "query"]},
    ),
    "classifier": ("bert_classifier", {**ALL, "lora_alpha": 4, "use_rslora": True}),
    "classifier: saved": (
        "bert_classifier",
        {**BASE, "target_modules": ["query"], "modules_to_save": ["classifier", "pooler"]},
    ),
    "classifier: biases": (
        "bert_classifier",
        {**BASE, "target_modules": ROBERT, "bias": "lora_only"},
    ),
    "t5": ("t5", ALL),
    "t5: its table": ("t5", {**BASE, "target_modules": ["embed_tokens", "q"]}),
    "embeddinggemma": ("embeddinggemma", {**ALL, "use_dora": True}),
    "clip": ("clip", ALL),
}


@pytest.fixture(scope="module")
def encoders(plugins: PluginManager) -> Iterator[dict[str, Served]]:
    with ExitStack() as stack:
        names = dict.fromkeys(name for name, _ in READING.values())
        yield {name: Served(stack.enter_context(subject(plugins, name))) for name in names}


@pytest.mark.parametrize("case", READING)
def test_an_encoder_says_what_peft_says(
    case: str, encoders: dict[str, Served], tmp_path: Path
) -> None:
    name, config = READING[case]
    served = encoders[name]
    truth = wrapped(served.subject, train(served.subject.reference, tmp_path, **config)).expected
    served.load("it", tmp_path)
    assert distance(served.subject.expected, truth) > FELT
    assert distance(served.states(["it"]), truth) <= BAR


def test_vectors_of_one_step_are_each_adapter_s(
    encoders: dict[str, Served], tmp_path: Path
) -> None:
    served = encoders["bert"]
    made, models = served.subject, dict[str, Any]({"": served.subject.reference})
    for seed, adapter in enumerate(("one", "two")):
        models[adapter] = train(made.reference, tmp_path / adapter, seed=seed, **ALL)
        served.load(adapter, tmp_path / adapter)
    reader = build_pooling_engine(made.load(), served.engine)
    for adapter in models:
        reader.submit(
            PoolingRequest(id=adapter, inputs=[made.prompt], kinds={0: made.kinds}),
            served.mixture([adapter] if adapter else []),
        )
    answers = {output.id: output.arrays["rows"].numpy()[0] for output in reader.step()}
    assert not reader.busy, "they are read in one step"
    for adapter, model in models.items():
        states = wrapped(made, model).expected
        vector = reader.pool(states, [0, len(states)])[0]
        assert distance(torch.from_numpy(answers[adapter].copy()), vector) <= BAR
    assert distance(*(torch.from_numpy(answers[a].copy()) for a in ("one", "two"))) > FELT


# Jobs


class Working(LoadedAdapters):
    """A model with a job engine, and its loaded adapters."""

    def __init__(self, folder: Path, plugins: PluginManager) -> None:
        loaded = load_model(folder, SETTINGS, plugins)
        [entry] = build_entries([loaded], [ModelSpec(SETTINGS)], plugins, free_bytes)
        assert entry.jobs is not None
        self.model: Any = loaded.model
        self.jobs: JobEngine = entry.jobs
        registry: Registry | None = entry.registry
        super().__init__(registry)

    def work(self, values: Mapping[str, Any], asked: Sequence[Names]) -> list[dict[str, Any]]:
        """The results of a job for each of several adapters; the jobs run interleaved."""
        for i, names in enumerate(asked):
            self.jobs.submit(JobRequest(id=str(i), values=dict(values)), self.mixture(names))
        found: dict[str, dict[str, Any]] = {}
        while self.jobs.busy:
            for output in self.jobs.step():
                assert output.finish in (None, "stop"), output.error
                found[output.id] = dict(output.arrays)
        return [found[str(i)] for i in range(len(asked))]


# FLUX

SIDE = {"width": 48, "height": 32}
DRAWING: Mapping[str, Any] = {
    "clip_tokens": [[1, 9, 5, 301, 0, 0]],
    "t5_tokens": [[17, 4, 90, 55, 1, 0, 0]],
    "seeds": [11],
    "steps": 3,
    "guidance": 2.5,
    **SIDE,
}
WIDELY = (
    "to_q add_k_proj to_add_out proj_out proj_mlp ff.net.0.proj ff.net.2 ff_context.net.2 "
    "norm.linear norm1.linear norm_out.linear x_embedder context_embedder linear_1 linear_2"
).split()
ATTENTION = ["to_q", "to_k", "to_v", "to_out.0"]
DRAWN: Mapping[str, Mapping[str, Config]] = {
    "attention": {"transformer": {**BASE, "target_modules": ATTENTION}},
    "everything": {
        "transformer": {"r": 6, "lora_alpha": 8, "use_rslora": True, "target_modules": WIDELY}
    },
    "dora": {"transformer": {**BASE, "target_modules": ATTENTION, "use_dora": True}},
    "text": {"text_encoder": {**BASE, "target_modules": ["q_proj", "v_proj", "fc1"]}},
    "both": {
        "text_encoder": {**BASE, "target_modules": ["q_proj", "fc1"]},
        "transformer": {"r": 6, "lora_alpha": 3, "target_modules": ["to_q"]},
    },
}


@dataclass
class Flux:
    """diffusers' pipeline, ostro's model of the same folder, and the latents without adapters."""

    pipeline: Any
    ours: Working
    base: Tensor


@torch.inference_mode()
def drawn(pipeline: Any) -> Tensor:
    """diffusers' latents [1, c, h, w] for `DRAWING`."""
    tokens = [torch.tensor(DRAWING[f"{name}_tokens"]) for name in ("clip", "t5")]
    pipeline.set_progress_bar_config(disable=True)
    made = pipeline(
        pooled_prompt_embeds=pipeline.text_encoder(tokens[0]).pooler_output,
        prompt_embeds=pipeline.text_encoder_2(tokens[1])[0],
        num_inference_steps=DRAWING["steps"],
        guidance_scale=DRAWING["guidance"],
        generator=[torch.Generator().manual_seed(DRAWING["seeds"][0])],
        output_type="latent",
        **SIDE,
    )
    cell = 2 * pipeline.vae_scale_factor
    return unpack(made.images.flatten(0, 1), 1, SIDE["height"] // cell, SIDE["width"] // cell)


def latents(working: Working, asked: Sequence[Names], patch: pytest.MonkeyPatch) -> list[Tensor]:
    """ostro's latents for `DRAWING` with each of several adapters."""
    found: list[Tensor] = []
    decode = working.model.vae.decode_tiled

    def catch(latents: Tensor, step: Step) -> Any:
        found.append(latents.clone())
        return decode(latents, step)

    with patch.context() as patched:
        patched.setattr(working.model.vae, "decode_tiled", catch)
        working.work(DRAWING, asked)
    return found


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory, plugins: PluginManager) -> Flux:
    folder = make_flux(tmp_path_factory.mktemp("models") / "flux")
    parts = {
        "transformer": diffusers.FluxTransformer2DModel,
        "vae": diffusers.AutoencoderKL,
        "text_encoder": transformers.CLIPTextModel,
        "text_encoder_2": transformers.T5EncoderModel,
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler,
    }
    held = {name: cls.from_pretrained(folder / name) for name, cls in parts.items()}
    pipeline = diffusers.FluxPipeline(tokenizer=None, tokenizer_2=None, **held)
    return Flux(pipeline, Working(folder, plugins), drawn(pipeline))


def train_parts(pipeline: Any, folder: Path, configs: Mapping[str, Config]) -> Any:
    """A pipeline with adapters on some components, which diffusers saves in `folder`."""
    parts, saved = dict(pipeline.components), dict[str, Any]()
    for seed, (part, config) in enumerate(configs.items()):
        settings: Any = peft.LoraConfig(**config)
        parts[part] = deepcopy(parts[part])
        parts[part].add_adapter(settings)
        draw(parts[part].eval(), seed=seed)
        saved[f"{part}_lora_layers"] = peft.get_peft_model_state_dict(parts[part])
        saved[f"{part}_lora_adapter_metadata"] = settings.to_dict()
    made = diffusers.FluxPipeline(**parts)
    made.save_lora_weights(folder, **saved)
    return made


@pytest.mark.parametrize("case", DRAWN)
def test_flux_draws_what_diffusers_draws(
    case: str, flux: Flux, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    truth = drawn(train_parts(flux.pipeline, tmp_path, DRAWN[case]))
    flux.ours.load("it", tmp_path)
    assert distance(flux.base, truth) > FELT
    ours, base = latents(flux.ours, [["it"], []], monkeypatch)
    assert distance(ours, truth) <= BAR
    assert distance(base, flux.base) <= BAR


# Dia

SPOKEN = list(b"\x01 hello, \x02 said the other")
TEXTS = torch.tensor([SPOKEN, [0] * len(SPOKEN)])
CODES = torch.randint(0, 32, (12, 4), generator=torch.Generator().manual_seed(2))
SPEAKING: Mapping[str, Config] = {
    "every linear": ALL,
    "dora": {**ALL, "use_dora": True},
    "crossing": {**BASE, "target_modules": r".*cross_attention\.[kv]_proj"},
}


@pytest.mark.parametrize("case", SPEAKING)
def test_dia_says_what_peft_says(
    case: str,
    plugins: PluginManager,
    tmp_path: Path,
) -> None:
    dia = make_dia(tmp_path / "base", std=0.1)
    working = Working(dia.folder, plugins)
    base = dia.logits(TEXTS, CODES)
    theirs = replace(dia, model=train(dia.model, tmp_path / "it", **SPEAKING[case]))
    truth = theirs.logits(TEXTS, CODES)
    assert distance(base, truth) > FELT
    working.load("it", tmp_path / "it")
    with working.held(["it"]) as held, torch.inference_mode():
        step = replace(ROWS, mixture=torch.tensor([held.row_index(0)], dtype=torch.int32))
        memory = working.model.cache_states(TEXTS, len(CODES), step)
        every = [working.model.logits(frame, memory, i, step) for i, frame in enumerate(CODES)]
    assert distance(torch.stack(every, 1), truth) <= BAR
