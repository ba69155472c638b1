"""Save tiny models with the transformers of this environment; `transformers_versions.py` runs it.

    python tests/peers/transformers_saver.py SOURCE FOLDER

SOURCE has cases.json and, for each of its cases, NAME.npz with the arguments of the model's
prompts. Writes FOLDER/NAME, a checkpoint with random weights, and FOLDER/NAME.npz, the outputs of
the prompts that this version runs, by index, in float32; if there is none, FOLDER/NAME.txt has the
reason.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from ostro.plugins.conformance.weights import reinitialise


def main() -> None:
    source, folder = map(Path, sys.argv[1:])
    for name, case in json.loads((source / "cases.json").read_text()).items():
        try:
            save(case, source / f"{name}.npz", folder / name)
        except Exception as error:  # a class may raise any exception; the others are still saved
            said = " ".join(f"{type(error).__name__}: {error}".split())
            (folder / f"{name}.txt").write_text(said[:300])


def save(case: Mapping[str, Any], inputs: Path, folder: Path) -> None:
    cls = getattr(transformers, case["class"], None)
    if cls is None:
        raise LookupError(f"it has no {case['class']}")
    model = cls(cls.config_class(**case["config"])).eval().float()
    reinitialise(model, case["std"])
    outputs: dict[str, np.ndarray[Any, Any]] = {}
    first: Exception | None = None
    with np.load(inputs) as arrays:
        for i, prompt in enumerate(case["prompts"]):
            try:
                outputs[str(i)] = run(model, prompt, arrays, f"{i}.")
            except Exception as error:  # 4.46 takes no text alone, others no video
                first = first or error
    if not outputs and first is not None:
        raise first
    model.save_pretrained(folder)
    np.savez(folder.parent / f"{folder.name}.npz", **outputs)  # type: ignore[arg-type]


@torch.inference_mode()
def run(
    model: Any, prompt: Mapping[str, Any], arrays: Mapping[str, Any], prefix: str
) -> np.ndarray[Any, Any]:
    """The logits [T, V] of a prompt, its states [T, d] or scores [1, labels]."""
    takes = inspect.signature(model.forward).parameters
    media = {
        name: torch.from_numpy(values)
        for key, values in arrays.items()
        if key.startswith(prefix) and (name := key.removeprefix(prefix)) in takes
    }
    if "attention_mask" in takes and "decoder_input_ids" not in takes:
        media.setdefault("attention_mask", torch.ones(1, len(prompt), dtype=torch.int64))
    ids = "decoder_input_ids" if "decoder_input_ids" in takes else "input_ids"
    out = model(**{ids: torch.tensor([prompt])}, **media)
    states = out.logits if hasattr(out, "logits") else out.last_hidden_state
    found: np.ndarray[Any, Any] = (states[0] if states.dim() == 3 else states).float().numpy()
    return found


if __name__ == "__main__":
    main()
