"""Compare models in GGUF files of llama.cpp's converter and quantizer with llama.cpp.

    python tests/peers/quantized.py [CHECKOUT] [--only CASE ...] [--formats FORMAT ...]

For each architecture that llama.cpp and ostro support (`conversions.py`), transformers saves a
small model with rows of whole blocks. `convert_hf_to_gguf.py` of CHECKOUT converts it to a float
file, `llama_model_quantize` of the environment `llama_cpp` (`environments.py`) quantizes that to
each of FORMATS, and llama.cpp's dequantizers make float files of the results. ostro loads the
quantized files with exact=True. The table shows the deviation of its logits (an encoder's states),
relative to their standard deviation, from

    own      ostro's logits of the dequantized file, dense: at most `SAME`
    floats   llama.cpp's logits of the dequantized file: at most `BAR`

Models with gelu run with llama.cpp's gelu (see `tabled`). For them, floats is that of the median
token, and may be twice the effect of a change in the order of sums, which is shown as jumps.

For the first format, text is the number of the `COUNT` greedy tokens that equal llama.cpp's of the
dequantized file, which should be all, followed by the number that equal those of the quantized
file, for which llama.cpp rounds activations to 8 bits. rounds is the deviation of its logits by
this rounding, of the median token, since rounding changes the experts of some tokens. At the first
different token, gap is the difference of the two tokens in ostro's logits: at most twice rounds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from conversions import CASES, Case
from converter import CHECKOUT, ConverterError, convert, find_checkout, find_python
from environments import default_root, python_of
from torch import Tensor

from ostro.architectures.gemma4.model import Block, PerLayerInputs
from ostro.core.errors import OstroError
from ostro.core.load.model import LoadedModel, load_model
from ostro.core.nn import Experts, GatedMLP
from ostro.core.nn.mlp import UNGATED
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.core.step import Step
from ostro.plugins.conformance.formats import SAME, STD
from ostro.plugins.conformance.parity import BAR, Subject, deviation, encode, greedy, subject

FORMATS = {
    "Q8_0": 7,
    "Q6_K": 18,
    "Q5_0": 8,
    "Q4_K_M": 15,
    "Q4_0": 2,
    "IQ4_NL": 25,
    "IQ4_XS": 30,
    "Q2_K": 10,
}
"""Mixtures of formats by their names in llama-quantize, and their numbers in `llama_ftype`."""

COUNT = 32

GEMMA = ("gemma2", "gemma3", "embeddinggemma", "gemma3_images")
GEMMA4 = ("gemma4", "gemma4_moe", "gemma4_images")
GELU = ("gemma", *GEMMA, *GEMMA4, "bert", "xlm_roberta", "modernbert", "phi", "starcoder2", "t5")
"""Architectures that are compared with llama.cpp's gelu, see `tabled`."""

OUTLIERS = {"gemma": 2.0, "gemma4": 4.0, "gemma4_moe": 4.0, "gemma4_images": 4.0}
"""Factors on `SAME` for architectures with a largest logit, that of the last token itself, many
standard deviations above the others, or with scores of attention that are not scaled (Gemma 4):
rounding errors are larger relative to the deviation.
"""

FULL = {"num_hidden_layers": 6, "layer_types": None}
KINDS: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_attention_heads": 16,
    "head_dim": 16,
    "global_head_dim": 32,
}
RAMP = {
    "rope_type": "yarn",
    "rope_theta": 10764.7,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}
SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [11, 11, 10]}
SHALLOW = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}

WIDE: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 64},
    "gemma3": {"query_pre_attn_scalar": 64, **FULL},
    "embeddinggemma": {"query_pre_attn_scalar": 64, **FULL},
    "gemma3_images": {"query_pre_attn_scalar": 64, **FULL},
    "gemma4": {**KINDS, "num_hidden_layers": 4, "num_kv_shared_layers": 2},
    "gemma4_images": {
        **KINDS,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "rms_norm_eps": 1e-6,
    },
    "gemma4_moe": {**KINDS, "num_hidden_layers": 2, "layer_types": KINDS["layer_types"][:2]},
    "gpt_oss": {"rope_parameters": RAMP},
    "deepseek_v2": {"n_group": 1, "topk_group": 1},
    "deepseek v2 lite": {"num_hidden_layers": 26, **SHALLOW},
    "qwen2_vl": {"rms_norm_eps": 1e-12},
    "qwen2_5_vl": {"rms_norm_eps": 1e-12},
    "qwen3_vl_moe": {"rope_parameters": {**SECTIONS, "mrope_interleaved": True}},
    "qwen3_5_moe": {"num_experts_per_tok": 6},
    "qwen3_vl": {"rope_parameters": {**SECTIONS, "mrope_interleaved": True}},
}
"""Changes of the wide configs, by architecture or case.

They avoid values for which llama.cpp (July 2026) and transformers compute different results:

- gpt-oss: llama.cpp rounds the ends of YaRN's ramp, which the reference does not, and ignores its
  betas; this ramp begins at the first pair and ends at the eighth.
- DeepSeek-V2: llama.cpp ranks groups of experts by the sum of their two best, as V3 does; V2 is
  defined by the best one.
- DeepSeek-V2-Lite: llama.cpp distinguishes it from V2 by its 26 or 27 layers.
- Qwen2-VL and 2.5-VL: llama.cpp does not read the epsilon of qwen2vl, as its hyperparameters fall
  through to those of qwen2 in a comment only.
- Qwen3-VL: llama.cpp does not rotate pairs beyond the interleaved sections (the 62nd and 63rd of
  [24, 20, 20]); the reference rotates them by the temporal position.
- Qwen3.5-MoE: llama.cpp's rounding of activations changes the choice of experts at a token whose
  scores are close; here all experts are chosen.
"""

