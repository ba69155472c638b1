"""Models with vision or audio in two GGUF files, text and projector, as llama.cpp writes them.

Names and keys are those of its converter. LLaVA's projector is that of the older script, which
omits unused layers and exchanges ffn_up and ffn_down.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from torch import Tensor

from ostro.plugins.conformance.parity import Subject

TYPES = {
    "llava": ("llama", "mlp"),
    "gemma3_images": ("gemma3", "gemma3"),
    "qwen2_vl": ("qwen2vl", "qwen2vl_merger"),
    "qwen2_5_vl": ("qwen2vl", "qwen2.5vl_merger"),
    "qwen3_vl": ("qwen3vl", "qwen3vl_merger"),
    "qwen2_audio": ("qwen2", "qwen2a"),
}
"""The text's architecture and the projector's type."""

TOKENS = {
    "llava": ("<image>",),
    "gemma3_images": (
        *("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
        *("\n", "\n\n", "\n\n\n"),
    ),
    "qwen2_vl": ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"),
    "qwen2_5_vl": ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"),
    "qwen3_vl": ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"),
    "qwen2_audio": ("<|AUDIO|>",),
}
"""The first tokens of a vocabulary, from 1 on."""

PLACES = {
    r"visual\.merger\.(norm|ln_q)": "v.post_ln",
    r"visual\.merger\.(linear_fc1|mlp\.0)": "mm.0",
    r"visual\.merger\.(linear_fc2|mlp\.2)": "mm.2",
    r"multi_modal_projector\.linear_1": "mm.0",
    r"multi_modal_projector\.linear_2": "mm.2",
    r"multi_modal_projector\.linear(?=\.)": "mm.a.fc",
    r"multi_modal_projector\.mm_input_projection_weight": "mm.input_projection.weight",
    r"multi_modal_projector\.mm_soft_emb_norm": "mm.soft_emb_norm",
    r"visual\.patch_embed\.proj\.bias": "v.patch_embd.bias",
}
EXCHANGED = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
LEVEL = re.compile(r"visual\.deepstack_merger_list\.(\d+)\.(?:linear_)?(norm|fc1|fc2)(.*)")


def write_pair(made: Subject, folder: Path, text: str = "F32", projector: str = "F32") -> Path:
    """Write both files with matrices in these formats into a folder. Return the text's path."""
    arch, kind = TYPES[made.name]
    file = folder / "model.gguf"
    weights = {clean(name): weight.detach() for name, weight in made.reference.named_parameters()}
    words = {name: weight for name, weight in weights.items() if not seen(name)}
    write(file, arch, text_keys(made, arch), dict(text_tensors(words, made, arch)), text)
    tower = dict(tower_tensors({n: w for n, w in weights.items() if seen(n)}, made))
    keys = projector_keys(made, kind)
    write(folder / f"mmproj-{projector}.gguf", "clip", keys, tower, projector)
    return file


def clean(name: str) -> str:
    """Return a parameter's name in the converter."""
    name = re.sub(r"^(model\.)?language_model\.(model\.)?", "model.", name)
    return re.sub(r"^model\.(?=visual|vision_tower|audio_tower|multi_modal)", "", name)


def seen(name: str) -> bool:
    return name.startswith(("visual", "vision_tower", "audio_tower", "multi_modal"))


def rounded(made: Subject, text: str, projector: str) -> None:
    """Set a reference's weights to those of files in these formats."""
    for name, parameter in made.reference.named_parameters():
        kind = projector if seen(clean(name)) else text
        parameter.data = torch.from_numpy(
            gguf.quants.dequantize(*stored(parameter.detach(), kind)).copy()
        ).view(parameter.shape)


def stored(tensor: Tensor, kind: str) -> tuple[Any, GGMLQuantizationType]:
    """Return a tensor's bytes and type. Vectors and rows of partial blocks stay float32."""
    found = GGMLQuantizationType[kind]
    block, _ = gguf.GGML_QUANT_SIZES[found]
    if tensor.dim() < 2 or tensor.shape[-1] % block:
        found = GGMLQuantizationType.F32
    return gguf.quants.quantize(tensor.contiguous().numpy(), found), found


def write(
    file: Path, arch: str, keys: Mapping[str, Any], tensors: Mapping[str, Tensor], kind: str
) -> None:
    writer = GGUFWriter(file, arch)
    add = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in keys.items():
        add[type(value)](key, value)
    for name, tensor in tensors.items():
        data, raw = stored(tensor, kind)
        writer.add_tensor(name, data, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def text_keys(made: Subject, arch: str) -> dict[str, Any]:
    config = made.reference.config.get_text_config()
    rules = config.rope_parameters
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(rules.get("full_attention", rules)["rope_theta"]),
    }
    if head_dim := getattr(config, "head_dim", None):
        keys |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if arch == "gemma3":
        keys |= {"attention.sliding_window": config.sliding_window, "rope.scaling.factor": 8.0}
        keys["rope.scaling.type"] = "linear"
    if "mrope_section" in rules:
        keys["rope.dimension_sections"] = [*rules["mrope_section"], 0]
    marks = TOKENS[made.name]
    tokens = ["<pad>", *marks, *(f"word{i}" for i in range(len(marks) + 1, config.vocab_size))]
    return {f"{arch}.{key}": value for key, value in keys.items()} | {
        "tokenizer.ggml.tokens": tokens
    }


