"""Names: folders of diffusers and single files of Black Forest Labs are the same weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.architectures.flux import TINY
from ostro.architectures.flux.config import Config, TransformerConfig
from ostro.architectures.flux.names import bfl_transformer, bfl_vae, names
from ostro.core.errors import CheckpointError
from ostro.core.load.names import Pair, apply
from ostro.core.load.weights import weight_slots

convert = pytest.importorskip("diffusers.loaders.single_file_utils")

CONFIG = Config.from_hf(TINY)
BOTH = ("weight", "bias")
D = 3072
"""The width that diffusers' converter knows; tensors of one column are enough to see rows move."""


def sizes() -> Iterator[tuple[str, int]]:
    """The tensors of a flux1-dev.safetensors with one block of each kind, and their rows."""
    for name in ("time_in", "guidance_in", "vector_in"):
        yield from ((f"{name}.{layer}.{s}", D) for layer in ("in_layer", "out_layer") for s in BOTH)
    yield from ((f"{name}.{s}", D) for name in ("img_in", "txt_in") for s in BOTH)
    for stream in ("img", "txt"):
        block = f"double_blocks.0.{stream}"
        rows = {"mod.lin": 6 * D, "attn.qkv": 3 * D, "attn.proj": D, "mlp.0": 4 * D, "mlp.2": D}
        yield from ((f"{block}_{name}.{s}", n) for name, n in rows.items() for s in BOTH)
        yield from ((f"{block}_attn.norm.{x}_norm.scale", 128) for x in ("query", "key"))
    rows = {"modulation.lin": 3 * D, "linear1": 7 * D, "linear2": D}
    yield from ((f"single_blocks.0.{name}.{s}", n) for name, n in rows.items() for s in BOTH)
    yield from ((f"single_blocks.0.norm.{x}_norm.scale", 128) for x in ("query", "key"))
    rows = {"final_layer.linear": 64, "final_layer.adaLN_modulation.1": 2 * D}
    yield from ((f"{name}.{s}", n) for name, n in rows.items() for s in BOTH)


def ours(tensors: Mapping[str, Tensor], config: Config) -> dict[str, Tensor]:
    """As the model has them, under the names that diffusers would give them."""
    found, left = names(config).read(tensors)
    assert not left
    return {
        names(config).write(named.name).theirs: apply(named.transform, tensors[named.theirs])
        for named in found
    }


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("prefix", ["", "transformer.", "model.diffusion_model."])
def test_the_transformer_is_read_as_diffusers_converts_it(prefix: str) -> None:
    torch.manual_seed(0)
    file = {
        name: torch.randn(n) if name.endswith(("bias", "scale")) else torch.randn(n, 1)
        for name, n in sizes()
    }
    config = replace(CONFIG, transformer=TransformerConfig(num_layers=1, num_single_layers=1))
    found = ours({prefix + name: tensor for name, tensor in file.items()}, config)
    theirs = convert.convert_flux_transformer_checkpoint_to_diffusers(dict(file))
    assert same(found, {f"transformer.{name}": tensor for name, tensor in theirs.items()})


def written(pairs: Iterable[Pair], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the model as a file of theirs has them."""
    file: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        pair = next((p for p in pairs if p.match(name, write=True)), None)
        if pair is None:
            file[name] = tensor
            continue
        theirs = pair.match(name, write=True)
        assert theirs is not None
        value = pair.transform.write(tensor) if pair.transform else tensor
        file[theirs] = file[theirs] + value if theirs in file else value
    return file


@pytest.fixture(scope="module")
def single(dev: Any) -> dict[str, Tensor]:
    """The tiny FLUX as BFL's two files beside two folders of text encoders."""
    config = names(CONFIG)
    mine = {
        named.name: tensor
        for theirs, tensor in dev.tensors().items()
        for named in config.find(theirs, "hub")
    }
    pairs = [*bfl_transformer(CONFIG.transformer, ""), *bfl_vae(CONFIG.vae, "")]
    return written(pairs, mine)


def test_the_autoencoder_is_read_as_diffusers_converts_it(
    dev: Any, single: dict[str, Tensor]
) -> None:
    file = {name: t for name, t in single.items() if name.startswith(("encoder.", "decoder."))}
    assert "decoder.up.2.block.0.conv1.weight" in file
    assert file["encoder.mid.attn_1.q.weight"].shape == (16, 16, 1, 1)
    theirs = convert.convert_ldm_vae_checkpoint(dict(file), dict(dev.pipeline.vae.config))
    assert same({f"vae.{name}": t for name, t in theirs.items()}, ours(file, CONFIG))


def test_both_layouts_are_one_model(dev: Any, single: dict[str, Tensor]) -> None:
    folder, file = dev.load(), dev.load(single)
    assert "double_blocks.0.img_attn.qkv.weight" in single
    for (name, a), (_, b) in zip(folder.named_parameters(), file.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    for (name, a), b in zip(folder.named_modules(), file.modules(), strict=True):
        if hasattr(a, "fused") and hasattr(a, "storages"):
            assert torch.equal(a.whole.dequantize(), b.whole.dequantize()), name


def test_text_encoders_of_either_age_are_read(dev: Any) -> None:
    """Files of transformers before 5 have "text_model" in front, and T5's table twice."""
    older = {
        name.replace("text_encoder.", "text_encoder.text_model."): tensor
        for name, tensor in dev.tensors().items()
    }
    older["text_encoder.text_model.embeddings.position_ids"] = torch.arange(77)[None]
    older["text_encoder_2.encoder.embed_tokens.weight"] = older["text_encoder_2.shared.weight"]
    dev.load(older)


def test_every_name_is_written_as_diffusers_has_it(dev: Any) -> None:
    places = weight_slots(dev.load())
    mine = [slot.name if slot.kind == "tensor" else f"{slot.name}.weight" for slot in places]
    found = {names(CONFIG).write(name).theirs for name in mine}
    theirs = {name.replace("text_encoder.", "text_encoder.text_model.") for name in dev.tensors()}
    assert found == theirs


def test_a_part_too_many_is_named(dev: Any) -> None:
    tensors = dev.tensors() | {"transformer.double_blocks.0.img_attn.extra": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=r"left over: transformer\.double_blocks\.0"):
        dev.load(tensors)
