"""Compare mistral.rs and ostro on UQFF files that either of them wrote.

    python tests/peers/uqff.py [--python PYTHON] [--golden]

mistral.rs quantizes tiny models with re-initialised weights to each format that it writes on a CPU.
Both engines serve each file greedily. Then ostro writes the same layers, and layers that it
quantized itself, and mistral.rs serves these files. If a token differs, the table shows by how much
ostro preferred its token: mistral.rs rounds activations to eight bits for ggml's formats, ostro
does not, so either of two nearly equal tokens may be chosen.

With --golden, writes tests/plugins/checkpoints/uqff/golden.safetensors: one layer in each format as
stored by mistral.rs, and the original weight.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import torch
from environments import default_root, python_of
from gguf import GGUFWriter
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from ostro.core.engine.startup.build import build_engine
from ostro.core.load.model import load_model
from ostro.core.load.open import open_container
from ostro.core.load.quantize import makers
from ostro.core.nn.storage import Stored
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Quantizer, TensorInfo, resolve
from ostro.core.settings import Settings
from ostro.plugins.checkpoints.uqff.write import Entry, write
from ostro.plugins.conformance.parity import Subject, greedy, subject

GGML = tuple("q2k q3k q4k q5k q6k q8k q4_0 q4_1 q5_0 q5_1 q8_0 q8_1".split())
OTHERS = tuple("hqq4 hqq8 fp8 afq2 afq3 afq4 afq6 afq8 f8q8 mxfp4".split())
FORMATS = GGML + OTHERS
"""The formats that mistral.rs 0.9.5 writes on a CPU, with its names."""

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
VOCAB = 512
WORDS = ["".join(characters) for characters in islice(product(ascii_lowercase, repeat=3), VOCAB)]
"""Each id is one word, so that texts map to tokens exactly."""

SHAPE = {**SIZES, **HEADS, "vocab_size": VOCAB, "max_position_embeddings": 256}
EXPERTS = {"moe_intermediate_size": 256, "num_experts": 4, "num_experts_per_tok": 2}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "qwen3": SHAPE,
    "qwen2": {k: v for k, v in SHAPE.items() if k != "head_dim"},
    "qwen3_moe": {**SHAPE, **EXPERTS, "norm_topk_prob": True},
    "llama": {**SHAPE, "tie_word_embeddings": True},
}
LEGACY = {"rope_theta": 10000.0, "max_window_layers": 2, "use_sliding_window": False}
"""Fields that mistral.rs requires and transformers 5 does not write."""

PROMPTS = ([5, 300, 17, 44, 9, 210], [77, 3, 3, 500])
COUNT = 16
NEAR, ROUNDED = 0.005, 0.1
"""The largest allowed preference for a different token, relative to the standard deviation of the
logits, if both compute in float32, and if mistral.rs rounds.
"""

GOLDEN = Path(__file__).parents[1] / "plugins" / "checkpoints" / "uqff" / "golden.safetensors"
LAYER = "model.layers.0.self_attn.k_proj"

PEER = """
import json, sys
from mistralrs import CompletionRequest, ModelDType, Runner, Which

def run(job):
    which = getattr(Which, job["which"])(**job["model"], dtype=ModelDType.F32)
    runner = Runner(which=which, in_situ_quant=job.get("isq"))
    for prompt in job["prompts"]:
        request = CompletionRequest(
            prompt=prompt, model="default", max_tokens=job["count"], temperature=0.0,
            ignore_eos=True,
        )
        yield runner.send_completion_request(request).choices[0].text

for line in sys.stdin:
    try:
        said = list(run(json.loads(line)))
    except BaseException as error:
        said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    print("SAID " + json.dumps(said), flush=True)
"""
"""The peer's program: for each line, load a model, write it if requested, and continue prompts."""

Said = list[list[int]] | str
"""The tokens after each prompt, or an error message."""