UNSAID = ("deepseek v3, unsaid", "bamba", "phimoe")
"""Files that llama.cpp reads otherwise: without the gating function of experts, it uses V2's
softmax; of Bamba, the converter permutes whole heads, and llama.cpp rotates their first half;
for Phi-3.5-MoE, llama.cpp computes RMS norms and a softmax over the two experts.
"""


@dataclass(frozen=True)
class Outcome:
    """A line of the table, or the error message `said`."""

    own: float = float("inf")
    floats: float = float("inf")
    rounds: float = float("inf")
    jumps: float = 0.0
    outlier: float = 1.0
    text: int | None = None
    same: int = 0
    gap: float = 0.0
    said: str = ""

    @property
    def good(self) -> bool:
        near = self.own <= SAME * self.outlier and self.floats <= max(BAR, 2 * self.jumps)
        return not self.said and near and self.text in (None, COUNT) and self.gap <= 2 * self.rounds

    def __str__(self) -> str:
        if self.said:
            return self.said
        offs = f"own {self.own:.1e}  floats {self.floats:.1e}  rounds {self.rounds:.1e}"
        if self.jumps:
            offs += f"  jumps {self.jumps:.1e}"
        if self.text is None:
            return offs
        gap = f", gap {self.gap:.1e}" if self.same < COUNT else ""
        return f"{offs}  text {self.text:2} of {COUNT}, {self.same:2} rounded{gap}"


class LlamaError(Exception):
    """The last line of llama.cpp's output."""


