"""Dia against transformers: states, logits, codes, and the sound at the end."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

from tiny.dia import CODEC, DELAYS, MARKS, SHAPE, Dia, make_dia
from transformers import DiaTokenizer
from transformers.generation.logits_process import (
    DiaClassifierFreeGuidanceLogitsProcessor,
    DiaEOSChannelFilterLogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from ostro.architectures.dia.choice import Choice, Rules, guided
from ostro.architectures.dia.codec import PIECE, reach
from ostro.architectures.dia.config import Config
from ostro.architectures.dia.delay import Delayed
from ostro.architectures.dia.inputs import Inputs
from ostro.architectures.dia.model import STRIDE, Model
from ostro.architectures.dia.mutants import mutants
from ostro.architectures.dia.request import Speech
from ostro.core.errors import CheckpointError, ConfigError, ModelNotFound, RequestError
from ostro.core.load.model import load_model
from ostro.core.messages.requests import JobRequest
from ostro.core.nn import Embedding, Linear
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Mutant
from ostro.core.settings import Settings
from ostro.core.step import ROWS, Step
from ostro.plugins.conformance.architecture import NonzeroDelta
from ostro.plugins.conformance.parity import BAR, RED, SMALL, deviation
from ostro.plugins.conformance.second_device import second_device

CPU = torch.device("cpu")
STEPS = 40
FRAMES = STEPS - max(DELAYS) - 1
"""transformers counts places, of which marks and delays take some."""
SECONDS = FRAMES * 8 / CODEC["sampling_rate"]
TEXT = list(b"\x01 hello, \x02 said the other")
GREEDY: dict[str, Any] = {"temperature": 0.0, "top_k": 12, "guidance": 3.0, "max_seconds": SECONDS}


def text(seed: int) -> list[int]:
    """Of these some are said to the end and some end by themselves."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(32, 127, (12,), generator=random).tolist()


def load(folder: Path, plugins: PluginManager, **settings: Any) -> Any:
    return load_model(folder, Settings(**{"dtype": "float32", **settings}), plugins).model


@pytest.fixture(scope="module")
def dia(tmp_path_factory: pytest.TempPathFactory) -> Dia:
    return make_dia(tmp_path_factory.mktemp("models") / "dia")


@pytest.fixture(scope="module")
def faint(tmp_path_factory: pytest.TempPathFactory) -> Dia:
    """Of smaller weights, for what differs only where activations are small."""
    return make_dia(tmp_path_factory.mktemp("models") / "faint", std=SMALL)


@pytest.fixture(scope="module")
def model(dia: Dia, plugins: PluginManager) -> Model:
    made: Model = load(dia.folder, plugins)
    return made


def written(model: Model, tokens: list[int], **how: Any) -> Tensor:
    """The codes that a model writes, to the end: [places, channels]."""
    asked = Speech(tokens=tokens, **{**GREEDY, **how})
    track = Delayed(model.config, asked.frames(model.config, model.context), CPU)
    with torch.inference_mode():
        for _ in model.write(asked, track, ROWS):
            pass
    return track.codes[: int(track.end) + track.longest + 1]


def spoken(model: Model, tokens: list[int], **how: Any) -> Tensor:
    """The samples of a whole job."""
    values = {**GREEDY, "tokens": tokens, **how}
    with torch.inference_mode():
        *_, last = model.work(JobRequest(id="a", values=values), ROWS)
    assert last.arrays["rate"].tolist() == [CODEC["sampling_rate"]]
    return last.arrays["samples"]


@torch.inference_mode()
def predicted(model: Model, texts: Tensor, codes: Tensor) -> Tensor:
    """Logits [n, places, channels, V] for given codes [places, channels], place by place."""
    memory = model.cache_states(texts, len(codes), ROWS)
    every = [model.logits(frame, memory, i, ROWS) for i, frame in enumerate(codes)]
    return torch.stack(every, 1)