def peer(python: Path, jobs: Sequence[Mapping[str, Any]]) -> list[Said]:
    """Run jobs in mistral.rs, one after the other."""
    lines = "\n".join(json.dumps({"prompts": [], "count": COUNT, **job}) for job in jobs)
    command = [str(python), "-c", PEER]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=280)
    said = [json.loads(x[5:]) for x in done.stdout.splitlines() if x.startswith("SAID ")]
    if len(said) != len(jobs):
        raise RuntimeError(f"mistral.rs ended in job {len(said)}: {done.stderr[-2000:]}")
    return [each if isinstance(each, str) else [ids(text) for text in each] for each in said]


def ids(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


def quantize(case: Case, folder: Path, out: Path) -> dict[str, Any]:
    """The job that quantizes a folder of floats, or the GGUF file beside `out`, to a format."""
    asked = {"write_uqff": str(out / f"{case.isq}.uqff")}
    if case.gguf:
        asked |= {"quantized_model_id": str(out.parent), "quantized_filename": "llama.gguf"}
    else:
        asked["model_id"] = str(folder)
    return {"which": "GGUF" if case.gguf else "Plain", "model": asked, "isq": case.isq}


def serve(folder: Path, file: str) -> dict[str, Any]:
    """The job that serves a UQFF file."""
    return {
        "which": "Plain",
        "model": {"model_id": str(folder), "from_uqff": file},
        "prompts": [" ".join(WORDS[id] for id in prompt) for prompt in PROMPTS],
    }


@contextmanager
def model(plugins: PluginManager, name: str, **shape: Any) -> Iterator[Subject]:
    """A tiny model with a tokenizer of words, readable by mistral.rs."""
    with subject(plugins, name, config={**SHAPES[name], **shape}, std=0.1) as made:
        config = made.raw_config | LEGACY
        config["num_experts"] = config.get("num_local_experts", 0)
        (made.folder / "config.json").write_text(json.dumps(config))
        words(made.folder)
        yield made


def words(folder: Path) -> None:
    """Write a tokenizer in which each id is one word."""
    vocabulary = {f"Ġ{word}": id for id, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=f"Ġ{WORDS[0]}"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": f"Ġ{WORDS[0]}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(said | {"chat_template": template}))


def write_gguf(made: Subject, file: Path) -> None:
    """Write a llama in float32 like llama.cpp's converter."""
    shape, writer = made.config, GGUFWriter(file, "llama")
    writer.add_context_length(SHAPE["max_position_embeddings"])
    writer.add_embedding_length(SHAPE["hidden_size"])
    writer.add_feed_forward_length(SHAPE["intermediate_size"])
    writer.add_block_count(SHAPE["num_hidden_layers"])
    writer.add_head_count(SHAPE["num_attention_heads"])
    writer.add_head_count_kv(SHAPE["num_key_value_heads"])
    writer.add_key_length(SHAPE["head_dim"])
    writer.add_value_length(SHAPE["head_dim"])
    writer.add_rope_dimension_count(SHAPE["head_dim"])
    writer.add_rope_freq_base(LEGACY["rope_theta"])
    writer.add_layer_norm_rms_eps(shape.rms_norm_eps)  # type: ignore[attr-defined]
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"Ġ{word}" for word in WORDS[:-3]] + ["Ġ", "a", "Ġa"])
    writer.add_token_types([3, *[1] * (VOCAB - 1)])
    writer.add_token_merges(["Ġ a"])
    writer.add_eos_token_id(0)
    for name, tensor in made.reference.state_dict().items():
        named = made.names.write(name, "gguf")
        moved = tensor if named.transform is None else named.transform.write(tensor)
        writer.add_tensor(named.theirs, moved.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@dataclass(frozen=True)
class Case:
    """A model that mistral.rs quantizes to a format, from a GGUF file if `gguf` is set."""

    isq: str
    name: str = "qwen3"
    gguf: bool = False

    def __str__(self) -> str:
        return f"{self.name}{'.gguf' * self.gguf} {self.isq}"


CASES = (
    *(Case(isq) for isq in FORMATS),
    Case("q4k", "qwen2"),
    Case("afq4", "qwen2"),
    Case("q4k", "qwen3_moe"),
    Case("afq4", "qwen3_moe"),
    Case("q8_0", "llama", gguf=True),
    Case("afq8", "llama", gguf=True),
)
MADE = ("q4k", "q8_0", "afq4", "afq8", "fp8", "f8q8", "mxfp4")
"""Formats that ostro quantizes to and mistral.rs serves."""


@dataclass(frozen=True)
class Outcome:
    """The comparison of both engines on one file.

    `gap` is ostro's preference for its first different token, relative to the standard deviation of
    the logits; `said` is an error message of mistral.rs.
    """

    same: int = 0
    of: int = 0
    gap: float = 0.0
    said: str = ""

    def __str__(self) -> str:
        return self.said or f"{self.same}/{self.of}" + (f" (gap {self.gap:.4f})" * (self.gap > 0))


def compare(path: Path, theirs: Said, plugins: PluginManager) -> Outcome:
    """Serve a file in ostro, greedily and with exact=True, and compare."""
    if isinstance(theirs, str):
        return Outcome(said=theirs)
    settings = Settings(dtype="float32", device="cpu", exact=True)
    loaded = load_model(path, settings, plugins)
    engine = build_engine(loaded, settings, plugins, [], rows=512, block=16, blocks=64)
    ours = greedy(engine, PROMPTS, COUNT)
    same, gap = 0, 0.0
    for prompt, mine, other in zip(PROMPTS, ours, theirs, strict=True):
        pairs = list(zip(mine, other, strict=True))
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), COUNT)
        same += first
        if first < COUNT:
            logits = engine.runner.logits([*prompt, *mine[:first]])[-1]
            preferred = logits[mine[first]] - logits[other[first]]
            gap = max(gap, float(preferred / logits.std()))
    return Outcome(same, COUNT * len(PROMPTS), gap)


