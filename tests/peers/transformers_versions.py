"""Compare ostro with checkpoints that other versions of transformers write.

    python tests/peers/transformers_versions.py [--table] [--versions VERSION ...]
        [--only FAMILY ...]

For each architecture of ostro whose reference is a class of transformers, that version makes a tiny
model of a config.json in the form of published ones, with random weights, computes its outputs in
float32 and saves it; ostro reads the folder. The table shows the deviation of ostro's logits (an
encoder's states, a classifier's scores), relative to their standard deviation. `environments.py
transformers-VERSION` makes the environment of a version.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from environments import VERSIONS, default_root, python_of

from ostro.core.plugins.manager import PluginManager, installed_plugins
from ostro.core.records import Architecture
from ostro.plugins.conformance.parity import BAR, STD, Subject, deviation, subject

SCRIPT = Path(__file__).with_name("transformers_saver.py")
SOURCES = Path(__file__).parents[2] / "src"
PREFIX = "transformers:"

CORRECTED = ("mllama", "phimoe", "qwen2_vl", "qwen2_5_vl")
"""Families whose reference corrects their class of transformers."""

FLAT = ("qwen2_vl", "qwen2_5_vl")
"""Families whose published files have the fields of the text config beside its parts'."""

CHANGES: Mapping[str, Mapping[str, Any]] = {
    # The cap of the scores, which SDPA leaves out up to 5.0.
    "gemma2": {"attn_implementation": "eager"},
    # One group of states, as in published files, since up to 5.17 the norm ignores groups.
    "bamba": {"mamba_n_groups": 1, "time_step_limit": None},
    "mamba2": {"n_groups": 1},
    "granitemoehybrid": {
        "mamba_n_groups": 1,
        "time_step_limit": None,
        "layer_types": ["mamba", "attention", "mamba"],
    },
    # Up to 5.0 a constant.
    "gpt_oss": {"swiglu_limit": 7.0},
    "deepseek_v2": {"topk_method": "greedy", "n_group": 1, "topk_group": 1},
    # 4.46 has no partial rotation.
    "phi3": {
        "partial_rotary_factor": 1.0,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0 + i / 8 for i in range(8)],
            "long_factor": [1.5 + i / 2 for i in range(8)],
        },
    },
    "phi": {"pad_token_id": 0},
    # The tokens of an image, which 4.46 compares with the prompt's.
    "llava": {"image_seq_length": 16},
    "vipllava": {
        "image_seq_length": 16,
        "vision_feature_layers": [3, 4, 1, 2],
        "vision_feature_layer": None,
    },
    "llava_next": {"image_seq_length": 16},
    "llava_next_video": {"image_seq_length": 16},
    "gemma3_images": {"text_config.sliding_window": 32},
    # No window, which Qwen2's layers all have up to 4.51.
    "llava_onevision": {"text_config.sliding_window": 256},
    # Windows of all layers or none: 4.46 and 4.51 have no others.
    "gemma3": {"sliding_window_pattern": 6},
}
"""Fields in which the tiny config differs from all published files, and their values in those."""

WINDOW = "all layers have the window"
GROUPS = "the norm of Mamba 2 ignores groups"
YARN = "YaRN's mscale_all_dim is missing in the scale of the scores"
PATCHES = "patches are placed one bucket too low"
RELOADED = "the window is halved at every save"
SIGHT = "text before the first image attends to it, and the vision layers are the next ones"

