"""X-LoRA folders of PEFT and mistral.rs, errors for invalid folders, and PEFT's weight numbers."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from peft.tuners.xlora.layer import XLoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor

from ostro import AdapterWeights, errors
from ostro.adapters.xlora.numbering import numbered
from ostro.core.adapters.loader import read_weights
from ostro.core.plugins.manager import PluginManager

WIDE, RANK = 8, 2
NAMES = ["model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj"]
Read = Callable[[Path], AdapterWeights]


@pytest.fixture(scope="session")
def read() -> Read:
    plugins = PluginManager()
    plugins.load()
    return lambda folder: read_weights(folder, plugins)


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def write_member(folder: Path, names: list[str], **config: Any) -> None:
    folder.mkdir(parents=True)
    said = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(said | config))
    tensors = {}
    for name in names:
        tensors[f"base_model.model.{name}.lora_A.weight"] = noise(RANK, WIDE)
        tensors[f"base_model.model.{name}.lora_B.weight"] = noise(WIDE, RANK)
    save_file(tensors, folder / "adapter_model.safetensors")


def write(
    folder: Path,
    *,
    tensors: Mapping[str, Tensor] | None = None,
    ordering: Mapping[str, Any] | None = None,
    foreign: bool = False,
    **config: Any,
) -> Path:
    """Write an X-LoRA of two members with a one-layer classifier; `foreign` uses the notation of
    mistral.rs.
    """
    for i, names in enumerate([NAMES[:1], NAMES]):
        write_member(folder / f"m{i}", names)
    said = {"hidden_size": WIDE, "adapters": {"0": "m0", "1": "m1"}}
    said |= {} if foreign else {"peft_type": "XLORA"}
    name, weights = ("adapter_config.json", "adapter_model.safetensors")
    layer = "base_model.internal_xlora_classifier.layers.0"
    if foreign:
        name, weights, layer = "xlora_config.json", "xlora_classifier.safetensors", "last"
    (folder / name).write_text(json.dumps(said | config))
    usual = {f"{layer}.weight": noise(2, WIDE), f"{layer}.bias": noise(2)}
    save_file(dict(usual if tensors is None else tensors), folder / weights)
    if ordering is not None:
        (folder / "ordering.json").write_text(json.dumps(ordering))
    return folder


def test_both_notations_say_the_same(tmp_path: Path, read: Read) -> None:
    ours, theirs = write(tmp_path / "a"), write(tmp_path / "b", foreign=True)
    hidden = noise(5, WIDE)
    found = [read(folder) for folder in (ours, theirs)]
    for each in found:
        assert each.kind == "xlora" and [len(m.weights) for m in each.members] == [1, 2]
        assert each.mixer is not None and each.mixer.layers == dict.fromkeys(sorted(NAMES), 0)
    first, second = (each.mixer.scalings(hidden) for each in found if each.mixer is not None)
    assert first.shape == (5, 1, 2) and torch.equal(first, second)
    held = load_file(ours / "adapter_model.safetensors")
    weight, bias = (t for _, t in sorted(held.items(), reverse=True))
    torch.testing.assert_close(first[:, 0], (hidden @ weight.T + bias).softmax(-1))


@pytest.mark.parametrize("relu", [False, True])
def test_an_xlora_config_says_whether_there_is_a_relu(
    relu: bool, tmp_path: Path, read: Read
) -> None:
    tensors = {"inner.0.weight": noise(3, WIDE), "last.weight": noise(2, 3)}
    keys: dict[str, Any] = {"use_bias": False, "xlora_depth": 2, "enable_softmax": False}
    found = read(
        write(tmp_path / "a", tensors=tensors, foreign=True, enable_relu_and_dropout=relu, **keys)
    )
    assert found.mixer is not None
    x = noise(5, WIDE) @ tensors["inner.0.weight"].T
    wanted = (x.relu() if relu else x) @ tensors["last.weight"].T
    torch.testing.assert_close(found.mixer.scalings(noise(5, WIDE))[:, 0], wanted)


def test_an_ordering_maps_members(tmp_path: Path, read: Read) -> None:
    tensors = {"last.weight": noise(4, WIDE), "last.bias": noise(4)}
    said = {"order": ["1", "0"], "layers": {NAMES[0]: 1, f"base_model.model.{NAMES[1]}": 0}}
    keys: dict[str, Any] = {"foreign": True, "layerwise_scalings": True, "tensors": tensors}
    found = read(write(tmp_path / "a", ordering=said, tgt_non_granular_index=3, **keys))
    assert found.mixer is not None and found.mixer.held_after == 3
    assert found.mixer.layers == {NAMES[0]: 1, NAMES[1]: 0}
    assert [len(member.weights) for member in found.members] == [2, 1]
    plain = read(write(tmp_path / "b", **keys))
    assert plain.mixer is not None and plain.mixer.layers == {NAMES[0]: 0, NAMES[1]: 1}
    assert plain.generation != found.generation


def test_names_that_are_numbers_go_by_these(tmp_path: Path, read: Read) -> None:
    found = read(write(tmp_path / "a", adapters={"10": "m1", "2": "m0"}))
    assert [len(member.weights) for member in found.members] == [1, 2]


def test_member_paths_may_be_siblings_or_subfolders(tmp_path: Path, read: Read) -> None:
    (tmp_path / "home").mkdir()
    folder = write(tmp_path / "home" / "a", adapters={"m0": "/gone/0", "m1": "../beside"})
    (folder / "m1").rename(tmp_path / "home" / "beside")
    assert [len(member.weights) for member in read(folder).members] == [1, 2]


@pytest.mark.parametrize("path", ["../../far", "/etc", "..", ".", "\0", "m0/../../../far", "loop"])
def test_members_elsewhere_are_forbidden(path: str, tmp_path: Path, read: Read) -> None:
    write_member(tmp_path / "far", NAMES)
    folder = write(tmp_path / "home" / "a", adapters={"0": "m0", "1": path})
    (folder / "loop").symlink_to("loop")
    with pytest.raises(errors.AdapterForbidden):
        read(folder)


def test_members_have_none_themselves(tmp_path: Path, read: Read) -> None:
    write(tmp_path / "b", adapters={"0": "m0", "1": "../a"})
    with pytest.raises(errors.AdapterError, match="one level deep"):
        read(write(tmp_path / "a", adapters={"0": "m0", "1": "../b"}))


LAYER = "internal_xlora_classifier.layers.0"
GOOD = {f"{LAYER}.weight": noise(2, WIDE), f"{LAYER}.bias": noise(2)}


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"scaling_pass_value": 0.5}, "scaling_pass_value=0.5 must be 0"),
        ({"top_k_lora": 3}, "exceeds the number of members, 2"),
        ({"top_k_lora": 0}, "top_k_lora=0"),
        ({"softmax_temperature": 0}, "softmax_temperature=0"),
        ({"softmax_temperature": "hot"}, "softmax_temperature='hot'"),
        ({"global_scaling_weight": float("nan")}, "global_scaling_weight"),
        ({"enable_softmax": 1}, "enable_softmax=1"),
        ({"hidden_size": None}, "hidden_size=None"),
        ({"hidden_size": 16}, "expected 16 columns"),
        ({"xlora_depth": 2}, "the classifier has 1 layers.*PEFT 0.21"),
        ({"adapters": {}}, "adapters={}"),
        ({"adapters": {"0": 7}}, "adapters="),
        ({"adapters": {"0": "m0"}}, "gives 2 scalings"),
        ({"adapters": {"0": "m0", "1": "gone"}}, "not a folder"),
        ({"layerwise_scalings": True}, "scalings for 1 weights, the members change 2"),
        ({"tensors": {}}, "the classifier has 0 layers"),
        ({"tensors": GOOD | {"other": noise(2)}}, "'other' does not belong"),
        ({"tensors": GOOD | {f"{LAYER}.bias": torch.tensor([1.0, float("nan")])}}, "NaN"),
        ({"tensors": GOOD | {f"{LAYER}.bias": noise(3)}}, "layer 0"),
        ({"tensors": {f"{LAYER}.weight": noise(2, WIDE)}}, "with a bias"),
        ({"tensors": GOOD | {f"{LAYER}.weight": torch.ones(2, WIDE).int()}}, "is I32"),
        ({"tensors": GOOD | {f"x.{LAYER}.bias": noise(2)}}, "comes twice"),
        ({"ordering": {"order": ["0", "2"]}}, "other members than the ordering"),
        ({"ordering": {"order": "0"}}, "order must be the list"),
    ],
)
def test_what_is_wrong_is_named(
    keys: dict[str, Any], match: str, tmp_path: Path, read: Read
) -> None:
    with pytest.raises(errors.AdapterError, match=match):
        read(write(tmp_path / "a", **keys))


@pytest.mark.parametrize(
    ("config", "names", "match"),
    [
        ({"alora_invocation_tokens": [1, 2]}, NAMES, "activated LoRA"),
        ({"modules_to_save": ["lm_head"]}, ["lm_head"], "X-LoRA"),
    ],
)
def test_members_that_cannot_be_mixed(
    config: dict[str, Any], names: list[str], match: str, tmp_path: Path, read: Read
) -> None:
    folder = write(tmp_path / "a", adapters={"0": "m0", "1": "m2"})
    write_member(folder / "m2", NAMES, **config)
    if names != NAMES:
        file = folder / "m2" / "adapter_model.safetensors"
        save_file(load_file(file) | {"base_model.model.lm_head.weight": noise(4, WIDE)}, file)
    with pytest.raises(errors.AdapterError, match=match):
        read(folder)


def test_a_weight_of_unknown_place_asks_for_an_ordering() -> None:
    with pytest.raises(errors.AdapterError, match=r"put an ordering\.json beside it"):
        numbered(["model.layers.0.mixer.in_proj"], 1, {})
    with pytest.raises(errors.AdapterError, match="has None as the number of b"):
        numbered(["a", "b"], 2, {"a": 0})


@pytest.mark.sample(1)
@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Phi3", "Gemma2", "Phi", "Starcoder2"])
@pytest.mark.filterwarnings("ignore::UserWarning:peft")
def test_weights_are_numbered_as_peft_numbers_them(family: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 11, "vocab_size": 40, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 24}
    config = getattr(transformers, f"{family}Config")(
        **sizes, **heads, use_cache=False, pad_token_id=0
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        some = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear"))
        some.save_pretrained(str(tmp_path))
        model = some.unload()
        settings = peft.XLoraConfig(
            task_type="CAUSAL_LM", hidden_size=16, adapters={"0": str(tmp_path)}
        )
        mixed: Any = peft.get_peft_model(model, settings)
    theirs = {}
    for name, module in mixed.base_model.lora_model.model.named_modules():
        layer = getattr(module.forward, "__self__", None)
        if isinstance(layer, XLoraLayer):
            theirs[name] = layer.layer_number
    assert len(theirs) > 11
    assert numbered(sorted(theirs), len(theirs), {}) == theirs


def test_the_plugin_is_listed() -> None:
    plugins = PluginManager()
    plugins.load()
    assert "xlora" in plugins.collect("adapters")


@pytest.mark.parametrize("number", [-1, 2])
def test_numbers_of_weights_are_below_their_count(number: int) -> None:
    assert numbered(["a", "b"], 2, {"a": 1, "b": 0}) == {"a": 1, "b": 0}
    with pytest.raises(errors.AdapterError, match="expected a number below 2"):
        numbered(["a", "b"], 2, {"a": 0, "b": number})