def storages(folder: Path, made: Subject, plugins: PluginManager) -> list[Entry]:
    """The layers of a UQFF folder as read by ostro, to be written again."""
    container, entries = open_container(folder, plugins), []
    for key, weight in weights(made).items():
        infos = {
            name.removeprefix(f"{key}."): info
            for name, info in container.tensors.items()
            if name.startswith(f"{key}.") and not name.endswith(".bias")
        }
        quantizer = plugins.claimant("quantizers", partial(claims, infos), key)
        assert quantizer is not None, f"{key = } is claimed by nobody"
        stored = Stored(
            tensors={suffix: container.read(info.name) for suffix, info in infos.items()},
            infos=infos,
            shape=tuple(weight.shape),
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
        storage = resolve(quantizer.storage).read(stored)
        bias = container.read(f"{key}.bias") if f"{key}.bias" in container.tensors else None
        entries.append(Entry(key, partial(lambda made: made, storage), bias))
    return entries


def claims(infos: Mapping[str, TensorInfo], quantizer: Quantizer) -> bool:
    return quantizer.claims(infos, {})


def quantized(made: Subject, format: str, plugins: PluginManager) -> list[Entry]:
    """The layers of a float model, quantized by ostro."""
    maker, entries = makers(plugins)[format], []
    for key, weight in weights(made).items():
        entries.append(Entry(key, partial(maker.make, weight, torch.float32, None)))
    return entries


def weights(made: Subject) -> dict[str, Tensor]:
    """The weights that UQFF stores as layers, by key."""
    state = made.reference.state_dict()
    return {k.removesuffix(".weight"): w for k, w in state.items() if w.dim() == 2}


def write_ours(out: Path, entries: Sequence[Entry], made: Subject) -> None:
    """Write a UQFF folder `out` with these layers and the other tensors of a model."""
    keys = {entry.key for entry in entries}
    biases = {f"{entry.key}.bias" for entry in entries if entry.bias is not None}
    state = made.reference.state_dict()
    rest = {k: t for k, t in state.items() if k.removesuffix(".weight") not in keys}
    names = ("tokenizer.json", "tokenizer_config.json")
    assets = {name: made.folder / name for name in names}
    write(
        out,
        "ours",
        entries,
        residual={k: t for k, t in rest.items() if k not in biases},
        config=json.loads((made.folder / "config.json").read_text()),
        assets=assets,
    )


def run(python: Path, plugins: PluginManager, cases: Sequence[Case]) -> dict[str, Outcome]:
    """The outcomes by name: files of mistral.rs served by ostro, and files of ostro, rewritten or
    quantized, served by mistral.rs.
    """
    with ExitStack() as stack:
        out = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        wanted = dict.fromkeys(["qwen3", *(case.name for case in cases)])
        made = {name: stack.enter_context(model(plugins, name)) for name in wanted}
        if any(case.gguf for case in cases):
            write_gguf(made["llama"], out / "llama.gguf")
        folders = {case: out / str(case).replace(" ", "-") for case in cases}
        peer(python, [quantize(case, made[case.name].folder, folders[case]) for case in cases])
        for folder in folders.values():
            words(folder)  # the tokenizer of the GGUF file has no such words
        again = {case: out / f"again-{case.isq}" for case in cases if case.name == "qwen3"}
        for case, folder in again.items():
            write_ours(folder, storages(folders[case], made["qwen3"], plugins), made["qwen3"])
        ours = {format: out / f"ours-{format}" for format in MADE}
        for format, folder in ours.items():
            write_ours(folder, quantized(made["qwen3"], format, plugins), made["qwen3"])
        files = [(folder, f"{case.isq}-0.uqff") for case, folder in folders.items()]
        files += [(folder, "ours-0.uqff") for folder in (*again.values(), *ours.values())]
        said = peer(python, [serve(*file) for file in files])
        pairs = zip(names(cases), files, said, strict=True)
        return {name: compare(folder, theirs, plugins) for name, (folder, _), theirs in pairs}


def names(cases: Sequence[Case]) -> list[str]:
    """The names of the outcomes of `run`, in order."""
    again = [f"again {case}" for case in cases if case.name == "qwen3"]
    return [*map(str, cases), *again, *(f"ours {format}" for format in MADE)]


def make_golden(python: Path, plugins: PluginManager) -> None:
    """Write one layer [8, 256] in each format, as stored by mistral.rs."""
    small = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 32}
    small |= {"num_hidden_layers": 1, "intermediate_size": 32}
    with model(plugins, "qwen3", **small) as made, tempfile.TemporaryDirectory() as out:
        folders = {isq: Path(out) / isq for isq in FORMATS}
        peer(python, [quantize(Case(isq), made.folder, folders[isq]) for isq in FORMATS])
        golden: dict[str, Tensor] = {"weight": weights(made)[LAYER].clone()}
        for isq in FORMATS:
            for name, tensor in load_file(folders[isq] / f"{isq}-0.uqff").items():
                if name.startswith(f"{LAYER}."):
                    golden[f"{isq}/{name.removeprefix(f'{LAYER}.')}"] = tensor
    save_file(golden, GOLDEN)
    print(f"{GOLDEN}: {GOLDEN.stat().st_size} bytes, {len(FORMATS)} formats")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, default=python_of(default_root(), "mistralrs"))
    parser.add_argument("--golden", action="store_true", help="write the golden file")
    args = parser.parse_args()
    plugins = PluginManager()
    plugins.load(Settings())
    if args.golden:
        make_golden(args.python, plugins)
        return
    for name, outcome in run(args.python, plugins, CASES).items():
        print(f"{name:24} {outcome}")


if __name__ == "__main__":
    main()