@dataclass
class Truth:
    """What transformers makes of a text and of codes."""

    dia: Dia

    texts = torch.tensor([TEXT, [0] * len(TEXT)])
    codes = torch.randint(0, 32, (30, 4), generator=torch.Generator().manual_seed(2))

    @cached_property
    def states(self) -> Tensor:
        return self.dia.states(self.texts)

    @cached_property
    def logits(self) -> Tensor:
        return self.dia.logits(self.texts, self.codes)

    @cached_property
    def written(self) -> list[Tensor]:
        how = {"do_sample": False, "guidance_scale": 3.0, "top_k": 12}
        return [self.dia.codes(text(seed), STEPS, **how) for seed in range(4)]

    @cached_property
    def samples(self) -> Tensor:
        return self.dia.sound(self.written[2])

    def deviations(self, model: Model) -> dict[str, float]:
        """How far ours is from it, stage by stage."""
        with torch.inference_mode():
            states = model.model.encoder(self.texts, ROWS).view_as(self.states)
        ours = [written(model, text(seed)) for seed in range(4)]
        codes = max(map(unlike, ours, self.written))
        # Other codes may be none that the codec has.
        sound = 1.0 if codes else deviation(spoken(model, text(2)), self.samples)
        return {
            "states": deviation(states, self.states),
            "logits": deviation(predicted(model, self.texts, self.codes), self.logits),
            "codes": codes,
            "sound": sound,
        }


def unlike(ours: Tensor, theirs: Tensor) -> float:
    """The share of codes that differ; all of them where there are more or fewer."""
    return 1.0 if ours.shape != theirs.shape else float((ours != theirs).float().mean())


@pytest.fixture(scope="module")
def truth(dia: Dia) -> Truth:
    return Truth(dia)


@pytest.fixture(scope="module")
def faint_truth(faint: Dia) -> Truth:
    return Truth(faint)


def test_every_stage_is_as_in_transformers(model: Model, truth: Truth) -> None:
    found = truth.deviations(model)
    assert found.pop("codes") == 0
    assert max(found.values()) <= BAR, found
    assert truth.logits.shape == (2, 30, 4, 36)
    lengths = [len(codes) for codes in truth.written]
    assert STEPS + 1 in lengths and min(lengths) < STEPS, "both ends are tried"
    assert 0.1 < float(truth.samples.std()) < 0.9, "silence and noise at the limit prove nothing"


