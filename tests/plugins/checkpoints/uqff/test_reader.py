"""The UQFF container: shards become one model, and what lies about itself is refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from ostro.core.errors import CheckpointError, ConfigError, ModelNotFound, OstroError, Unsupported
from ostro.core.load.open import open_container
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.checkpoints.uqff import RESIDUAL, claims
from ostro.plugins.checkpoints.uqff.reader import open_uqff

KEY = "model.layers.0.self_attn.k_proj"
Tensors = dict[str, Tensor]


def word(*values: int) -> Tensor:
    made = torch.tensor(values).to(torch.uint32)
    return made[0] if len(values) == 1 else made


def byte(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.uint8)


def version(major: int, minor: int, patch: int = 0) -> Tensors:
    parts = zip(("major", "minor", "patch"), (major, minor, patch), strict=True)
    return {f"uqff.version.{part}": word(n) for part, n in parts}


# Which files it claims, and which of them it opens.


def test_it_claims_what_is_its_own(put: Any, layer: Any, plugins: PluginManager) -> None:
    folder = put(layer("q4k"))
    assert claims(folder) and claims(folder / "q-0.uqff") and not claims(folder / RESIDUAL)
    assert not claims(folder.parent)
    assert open_container(folder, plugins).tensors[f"{KEY}.weight"].format == "Q4_K"
    save_file({"a": torch.ones(1)}, folder / "model.safetensors")
    assert not claims(folder), "weights that are not quantized mean themselves"
    assert open_container(folder / "q-0.uqff", plugins).tensors.keys() >= {f"{KEY}.weight"}


def test_ggml_blocks_are_what_a_gguf_file_would_hold(put: Any, layer: Any) -> None:
    folder = put(layer("q4k") | {f"{KEY}.bias": torch.ones(8)})
    container = open_uqff(folder)
    info = container.tensors[f"{KEY}.weight"]
    assert (info.shape, info.format, info.nbytes) == ((8, 256), "Q4_K", 8 * 144)
    assert container.read(f"{KEY}.weight").shape == (8, 144)
    assert container.tensors.keys() == {f"{KEY}.weight", f"{KEY}.bias", "model.norm.weight"}
    assert container.metadata == {"uqff.version": "1.2.0"}


def test_a_layer_may_be_split_over_two_shards(put: Any, layer: Any) -> None:
    tensors = layer("afq4")
    some, others = dict(list(tensors.items())[:3]), dict(list(tensors.items())[3:])
    alone = open_uqff(put(tensors))
    folder = put(some, others)
    for path in (folder, folder / "q-0.uqff", folder / "q-1.uqff"):
        container = open_uqff(path)
        assert container.tensors.keys() == alone.tensors.keys()
        for name in tensors:
            assert torch.equal(container.read(name).flatten(), tensors[name].flatten())


def test_floats_are_a_weight_and_no_more(put: Any, layer: Any) -> None:
    floats = {"lm_head.weight": torch.randn(4, 8), "lm_head.weight.format": byte(1)}
    container = open_uqff(put(floats))
    assert container.tensors.keys() == {"lm_head.weight", "model.norm.weight"}
    assert container.tensors["lm_head.weight"].format == "F32"


@pytest.mark.parametrize("format", ["q4k", "q8_0", "afq3", "mxfp4"])
def test_a_stack_is_shown_expert_by_expert(format: str, put: Any, layer: Any, read: Any) -> None:
    """Experts that are alike but for their order of rows."""
    one, key = layer(format), "model.layers.0.mlp.experts.up_proj"
    stacked = {}
    for name, tensor in one.items():
        suffix = name.removeprefix(f"{KEY}.")
        if suffix == "weight.shape":
            tensor = word(2, 8, 256)
        elif tensor.dim():
            rows = tensor.view(8, -1)
            tensor = torch.stack((rows, rows.flip(0)))
            tensor = tensor.flatten() if format.startswith("q") else tensor
        stacked[f"{key}.{suffix}"] = tensor
    alone = read(open_uqff(put(one))).dequantize()
    container = open_uqff(put(stacked | {f"{key}.bias": torch.ones(2, 8)}))
    assert f"{key}.bias" in container.tensors
    for i, rows in enumerate((alone, alone.flip(0))):
        mine = read(container, key=f"model.layers.0.mlp.experts.{i}.up_proj")
        assert torch.equal(mine.dequantize(), rows)


def test_several_quantizations_want_a_choice(put: Any, layer: Any) -> None:
    put(layer("q4k"), stem="q4k")
    folder = put(layer("afq4"), stem="afq4")
    with pytest.raises(
        CheckpointError, match=r"several quantizations: afq4, q4k; give the path of a file"
    ):
        open_uqff(folder)
    assert open_uqff(folder / "q4k-0.uqff").tensors[f"{KEY}.weight"].format == "Q4_K"
    assert open_uqff(folder / "afq4-0.uqff").tensors[f"{KEY}.weight"].format == "U32"


def test_absent_files_are_named(put: Any, layer: Any) -> None:
    folder = put(layer("q4k"), {"a.bias": torch.ones(1)}, {"b.bias": torch.ones(1)})
    report = {"outputs": [{"quant": "q", "shards": [f"q-{i}.uqff" for i in range(4)]}]}
    (folder / "uqff_report.json").write_text(json.dumps(report))
    with pytest.raises(
        CheckpointError, match=r"'q-3\.uqff': missing, but listed in uqff_report\.json"
    ):
        open_uqff(folder)
    (folder / "uqff_report.json").unlink()
    assert open_uqff(folder)
    (folder / "q-1.uqff").unlink()
    with pytest.raises(CheckpointError, match=r"q-1\.uqff: missing beside q-2\.uqff"):
        open_uqff(folder)
    (folder / "q-2.uqff").unlink()
    (folder / RESIDUAL).unlink()
    with pytest.raises(ModelNotFound, match=r"no residual\.safetensors in"):
        open_uqff(folder)
    with pytest.raises(ModelNotFound, match="no such file"):
        open_uqff(folder / "q-7.uqff")
    with pytest.raises(ModelNotFound, match="no such file"):
        open_uqff(folder / "other-0.uqff")


# Headers that lie. Each case is made of a good folder, which opens.

Spoil = Callable[[Tensors], Tensors]


def without(suffix: str) -> Spoil:
    return lambda t: {k: v for k, v in t.items() if k != f"{KEY}.{suffix}"}


def with_(suffix: str, tensor: Tensor) -> Spoil:
    return lambda t: {**t, f"{KEY}.{suffix}": tensor}


CASES: dict[str, tuple[str, Spoil, str]] = {
    "missing suffix": ("afq4", without("weight.bits"), r"weight\.format is Afq, but .* is missing"),
    "extra suffix": (
        "afq4",
        with_("weight.zeros", torch.ones(8, 4)),
        r"weight\.zeros is not a tensor",
    ),
    "no weight": ("q4k", without("weight"), r"is Gguf, but .*k_proj\.weight is missing;"),
    "no format": ("q4k", without("weight.format"), r"has no .*k_proj\.weight\.format, which names"),
    "unknown family": ("q4k", with_("weight.format", byte(7)), r"weight\.format is 7; UQFF has"),
    "format of 4 bytes": ("q4k", with_("weight.format", word(0)), r"is U32 \[\], expected U8 of 0"),
    "format is a vector": (
        "q4k",
        with_("weight.format", torch.zeros(1, dtype=torch.uint8)),
        r"is U8 \[1\], expected U8 of 0 dimensions",
    ),
    "another family": ("f8q8", with_("weight.format", byte(0)), r"is Gguf, but .* is missing"),
    "blocks that do not fit": (
        "q4k",
        with_("weight.shape", word(8, 512)),
        r"has 1152 bytes, which are not \[8, 512\] weights in Q4_K blocks of 256 in 144 bytes",
    ),
    "rows of no blocks": ("q4k", with_("weight.shape", word(16, 128)), "not .16, 128. weights"),
    "another ggml type": ("q4k", with_("weight.dtype", word(14)), "not .8, 256. weights in Q6_K"),
    "unknown ggml type": ("q4k", with_("weight.dtype", word(4)), r"weight\.dtype is 4; UQFF has"),
    "ggml type past UQFF's": ("q4k", with_("weight.dtype", word(23)), r"weight\.dtype is 23"),
    "a shape of no dimensions": (
        "q4k",
        with_("weight.shape", torch.zeros(0).to(torch.uint32)),
        "has 0 dimensions, expected 2, or 3 for experts",
    ),
    "a shape of 2^32 rows": (
        "q4k",
        with_("weight.shape", word(2**32 - 1, 2**32 - 256)),
        "has 1152 bytes, which are not",
    ),
    "a stack of other parts": (
        "afq4",
        with_("weight", torch.zeros(2, 8, 32).to(torch.uint32)),
        r"(scales|biases) has shape \[8, 4\] in a stack of 2",
    ),
    "too many experts": (
        "q4k",
        lambda t: {
            f"{KEY}.weight": torch.zeros(2 * 20000, dtype=torch.uint8),
            f"{KEY}.weight.dtype": word(1),
            f"{KEY}.weight.shape": word(20000, 1, 1),
            f"{KEY}.weight.format": byte(0),
        },
        "is a stack of 20000 experts",
    ),
    "rank 3 of F8Q8": (
        "f8q8",
        with_("weight.shape", word(2, 4, 256)),
        "3 dimensions, expected 2 for F8Q8",
    ),
    "rank 3 of HQQ": (
        "hqq4",
        with_("weight.shape", word(2, 4, 256)),
        "3 dimensions, expected 2 for Hqq",
    ),
    "rank 3 of FP8": (
        "fp8",
        with_("weight", torch.zeros(2, 4, 256).to(torch.float8_e4m3fn)),
        "3 dimensions, expected 2 for Fp8",
    ),
    "rank 1": (
        "fp8",
        with_("weight", torch.zeros(256).to(torch.float8_e4m3fn)),
        "1 dimensions, expected 2 for Fp8",
    ),
    "scales of another type": (
        "afq4",
        with_("weight.scales", torch.ones(8, 4, dtype=torch.int32)),
        r"weight\.scales is I32 \[8, 4\], expected F32 or F16 or BF16 in Afq",
    ),
    "a version of two numbers": (
        "q4k",
        lambda t: {**t, "uqff.version.major": word(1, 1)},
        r"version\.major is U32 \[2\], expected U32 of 0",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_inconsistent_layer_is_rejected(case: str, put: Any, layer: Any) -> None:
    format, spoil, message = CASES[case]
    good = layer(format)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_uqff(put(spoil(good)))
    assert str(caught.value).startswith("q-0.uqff: ") and len(str(caught.value)) < 500
    assert open_uqff(put(good))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (version(2, 0), r"uqff\.version\.major is UQFF 2\.0\.0, expected 1\.0 to 1\.2"),
        (version(0, 3), r"uqff\.version\.major is UQFF 0\.3\.0"),
        (version(1, 3), r"uqff\.version\.minor is UQFF 1\.3\.0, .* use a newer ostro"),
        ({}, r"is older than UQFF 1\.0 \(uqff\.version\.major is missing\); quantize the model"),
    ],
)
def test_versions_that_are_not_known_are_refused(
    bad: Tensors, message: str, put: Any, layer: Any
) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        open_uqff(put(layer("q4k"), version=bad))
    assert str(caught.value).startswith("q-0.uqff: ")
    for good in (version(1, 0), version(1, 1, 9), version(1, 2)):
        assert open_uqff(put(layer("q4k"), version=good))


def test_names_that_are_numbers_are_of_before_1_0(put: Any) -> None:
    folder = put({"0": torch.ones(4), "17": torch.ones(4)}, version={})
    with pytest.raises(CheckpointError, match=r"older than UQFF 1\.0 \(its tensors have numbers"):
        open_uqff(folder)


def test_what_is_in_two_files_is_refused(put: Any, layer: Any) -> None:
    good, other = layer("q4k"), layer("q4k", "lm_head")
    name = f"{KEY}.weight.dtype"
    with pytest.raises(CheckpointError, match=rf"q-1\.uqff: {name} is also in q-0\.uqff"):
        open_uqff(put(good, {**other, name: word(12)}))
    with pytest.raises(CheckpointError, match=rf"q-0\.uqff: {KEY}\.weight is also in residual"):
        open_uqff(put(good, other, residual={f"{KEY}.weight": torch.ones(8, 256)}))
    with pytest.raises(CheckpointError, match=r"q-1\.uqff: uqff\.version\.minor is 1, and 2 in"):
        open_uqff(put(good, {**other, **version(1, 1)}))
    assert open_uqff(put(good, {**other, **version(1, 2)})), "the same version may be said twice"


def test_files_that_are_cut_or_changed_never_surprise(
    put: Any, layer: Any, spoil: Any, tmp_path: Path
) -> None:
    """Whatever happens to its bytes, a shard opens or is refused in our words."""
    folder = put(layer("q2k") | layer("afq2", "lm_head"))
    file = folder / "q-0.uqff"
    good, opened = file.read_bytes(), 0
    for bad in spoil(good, 300):
        file.write_bytes(bad)
        try:
            opened += bool(open_uqff(folder).tensors)
        except OstroError as error:
            assert str(error)
    file.write_bytes(good)
    assert open_uqff(folder) and opened < 300


def test_opening_needs_no_torch(put: Any, layer: Any) -> None:
    folder = put(layer("q4k") | layer("mxfp4", "lm_head"))
    code = (
        "import pathlib, sys\n"
        "from ostro.plugins.checkpoints.uqff.reader import open_uqff\n"
        f"open_uqff(pathlib.Path({str(folder)!r}))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


# What config.json says beside what the hub's does.

LAYOUT = "_mistralrs_qk_rope_layout"
LLAMA = {"model_type": "llama", "num_attention_heads": 2, "num_key_value_heads": 2}


@pytest.mark.parametrize("format", ["q4k", "q8_0", "afq4", "mxfp4", "fp8"])
def test_interleaved_rows_lie_apart_again(format: str, put: Any, layer: Any, read: Any) -> None:
    """Of 2 heads of 4 rows, llama.cpp writes 0 2 1 3 and 4 6 5 7."""
    plain = read(open_uqff(put(layer(format)))).dequantize()
    config = {**LLAMA, LAYOUT: "adjacent"}
    container = open_uqff(put(layer(format) | {f"{KEY}.bias": torch.arange(8.0)}, config=config))
    assert container.config() == LLAMA
    order = [0, 2, 1, 3, 4, 6, 5, 7]
    assert torch.equal(read(container).dequantize(), plain[order])
    assert container.read(f"{KEY}.bias").tolist() == order
    assert container.read("model.norm.weight").tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({LAYOUT: "adjacent", "model_type": "glm4"}, f"{LAYOUT}='adjacent' in a 'glm4' model"),
        ({**LLAMA, LAYOUT: "sideways"}, f"{LAYOUT}='sideways'"),
        ({"_mistralrs_gdn_v_head_layout": "tiled"}, "_mistralrs_gdn_v_head_layout='tiled'"),
        ({"text_config": {"_mistralrs_gdn_v_head_layout": "tiled"}}, "v_head_layout='tiled'"),
        ({"_mistralrs_use_language_model_prefix": True}, "use_language_model_prefix=True"),
        ({"_mistralrs_of_tomorrow": [1]}, r"_mistralrs_of_tomorrow=\[1\]"),
    ],
)
def test_layouts_that_are_not_undone_are_refused(
    config: dict[str, Any], message: str, put: Any, layer: Any
) -> None:
    with pytest.raises(Unsupported, match=message):
        open_uqff(put(layer("q4k"), config=config))


def test_what_says_nothing_is_left_out(put: Any, layer: Any) -> None:
    private = {LAYOUT: "half_split", "_mistralrs_mtp": True}
    nested = {"text_config": {"a": 1, "_mistralrs_gdn_v_head_layout": "grouped"}}
    container = open_uqff(put(layer("q4k"), config={**LLAMA, **private, **nested}))
    assert container.config() == {**LLAMA, "text_config": {"a": 1}}


@pytest.mark.parametrize(
    ("format", "heads", "error", "message"),
    [
        ("hqq4", 2, Unsupported, r"has a format whose rows cannot be reordered"),
        ("f8q8", 2, Unsupported, r"has a format whose rows cannot be reordered"),
        ("q4k", 3, CheckpointError, r"k_proj\.weight has 8 rows, not a multiple of 2 \* 3 heads"),
        ("q4k", "2", ConfigError, "'2' is not a number of attention heads"),
    ],
)
def test_rows_that_cannot_be_split_are_rejected(
    format: str, heads: Any, error: type[OstroError], message: str, put: Any, layer: Any
) -> None:
    config = {**LLAMA, LAYOUT: "adjacent", "num_key_value_heads": heads}
    with pytest.raises(error, match=message):
        open_uqff(put(layer(format), config=config))