def ask(
    source: Path, format: str, folder: Path, tiny: Subject, count: int
) -> dict[str, np.ndarray[Any, Any]]:
    """Run llama.cpp. Return its results; its files are in `folder`. Raises LlamaError."""
    script = Path(__file__).with_name("quantizer.py")
    prompt = ",".join(map(str, tiny.prompt))
    how = ["--count", str(count)] if tiny.decodes else ["--states"]
    words = [str(source), str(FORMATS[format]), str(folder), "--prompt", prompt, *how]
    command = [str(find_llama()), str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise LlamaError(lines[-1] if lines else f"it ended with {done.returncode}")
    with np.load(folder / "said.npz") as said:
        return dict(said)


GELU_OF = F.gelu


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """llama.cpp's gelu on CPU, for both values of `approximate`: the tanh approximation, from a
    table with float16 input and output.
    """
    looked_up = GELU_OF(x.half().float(), approximate="tanh").half().float()
    return torch.where(x.abs() < 10, looked_up, x.relu())


@contextmanager
def tabled() -> Iterator[None]:
    """Run ostro's models with llama.cpp's gelu, which changes logits by 1e-4 to 2e-3.

    It is a step function: a sum that differs in its last bit, by another order of addition, may
    fall on another step, which turns 1e-7 into 1e-3.
    """

    def forward(self: GatedMLP, x: Tensor, step: Step) -> Tensor:
        gate, up = self.gate_up(x, step).chunk(2, dim=-1)
        return self.down_proj(gelu(gate) * up, step)

    def activate(self: Experts, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return gelu(gate) * up

    def add_per_layer(self: Block, x: Tensor, inputs: PerLayerInputs, step: Step) -> Tensor:
        y = gelu(self.per_layer_input_gate(x, step)) * inputs.values[:, self.layer]
        return x + self.post_per_layer_input_norm(self.per_layer_projection(y, step))[0]

    with (
        patch.object(F, "gelu", gelu),
        patch.object(GatedMLP, "forward", forward),
        patch.object(Experts, "activate", activate),
        patch.object(Block, "add_per_layer", add_per_layer),
        patch.dict(UNGATED, gelu=gelu, gelu_tanh=gelu),
    ):
        yield


def say(tiny: Subject, loaded: LoadedModel, more: Sequence[int] = ()) -> Tensor:
    """ostro's logits of the prompt and the generated tokens `more`, or an encoder's states."""
    engine = tiny.engine(loaded)
    if tiny.decodes:
        return engine.runner.logits([*tiny.prompt, *more])
    return encode(engine, [tiny.prompt], [[0] * len(tiny.prompt)])


def compare(
    tiny: Subject, few: LoadedModel, dense: LoadedModel, theirs: Mapping[str, np.ndarray[Any, Any]]
) -> Outcome:
    """The outcome of the quantized model `few`; `dense` is the dequantized model, `theirs` the
    results of llama.cpp.
    """
    plain, rounded = (torch.from_numpy(theirs[name]) for name in ("floats", "rounded"))
    own, rounds = deviation(say(tiny, few), say(tiny, dense)), typical(rounded, plain)
    if tiny.name not in GELU:
        floats = deviation(say(tiny, few), plain)
        return follow(tiny, few, theirs, Outcome(own, floats, rounds))
    with tabled():
        said = say(tiny, few)
        jumps = typical(said, say(tiny, dense))
        found = Outcome(own, typical(said, plain), rounds, jumps, OUTLIERS.get(tiny.name, 1.0))
        return follow(tiny, few, theirs, found)


def follow(
    tiny: Subject, few: LoadedModel, theirs: Mapping[str, np.ndarray[Any, Any]], outcome: Outcome
) -> Outcome:
    """Add the comparison of ostro's greedy text with llama.cpp's two texts, if there are any."""
    plain, rounded = theirs["plain_text"].tolist(), theirs["text"].tolist()
    if not plain:
        return outcome
    [ours] = greedy(tiny.engine(few), [tiny.prompt], len(plain))
    text, same, gap = alike(ours, plain), alike(ours, rounded), 0.0
    if same < len(ours):
        logits = say(tiny, few, ours[:same])
        gap = float((logits[-1, ours[same]] - logits[-1, rounded[same]]) / logits.std())
    return replace(outcome, text=text, same=same, gap=gap)


def typical(ours: Tensor, truth: Tensor) -> float:
    """The `deviation` of the median token."""
    return float(((ours - truth).abs().amax(-1) / truth.std()).median())


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the common prefix of two texts in tokens."""
    unlike = (i for i, pair in enumerate(zip(one, other, strict=True)) if len({*pair}) > 1)
    return next(unlike, len(one))


def run(
    title: str, formats: Sequence[str], checkout: Path, python: Path, plugins: PluginManager
) -> Iterator[tuple[str, Outcome]]:
    """Make the model, convert and quantize it, and compare, format by format."""
    case = CASES[title]
    changes = {**case.changes, **WIDE.get(case.name, {}), **WIDE.get(title, {})}
    wide = replace(case, changes=changes).shape(plugins, "wide")
    asked = Settings(dtype="float32", device="cpu", arch=case.asked, exact=True)
    with (
        subject(plugins, case.name, config=wide, std=STD) as tiny,
        tempfile.TemporaryDirectory() as made,
    ):
        case.prepare(tiny)
        source = Path(made) / "source.gguf"
        try:
            convert(tiny.folder, source, checkout, python, case.options)
        except ConverterError as error:
            yield "", Outcome(said=f"the converter: {error}")
            return
        for format in formats:
            try:
                count = COUNT if format == formats[0] else 0
                theirs = ask(source, format, Path(made), tiny, count)
                few = load_model(Path(made) / "model.gguf", asked, plugins)
                dense = load_model(Path(made) / "floats.gguf", asked, plugins)
                yield format, compare(tiny, few, dense, theirs)
            except LlamaError as error:
                yield format, Outcome(said=f"llama.cpp: {error}")
            except OstroError as error:
                yield format, Outcome(said=f"ostro: {error}")


def find_llama() -> Path:
    return python_of(default_root(), "llama_cpp")


def cases() -> dict[str, Case]:
    """The cases that llama.cpp converts and loads correctly, by name."""
    return {n: case for n, case in CASES.items() if not case.refused and n not in UNSAID}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", nargs="?")
    parser.add_argument("--only", nargs="+", choices=cases(), default=list(cases()), metavar="CASE")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    args = parser.parse_args()
    checkout = find_checkout(args.checkout)
    if checkout is None:
        parser.error(f"name a checkout of llama.cpp, or set {CHECKOUT}")
    if not find_llama().exists():
        parser.error("environments.py llama_cpp makes the environment that this needs")
    plugins = PluginManager()
    plugins.load(Settings())
    good = True
    for name in args.only:
        for format, outcome in run(name, args.formats, checkout, find_python(), plugins):
            good &= outcome.good
            mark = "ok" if outcome.good else "NO"
            print(f"{mark:3} {name:20} {format:7} {outcome}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