def test_the_sound_is_that_of_the_processor(model: Model, dia: Dia, truth: Truth) -> None:
    for seed, codes in enumerate(truth.written):
        sound = spoken(model, text(seed))
        if codes[1, 0] == MARKS["eos_token_id"]:
            # Nothing is said, which transformers does not decode.
            assert sound.shape == (0,)
            continue
        theirs = dia.sound(codes)
        assert sound.shape == theirs.shape
        assert float((sound - theirs).abs().max()) <= 1e-4


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"top_k": 0}, {"guidance_scale": 3.0, "top_k": None}),
        ({"guidance": 1.5, "top_k": 3}, {"guidance_scale": 1.5, "top_k": 3}),
        ({"guidance": 1.0}, {"guidance_scale": 1.0}),
    ],
    ids=["no top-k", "weak guidance", "no guidance"],
)
@pytest.mark.parametrize("seed", [3, 7, 8])
def test_other_guidance(
    model: Model, dia: Dia, seed: int, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    expected = dia.codes(text(seed), STEPS, do_sample=False, **theirs)
    assert unlike(written(model, text(seed), **ours), expected) == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("mutant", list(mutants()), ids=lambda mutant: mutant.name)
def test_every_mutant_fails_parity(
    mutant: Mutant, plugins: PluginManager, truth: Truth, faint_truth: Truth
) -> None:
    against = truth if mutant.std is None else faint_truth
    spoiled = load(against.dia.folder, plugins)
    mutant.apply(spoiled)
    assert max(against.deviations(spoiled).values()) >= RED


@pytest.mark.slow
def test_faint_weights_are_as_in_transformers(plugins: PluginManager, faint_truth: Truth) -> None:
    found = faint_truth.deviations(load(faint_truth.dia.folder, plugins))
    assert max(found.values()) <= BAR, found


def test_adapter_deltas_reach_every_linear(dia: Dia, plugins: PluginManager, truth: Truth) -> None:
    model, silent = load(dia.folder, plugins), []
    before = predicted(model, truth.texts, truth.codes[:4])
    for path, module in model.named_modules():
        if isinstance(module, Linear | Embedding):
            module.deltas.append(NonzeroDelta())
            if torch.equal(predicted(model, truth.texts, truth.codes[:4]), before):
                silent.append(path)
            module.deltas.clear()
    assert not silent, f"a delta does not reach: {', '.join(silent)}"


def test_every_linear_gets_the_sequence_of_each_row(dia: Dia, plugins: PluginManager) -> None:
    """One speech's mixture of adapters reaches every linear, row by row."""
    model, seen = load(dia.folder, plugins), set[str]()

    class Watch(NonzeroDelta):
        def __init__(self, path: str) -> None:
            self.path = path

        def matmul(self, x: Tensor, y: Tensor, step: Step) -> Tensor:
            assert step.mixture is not None, self.path
            assert step.mixture.tolist() in ([3], [3] * len(x)), self.path
            seen.add(self.path)
            return y

        def rows(self, ids: Tensor, y: Tensor, step: Step) -> Tensor:
            return self.matmul(ids, y, step)

    linears = {p: m for p, m in model.named_modules() if isinstance(m, Linear | Embedding)}
    for path, module in linears.items():
        module.deltas.append(Watch(path))
    none = torch.zeros(1, dtype=torch.int64)
    step = Step(tokens=none, positions=none[None], mixture=torch.tensor([3]))
    with torch.inference_mode():
        list(model.work(JobRequest(id="a", values={**GREEDY, "tokens": text(2)}), step))
    assert seen == linears.keys()


@pytest.mark.slow
@pytest.mark.parametrize("rules", ["model.decoder.layers.1 = cpu:1", "layers = cpu:1"])
def test_a_model_on_two_devices_says_the_same(
    dia: Dia, model: Model, plugins: PluginManager, rules: str
) -> None:
    expected = written(model, text(2))
    with second_device() as device:
        parted = load(dia.folder, plugins, placement=rules)
        assert torch.equal(written(parted, text(2)), expected)
        assert device.moves


@torch.inference_mode()
def test_pieces_are_the_whole(model: Model, dia: Dia) -> None:
    codes = torch.randint(0, 32, (1, 4, 2 * PIECE + 7), generator=torch.Generator().manual_seed(3))
    whole, pieces = model.codec.decode(codes), list(model.codec.decode_pieces(codes))
    assert len(pieces) == model.codec.pieces(codes.shape[2]) == 3
    assert float((torch.cat(pieces, 1) - whole).abs().max()) <= 1e-5
    assert deviation(whole[0], dia.samples(codes[0])) <= BAR
    far = codes.clone()
    far[..., 100] = (far[..., 100] + 1) % 32
    changed = ((model.codec.decode(far) - whole).abs()[0].view(-1, 8) > 0).any(1).nonzero()
    first, last = int(changed.min()), int(changed.max())
    around = reach(model.codec.config)
    assert 100 - around <= first < last <= 100 + around and last - first > around


def rows(logits: Tensor) -> Tensor:
    """[n, channels, V] as transformers has it."""
    return logits.flatten(0, 1)


def test_what_may_be_drawn_is_as_in_transformers() -> None:
    """Guidance, its top-k, and the filter of marks, on logits of which some want to end."""
    random, endings = torch.Generator().manual_seed(0), 0
    for guidance, top_k in ((3.0, 12), (1.5, 2), (4.0, None)):
        theirs = DiaClassifierFreeGuidanceLogitsProcessor(guidance, top_k)
        filtered = DiaEOSChannelFilterLogitsProcessor(4, MARKS["eos_token_id"])
        asked = Speech(tokens=[1], guidance=guidance, top_k=top_k or 0)
        choice, rules = Choice(MARKS["eos_token_id"]), Rules.of(asked, 4, CPU)
        for _ in range(20):
            logits = torch.randn(2, 4, 36, generator=random)
            logits[:, 0, MARKS["eos_token_id"]] += 2
            expected = filtered(None, theirs(torch.zeros(4, 1), rows(logits)))
            found = choice.ends(guided(logits, rules))
            endings += bool(found[0].isfinite().sum() == 1)
            assert torch.equal(found.isfinite(), expected.isfinite())
            kept = found.isfinite()
            assert deviation(found[kept], expected[kept]) <= BAR
    assert 10 < endings < 50


def test_draws_have_the_probabilities_of_transformers() -> None:
    logits = torch.randn(1, 4, 36, generator=torch.Generator().manual_seed(5))
    asked = Speech(tokens=[1], guidance=1.0, temperature=1.5, top_p=0.8, top_k=0, seed=3)
    choice, rules = Choice(MARKS["eos_token_id"]), Rules.of(asked, 4, CPU)
    scores = DiaEOSChannelFilterLogitsProcessor(4, MARKS["eos_token_id"])(None, rows(logits))
    scores = TopPLogitsWarper(0.8)(None, TemperatureLogitsWarper(1.5)(None, scores))
    counts, n = torch.zeros(4, 36), 1500
    for _ in range(n):
        counts[torch.arange(4), choice(logits, rules)] += 1
    expected = scores.softmax(-1)
    assert not counts[expected == 0].any()
    spread = (expected * (1 - expected) / n).sqrt()
    assert bool(((counts / n - expected).abs() <= 5 * spread + 1e-9).all())


def test_a_seed_says_it_the_same_way_again(model: Model) -> None:
    how = {"temperature": 1.3, "top_p": 0.95}
    first, again, other = (written(model, text(2), seed=seed, **how) for seed in (4, 4, 5))
    assert torch.equal(first, again)
    assert unlike(first, other) > 0.1


def test_work_is_done_in_slices(model: Model) -> None:
    with torch.inference_mode():
        slices = list(model.work(JobRequest(id="a", values={**GREEDY, "tokens": text(2)}), ROWS))
    assert [s.done for s in slices] == list(range(1, len(slices) + 1))
    assert all(s.done < s.total and not s.arrays for s in slices[:-1])
    assert slices[-1].done == slices[-1].total
    assert len(slices) == 1 + -(-STEPS // STRIDE) + 1


def test_a_text_that_ends_at_once_is_silence(model: Model) -> None:
    track = Delayed(model.config, 20, CPU)
    track.put(1, torch.tensor([MARKS["eos_token_id"], 3, 3, 3]))
    assert track.frames().shape == (4, 0)
    ends = lambda scores: torch.eye(36)[[MARKS["eos_token_id"], 1, 1, 1]].log()  # noqa: E731
    kept, model.choice.ends = model.choice.ends, ends  # type: ignore[method-assign]
    try:
        assert spoken(model, text(2)).shape == (0,)
    finally:
        model.choice.ends = kept  # type: ignore[method-assign]


def test_half_precision_predicts_nearly_the_same(
    dia: Dia, plugins: PluginManager, truth: Truth
) -> None:
    def wrong(logits: Tensor) -> float:
        assert logits.dtype == torch.bfloat16
        return float((logits.float() - truth.logits).abs().mean() / truth.logits.std())

    half = load(dia.folder, plugins, dtype="bfloat16")
    theirs = Dia(dia.folder, copy.deepcopy(dia.model).bfloat16(), dia.codec)
    ours = wrong(predicted(half, truth.texts, truth.codes))
    assert ours <= 1.5 * wrong(theirs.logits(truth.texts, truth.codes)) < 0.3
    assert half.codec.decoder.conv2.weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tokens": []}, "input"),
        ({"tokens": [1] * 65}, "input"),
        ({"tokens": [256]}, "input"),
        ({"max_seconds": 0.001}, "max_seconds"),
        ({"max_seconds": 100}, "max_seconds"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"guidance": 0.5}, "guidance"),
        ({"guidance": float("nan")}, "guidance"),
        ({"seed": -1}, "seed"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_out_of_range_speech_options_are_rejected(
    model: Model, change: dict[str, Any], field: str
) -> None:
    values = {**GREEDY, "tokens": text(1), **change}
    with pytest.raises(RequestError) as raised:
        next(model.work(JobRequest(id="a", values=values), ROWS))
    assert raised.value.param == field


def test_a_short_context_holds_less(dia: Dia, plugins: PluginManager) -> None:
    short = load(dia.folder, plugins, context=30)
    most = Speech(tokens=text(2))
    assert most.frames(short.config, short.context) == 30 - max(DELAYS) - 1
    assert len(written(short, text(2), max_seconds=None)) == 30 + 1
    with pytest.raises(RequestError, match=r"31 bytes, expected 1\.\.30"):
        spoken(short, [65] * 31)
    with pytest.raises(RequestError, match="is too short for speech"):
        spoken(load(dia.folder, plugins, context=6), [65])


@pytest.mark.parametrize("said", ["[S1] Hello. [S2] Göd!", "[S2]no space", "[S3] [S1][S2]"])
def test_bytes_are_those_of_transformers(said: str) -> None:
    values = Inputs({}, Path("nowhere")).speech(said, None, {})
    expected = DiaTokenizer()(said, add_special_tokens=False)["input_ids"]
    assert values["tokens"] == (expected if said[1:3] != "S3" else [1, 32, *expected])


def test_what_a_model_suggests_is_taken(dia: Dia, tmp_path: Path) -> None:
    inputs = Inputs({}, dia.folder)
    usual = {"temperature": 1.3, "top_p": 0.95, "top_k": 12, "guidance": 2.5}
    assert inputs.usual() == usual
    values = inputs.speech("hello", "S2", {"top_p": 0.5})
    assert values == {**usual, "top_p": 0.5, "tokens": [2, *b" hello"]}
    said = {"do_sample": False, "top_k": "many", "top_p": 1, "guidance_scale": None}
    (tmp_path / "generation_config.json").write_text(json.dumps(said))
    usual = {"temperature": 0.0, "top_p": 1.0, "top_k": 45, "guidance": 3.0}
    assert Inputs({}, tmp_path).usual() == usual
    with pytest.raises(RequestError, match="unknown voice 'alloy'"):
        inputs.speech("hello", "alloy", {})
    with pytest.raises(RequestError, match="not Unicode"):
        inputs.speech("\ud800", None, {})


def test_the_codec_path_is_read_from_the_processor_config(
    tmp_path: Path, plugins: PluginManager
) -> None:
    dia = make_dia(tmp_path / "dia", beside=False)
    sound = spoken(load(dia.folder, plugins), text(2))
    assert len(sound) == FRAMES * 8
    shutil.move(tmp_path / "dia-codec", tmp_path / "dia" / "codec")
    assert torch.equal(spoken(load(dia.folder, plugins), text(2)), sound)


def test_a_codec_that_is_not_there(tmp_path: Path, plugins: PluginManager) -> None:
    folder = make_dia(tmp_path / "dia").folder
    shutil.rmtree(folder / "codec")
    with pytest.raises(CheckpointError, match="download descript/dac_44khz into dia/codec"):
        load(folder, plugins)
    said = {"audio_tokenizer": {"audio_tokenizer_name_or_path": "somebody/codec"}}
    (folder / "processor_config.json").write_text(json.dumps(said))
    with pytest.raises(ModelNotFound, match="somebody/codec is not in the cache"):
        load(folder, plugins, offline=True)
    (folder / "processor_config.json").write_text("[")
    with pytest.raises(ConfigError, match=r"^processor_config\.json: "):
        load(folder, plugins)


@pytest.mark.parametrize(
    ("where", "change", "said"),
    [
        ("", {"delay_pattern": [0, 1, 2]}, "the decoder has 4, expected 3, the delays"),
        ("", {"delay_pattern": [1, 2, 3, 4]}, "does not begin with 0"),
        ("", {"delay_pattern": [0, 1, 2, 95]}, "stay within 0..94"),
        ("codec", {"n_codebooks": 3}, "the decoder has 4, expected 3, the codebooks"),
        ("codec", {"codebook_size": 64}, "the decoder has 32, expected 64, the codes"),
        ("codec", {"downsampling_ratios": [3, 4]}, "are not even"),
        ("codec", {"decoder_hidden_size": 30}, "cannot be halved 2 times"),
        ("decoder_config", {"cross_hidden_size": 40}, "the decoder has 40, expected 48"),
        ("decoder_config", {"bos_token_id": 36}, "bos_token_id=36"),
        ("decoder_config", {"cross_num_key_value_heads": 3}, "not a multiple of"),
        ("encoder_config", {"num_attention_heads": 3}, "not a multiple of"),
        ("encoder_config", {"hidden_size": "wide"}, "is not an integer"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_configs_that_contradict_themselves(where: str, change: dict[str, Any], said: str) -> None:
    raw: dict[str, Any] = {**SHAPE, "codec": CODEC}
    raw = {**raw, where: {**raw[where], **change}} if where else {**raw, **change}
    with pytest.raises(ConfigError, match=said):
        Config.from_hf(raw)


def test_files_leave_out_what_is_usual() -> None:
    codec = {"sampling_rate": 44100, "hop_length": 512, "quantizer_dropout": 0.5}
    raw = {"model_type": "dia", "codec": {"model_type": "dac", **codec}, "eos_token_id": 1024}
    config = Config.from_hf(raw)
    assert config.decoder_config.num_key_value_heads == 4
    assert config.encoder_config.num_key_value_heads == 16
    assert config.max_position_embeddings == 3072
    assert config.codec.hop == 512 and config.codec.latent_size == 1024
    assert Config.from_hf({**raw, "pad_token_id": 1027}).decoder_config.pad_token_id == 1027