def text_tensors(
    weights: Mapping[str, Tensor], made: Subject, arch: str
) -> Iterator[tuple[str, Tensor]]:
    config = made.reference.config.get_text_config()
    number = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}[arch]
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in weights.items():
        part = name.split(".")[-2]
        if arch == "llama" and part in heads:
            halves = weight.unflatten(0, (heads[part], 2, -1))
            weight = halves.transpose(1, 2).flatten(0, 2)
        if arch == "gemma3" and part.endswith("norm"):
            weight = weight + 1
        yield names.get_name(name, (".weight", ".bias")), weight


def tower_tensors(weights: Mapping[str, Tensor], made: Subject) -> Iterator[tuple[str, Tensor]]:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)
    old = made.name == "llava"
    for name, weight in weights.items():
        name = re.sub(r"^vision_tower\.(?!vision_model)", "vision_tower.vision_model.", name)
        place = next((p for p in PLACES if re.match(p, name)), None)
        if name.endswith("patch_embed.proj.weight"):
            yield "v.patch_embd.weight", weight[:, :, 0]
            yield "v.patch_embd.weight.1", weight[:, :, 1]
        elif match := LEVEL.match(name):
            layer = made.reference.config.vision_config.deepstack_visual_indexes[int(match[1])]
            yield f"v.deepstack.{layer}.{match[2]}{match[3]}", weight
        elif place:
            shift = 1.0 if "soft_emb_norm" in name else 0.0
            yield re.sub(place, PLACES[place], name), weight + shift
        elif ".qkv." in name and made.name in ("qwen2_vl", "qwen2_5_vl"):
            for letter, part in zip("qkv", weight.chunk(3), strict=True):
                yield names.get_name(name.replace("qkv", letter), (".weight", ".bias")), part
        elif not (old and re.search(r"layers\.3\.|post_layernorm", name)):
            theirs = names.get_name(name, (".weight", ".bias"))
            if old:
                theirs = re.sub("ffn_up|ffn_down", lambda m: EXCHANGED[m[0]], theirs)
            yield theirs, weight[:, None] if re.search(r"conv\d\.bias", name) else weight


def projector_keys(made: Subject, kind: str) -> dict[str, Any]:
    config = made.reference.config
    width = config.get_text_config().hidden_size
    if made.name == "qwen2_audio":
        audio = config.audio_config
        return {
            "clip.projector_type": kind,
            "clip.has_audio_encoder": True,
            "clip.audio.projection_dim": width,
            "clip.audio.embedding_length": audio.d_model,
            "clip.audio.feed_forward_length": audio.encoder_ffn_dim,
            "clip.audio.block_count": audio.encoder_layers,
            "clip.audio.attention.head_count": audio.encoder_attention_heads,
            "clip.audio.num_mel_bins": audio.num_mel_bins,
        }
    sees = config.vision_config
    keys = {
        "projector_type": kind,
        "has_vision_encoder": True,
        "vision.projection_dim": 768 if kind == "mlp" else width,
        "vision.image_size": getattr(sees, "image_size", 560),
        "vision.patch_size": sees.patch_size,
        "vision.embedding_length": getattr(sees, "embed_dim", sees.hidden_size),
        "vision.feed_forward_length": getattr(sees, "intermediate_size", width),
        "vision.block_count": getattr(sees, "depth", 0) or sees.num_hidden_layers,
        "vision.attention.head_count": getattr(sees, "num_heads", 0) or sees.num_attention_heads,
        "vision.attention.layer_norm_epsilon": getattr(sees, "layer_norm_eps", 1e-6),
        "vision.image_mean": [0.4, 0.5, 0.6],
        "vision.image_std": [0.25, 0.3, 0.2],
    }
    more: dict[str, dict[str, Any]] = {
        "mlp": {"use_gelu": False, "vision.block_count": 3},
        "gemma3": {"use_gelu": True, "vision.projector.scale_factor": 2},
        "qwen2vl_merger": {},
        "qwen2.5vl_merger": {"use_silu": True, "vision.n_wa_pattern": 2},
        "qwen3vl_merger": {
            "use_gelu": True,
            "vision.spatial_merge_size": 2,
            "vision.is_deepstack_layers": [True, False, True],
        },
    }
    return {f"clip.{key}": value for key, value in {**keys, **more[kind]}.items()}