OWN_FAULTS: Mapping[tuple[str, str], str] = {
    **{(name, "4.46.3"): WINDOW for name in ("qwen2", "qwen2_moe", "qwen2_classifier")},
    **{(name, "4.51.3"): WINDOW for name in ("qwen2", "qwen2_moe", "qwen2_classifier")},
    ("qwen2_moe", "4.57.6"): WINDOW,
    ("qwen2_vl", "4.46.3"): "only `generate` computes the positions of media",
    ("mamba2", "4.46.3"): "time steps are clamped to time_step_min on the CPU",
    ("embeddinggemma", "4.51.3"): "attention is causal",
    ("embeddinggemma", "4.57.6"): RELOADED,
    ("embeddinggemma", "5.0.0"): RELOADED,
    ("gemma3_images", "4.51.3"): "images attend to later images",
    **{(name, "4.57.6"): PATCHES for name in ("idefics2", "idefics3", "smolvlm")},
    ("deepseek_v2", "4.57.6"): YARN,
    ("deepseek_v2", "5.0.0"): YARN,
    ("bamba", "5.0.0"): "whole heads are rotated",
    ("hunyuan_v1_dense", "5.0.0"): "alpha is lost",
    ("hunyuan_v1_moe", "5.0.0"): "alpha is lost",
    ("minimax_m2", "5.0.0"): "rotary_dim is ignored",
    ("olmo3", "5.0.0"): "layers with a window have YaRN",
    ("mllama", "5.0.0"): SIGHT,
    ("mllama", "5.24.0"): SIGHT,
    ("phimoe", "5.24.0"): "the factors of longrope are always the short ones",
    ("qwen2_5_vl", "5.24.0"): "text behind a video goes on after its rows and columns",
}
"""Families and versions whose own outputs are wrong, with the reason."""


@dataclass(frozen=True)
class Outcome:
    """The deviation `off` of a family, the error `said` by ostro, or why the version `lacks` it."""

    off: float = float("inf")
    said: str = ""
    lacks: str = ""

    @property
    def equal(self) -> bool:
        return self.off <= BAR

    def as_known(self, name: str, version: str) -> bool:
        """Whether it is equal, or skipped, or deviates as `OWN_FAULTS` says."""
        return bool(self.lacks) or self.equal != ((name, version) in OWN_FAULTS)

    def __str__(self) -> str:
        return self.lacks or self.said or f"{self.off:.1e}"


def families(plugins: PluginManager) -> dict[str, Architecture]:
    """The architectures whose reference is a class of transformers."""
    known: Mapping[str, Architecture] = plugins.collect("architectures")
    return {
        name: record
        for name, record in known.items()
        if class_of(record) and record.classes and record.tasks
    }


def class_of(record: Architecture) -> str:
    """The class of transformers that saves a record's models; "" if there is none."""
    reference = record.conformance.reference or ""
    if record.name in CORRECTED:
        return record.classes[0]
    return reference.removeprefix(PREFIX) if reference.startswith(PREFIX) else ""


def published(name: str, record: Architecture) -> dict[str, Any]:
    """The tiny config of a record, with the keys and values of published files."""
    config = older(record.conformance.tiny or {})
    if name in FLAT:
        config = {**config.pop("text_config"), **config}
        sections = config["rope_scaling"]["mrope_section"]
        config["rope_scaling"] = {"type": "mrope", "mrope_section": sections}
    for key, value in CHANGES.get(name, {}).items():
        part, _, inner = key.rpartition(".")
        (config[part] if part else config)[inner] = value
    config = {key: value for key, value in config.items() if value is not None}
    return {**config, "architectures": list(record.classes[:1])}


def older(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config with rope_theta and rope_scaling in place of rope_parameters."""
    found = {k: older(v) if isinstance(v, Mapping) else v for k, v in config.items()}
    rule = config.get("rope_parameters")
    found.pop("rope_parameters", None)
    return found | older_rope(rule) if rule else found


def older_rope(rule: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that stood for a rope rule before transformers 5."""
    if all(isinstance(inner, Mapping) for inner in rule.values()):
        full = older_rope(rule["full_attention"])
        local = rule.get("sliding_attention", {}).get("rope_theta")
        return full | ({"rope_local_base_freq": local} if local else {})
    top = {k: rule[k] for k in ("rope_theta", "partial_rotary_factor") if k in rule}
    scaling = {k: v for k, v in rule.items() if k not in (*top, "rope_type")}
    kind = rule.get("rope_type", "default")
    key = "type" if kind == "longrope" else "rope_type"
    return top | ({"rope_scaling": {key: kind, **scaling}} if kind != "default" or scaling else {})


def write_cases(folder: Path, names: Sequence[str], plugins: PluginManager) -> None:
    """Write cases.json and the arguments of each case's prompts, see `transformers_saver.py`."""
    cases = {}
    for name in names:
        with subject(plugins, name) as tiny:
            prompts, arrays = [], {}
            for i, example in enumerate(tiny.examples):
                prompts.append(list(example.prompt.tokens))
                arrays |= {f"{i}.{key}": values for key, values in example.reference.items()}
                if not tiny.decodes:
                    arrays[f"{i}.token_type_ids"] = np.array([tiny.kinds])
            np.savez(folder / f"{name}.npz", **arrays)
        cls, config = class_of(tiny.record), published(name, tiny.record)
        cases[name] = {"class": cls, "config": config, "std": STD, "prompts": prompts}
    (folder / "cases.json").write_text(json.dumps(cases))


def save(version: str, source: Path, folder: Path) -> None:
    """Run the saver in the environment of a version; a family without a file ended the process."""
    folder.mkdir()
    command = [python_of(default_root(), f"transformers-{version}"), SCRIPT, source, folder]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "HF_HUB_OFFLINE": "1"}
    with (folder / "log").open("w") as log:
        subprocess.run(command, env=environment, timeout=1800, stdout=log, stderr=log, check=False)


def compare(name: str, folder: Path, plugins: PluginManager) -> Outcome:
    """The outcome of a family that `save` wrote to a folder."""
    reason, outputs = folder / f"{name}.txt", folder / f"{name}.npz"
    if reason.exists():
        return Outcome(lacks=reason.read_text())
    if not outputs.exists():
        return Outcome(lacks="the process ended before it")
    tiny = Subject(plugins.get("architectures", name), None, folder / name, plugins)
    try:
        engine = tiny.engine()
        with np.load(outputs) as found:
            expected = {int(i): torch.from_numpy(logits) for i, logits in found.items()}
        off = [deviation(tiny.answer(engine, tiny.examples[i]), expected[i]) for i in expected]
        return Outcome(max(off))
    except Exception as error:  # the other families are still compared
        return Outcome(said=f"{type(error).__name__}: {error}")


def row(version: str, outcomes: Mapping[str, Outcome]) -> str:
    """A line of the table: how many families are equal, those that are not, and the skipped."""
    equal = [outcome.off for outcome in outcomes.values() if outcome.equal]
    skipped = [name for name, outcome in outcomes.items() if outcome.lacks]
    known = [name for name in outcomes if (name, version) in OWN_FAULTS]
    rest = [
        f"{name}: {outcome}"
        for name, outcome in outcomes.items()
        if not (outcome.equal or outcome.lacks or name in known)
    ]
    cells = (
        version,
        f"{len(equal)} (at most {max(equal, default=0):.0e})",
        ", ".join(known),
        ", ".join(rest),
        str(len(skipped)),
    )
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--versions", nargs="+", choices=VERSIONS, default=list(VERSIONS))
    parser.add_argument("--only", nargs="+", metavar="FAMILY", default=[])
    parser.add_argument("--table", action="store_true", help="one line per version only")
    args = parser.parse_args()
    plugins = installed_plugins()
    names = args.only or list(families(plugins))
    rows, good = [], True
    with tempfile.TemporaryDirectory() as made:
        write_cases(Path(made), names, plugins)
        for version in args.versions:
            save(version, Path(made), folder := Path(made, version))
            outcomes = {name: compare(name, folder, plugins) for name in names}
            rows.append(row(version, outcomes))
            good &= all(outcome.as_known(name, version) for name, outcome in outcomes.items())
            for name, outcome in outcomes.items() if not args.table else ():
                sign = "ok" if outcome.as_known(name, version) else "NO"
                print(f"{sign} {version:8} {name:24} {outcome}", flush=True)
    print("| version | equal | wrong itself | others | skipped |", "| --- " * 5 + "|", sep="\n")
    print(*rows, sep="\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
