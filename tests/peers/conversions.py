"""Inputs for llama.cpp's converter: a tiny model of each architecture, with a tokenizer."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sentencepiece import SentencePieceTrainer
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))

from tiny.model import END, START, TEXT, make_tokenizer

from ostro.architectures.idefics3 import TINY as IDEFICS
from ostro.architectures.phimoe import TINY as PLUGIN_PHIMOE
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.parity import Subject

VOCABULARY = 320
"""The vocabulary size of tiny models, enough for a tokenizer of single bytes."""


@dataclass(frozen=True)
class Case:
    """An architecture by its record, and how to make the model folder for the converter.

    changes: fields of the text config that differ from the tiny one; fields that GGUF files cannot
    store have the value that such files imply. others: the same for fields outside of the text
    config. stated: fields of published config.json files that transformers does not save. media:
    the preprocessor_config.json of a model with media; a projector is converted as well. change:
    a modification of the folder or of the reference. options: further options of the converter.
    asked: the architecture to load the file as. refused: the expected error of an unsupported case.
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str = "bytes"
    stated: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    media: Mapping[str, Any] | None = None
    change: Callable[[Subject], None] | None = None
    options: tuple[str, ...] = ()
    asked: str | None = None
    refused: str = ""

    def shape(self, plugins: PluginManager, size: str = "tiny") -> dict[str, Any]:
        """The config, tiny or wide; `changes` apply to its text config, if it has one."""
        tiny = dict(getattr(plugins.get("architectures", self.name).conformance, size))
        text = tiny.get("text_config", tiny)
        sized = {"vocab_size": VOCABULARY} if "vocab_size" in text else {}
        text = {**text, **sized, **self.changes}
        if "text_config" not in tiny:
            return text
        for name, said in self.others.items():
            if not isinstance(said, Mapping):
                tiny[name] = said
            elif tiny[name] is not None:  # a part that the wide config lacks stays out
                tiny[name] = {**tiny[name], **said}
        return {**tiny, "text_config": text}

    def prepare(self, tiny: Subject) -> None:
        """Add the files and fields that the converter requires to a saved model."""
        TOKENIZERS[self.tokenizer](tiny.folder)
        if self.change:
            self.change(tiny)
        config = tiny.folder / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | dict(self.stated)))
        if self.media is not None:
            (tiny.folder / "preprocessor_config.json").write_text(json.dumps(self.media))


def name_text(tiny: Subject) -> None:
    """Write the text's class, as published files of Idefics 3 and SmolVLM have it."""
    file = tiny.folder / "config.json"
    config = json.loads(file.read_text())
    config["text_config"]["architectures"] = ["VLlama3ForCausalLM"]
    file.write_text(json.dumps(config))


def write_bytes(folder: Path) -> None:
    make_tokenizer().save(str(folder / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": START, "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))


def write_glm_bytes(folder: Path) -> None:
    """As `write_bytes`, with the control tokens that the converter expects of GLM."""
    write_bytes(folder)
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in GLM])
    tokenizer.save(str(folder / "tokenizer.json"))


RANKS = f"""
class Tokenizer:
    mergeable_ranks = {{bytes([i]): i for i in range(256)}} | {{b"th": 256}}
    special_tokens = {{"<|end|>": 257}}
    vocab_size = {VOCABULARY}

    @classmethod
    def register_for_auto_class(cls, *args):
        pass

    @classmethod
    def from_pretrained(cls, *args, **more):
        return cls()
"""
"""The members of Hunyuan's tokenizer class that the converter reads."""


def write_ranks(folder: Path) -> None:
    """As `write_bytes`, for the converter with a tokenizer class in the folder, as in Hunyuan's."""
    write_bytes(folder)
    (folder / "tokenization.py").write_text(RANKS)
    named = {"auto_map": {"AutoTokenizer": ["tokenization.Tokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))


def write_marked_bytes(folder: Path, marks: Sequence[str] = ()) -> None:
    """As `write_bytes`, with the media placeholders first, at their ids in tiny configs."""
    write_bytes(folder)
    make_tokenizer(marks or MARKS).save(str(folder / "tokenizer.json"))


def write_fallback(folder: Path, media: Sequence[str] = (), rows: int = VOCABULARY) -> None:
    """A BPE of characters and of bytes for all others, as in Gemma 4; `rows` tokens."""
    marks = ["<pad>", *media, END, START]
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    letters = [chr(i) for i in range(ord("a"), ord("z") + 1)]
    pieces = [*marks, *bytes_, *letters, "\u2581", "th", "the"]
    pieces += [f"<unused{i}>" for i in range(rows - len(pieces))]
    ids = {text: i for i, text in enumerate(pieces)}
    merges = [("t", "h"), ("th", "e")]
    tokenizer = FastTokenizer(models.BPE(ids, merges, byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback()]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in marks])
    tokenizer.save(str(folder / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": START, "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))


def write_marked_fallback(folder: Path) -> None:
    """As `write_fallback`, with the tokens of media first, at their ids in tiny configs."""
    write_fallback(folder, GEMMA4)


def write_pieces(folder: Path, **more: Any) -> None:
    """A unigram tokenizer of word pieces, as in Gemma and T5."""
    file = str(folder / "tokenizer")
    quiet: dict[str, Any] = {"minloglevel": 2, "hard_vocab_limit": False, **more}
    lines = iter(TEXT * 20)
    SentencePieceTrainer.train(sentence_iterator=lines, model_prefix=file, vocab_size=64, **quiet)


def write_bpe_pieces(folder: Path) -> None:
    """As `write_pieces`, under the file name of XLM-RoBERTa."""
    write_pieces(folder)
    (folder / "tokenizer.model").rename(folder / "sentencepiece.bpe.model")
    config = {"tokenizer_class": "XLMRobertaTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_marked_pieces(folder: Path) -> None:
    """As `write_pieces`, with image and newline tokens first, at their ids in tiny configs."""
    write_pieces(folder, user_defined_symbols=[*SQUARES, *LINES], bos_id=7, eos_id=8)


def write_words(folder: Path) -> None:
    marks = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    words = dict.fromkeys(word for line in TEXT for word in line.split())
    (folder / "vocab.txt").write_text("\n".join((*marks, *words)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))


MARKS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|AUDIO|>")
GLM = ("[gMASK]", "<|user|>", "<|endoftext|>", "<|observation|>")
GEMMA4 = (
    *("<|image|>", "<|video|>", "<|audio|>", "<|image>", "<image|>"),
    *("<|audio>", "<audio|>"),
)
SQUARES = ("<image_soft_token>", "<start_of_image>", "<end_of_image>")
LINES = ("\n", "\n\n", "\n\n\n")
TOKENIZERS: Mapping[str, Callable[[Path], None]] = {
    "bytes": write_bytes,
    "glm bytes": write_glm_bytes,
    "fallback": write_fallback,
    "marked fallback": write_marked_fallback,
    "marked bytes": write_marked_bytes,
    "idefics bytes": partial(write_marked_bytes, marks=("<image>", *IDEFICS["image_marks"])),
    "pixtral bytes": partial(write_marked_bytes, marks=("[IMG]", "[IMG_BREAK]", "[IMG_END]")),
    "marked pieces": write_marked_pieces,
    "bpe pieces": write_bpe_pieces,
    "pieces": write_pieces,
    "ranks": write_ranks,
    "words": write_words,
}


def add_glm_tokens(tiny: Subject) -> None:
    """Add the special tokens that the converter looks up to the tokenizer."""
    file = tiny.folder / "tokenizer.json"
    stated = json.loads(file.read_text())
    free = len(stated["added_tokens"]) + len(stated["model"]["vocab"])
    for id, mark in enumerate(("<|endoftext|>", "<|user|>"), free):
        stated["added_tokens"].append(stated["added_tokens"][0] | {"id": id, "content": mark})
    file.write_text(json.dumps(stated))


def guess(tiny: Subject) -> None:
    """Add a multi-token prediction layer, as in published Qwen3-Next files. Its values are
    arbitrary, because ostro ignores the layer.
    """
    tensors = load_file(tiny.folder / "model.safetensors")
    (attends, *_) = {name.partition(".self_attn.")[0] for name in tensors if ".self_attn." in name}
    more: dict[str, Tensor] = {
        name.replace(attends, "mtp.layers.0"): tensor
        for name, tensor in tensors.items()
        if name.startswith(f"{attends}.")
    }
    d = tiny.reference.config.hidden_size
    more["mtp.fc.weight"] = torch.ones(d, 2 * d)
    for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        more[f"mtp.{norm}.weight"] = torch.ones(d)
    save_file(more, tiny.folder / "model-mtp.safetensors", {"format": "pt"})


def add_mtp_layer(tiny: Subject) -> None:
    """Add a multi-token prediction layer after the last layer, as in published GLM files. Its
    values are arbitrary, because ostro ignores the layer.
    """
    file, config = tiny.folder / "model.safetensors", tiny.reference.config
    last, d = config.num_hidden_layers - 1, config.hidden_size
    source, target = f"model.layers.{last}.", f"model.layers.{last + 1}."
    tensors = load_file(file)
    tensors |= {
        name.replace(source, target): tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith(source)
    }
    tensors[f"{target}eh_proj.weight"] = torch.ones(d, 2 * d)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{target}{norm}.weight"] = torch.ones(d)
    for table in ("embed_tokens", "shared_head.head"):
        tensors[f"{target}{table}.weight"] = torch.ones(config.vocab_size, d)
    save_file(tensors, file, {"format": "pt"})


def list_per_layer(tiny: Subject) -> None:
    """State the width and the number of experts for each layer, as published Hunyuan files do."""
    file = tiny.folder / "config.json"
    config = json.loads(file.read_text())
    layers = config["num_hidden_layers"]
    config["moe_intermediate_size"] = [config["intermediate_size"]] * layers
    config["num_shared_expert"] = [1] * layers
    file.write_text(json.dumps(config))


def halve(*ends: str) -> Callable[[Subject], None]:
    """Round weights that end in `ends` to float16, which the converter uses for them regardless of
    its options, and rename the tower's weights to their published names.
    """

    def change(tiny: Subject) -> None:
        file = tiny.folder / "model.safetensors"
        tower = re.compile(r"^vision_tower\.(?!vision_model\.)")
        tensors = {
            tower.sub("vision_tower.vision_model.", name): (
                tensor.half().float() if name.endswith(ends) else tensor
            )
            for name, tensor in load_file(file).items()
        }
        save_file(tensors, file, {"format": "pt"})
        for name, parameter in tiny.reference.named_parameters():
            if name.endswith(ends):
                parameter.data = parameter.data.half().float()

    return change


def pack(tiny: Subject) -> None:
    """Replace the experts of gpt-oss by MXFP4 experts of random bytes, as in published files."""
    from transformers import GptOssForCausalLM, Mxfp4Config

    file, generator = tiny.folder / "model.safetensors", torch.Generator().manual_seed(0)
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, k, n = tensors.pop(name).shape
        scales = torch.randint(122, 125, (experts, n, k // 32), generator=generator)
        blocks = torch.randint(0, 256, (*scales.shape, 16), generator=generator)
        tensors[f"{name}_scales"] = scales.to(torch.uint8)
        tensors[f"{name}_blocks"] = blocks.to(torch.uint8)
    save_file(tensors, file, {"format": "pt"})
    config = tiny.folder / "config.json"
    said = {"quantization_config": {"quant_method": "mxfp4"}}
    config.write_text(json.dumps(json.loads(config.read_text()) | said))
    unpacked: Any = GptOssForCausalLM.from_pretrained(
        tiny.folder, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.float32
    )
    tiny.reference = unpacked.eval()


def turn(tiny: Subject) -> None:
    """Transpose the stacked experts of a saved model to the layout of the hub's files."""
    file = tiny.folder / "model.safetensors"
    ends = ("experts.gate_up_proj", "experts.down_proj")
    tensors = {
        name: tensor.mT.contiguous() if name.endswith(ends) else tensor
        for name, tensor in load_file(file).items()
    }
    save_file(tensors, file, {"format": "pt"})


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LATENT = {"rope_parameters": {**YARN, "mscale": 0.8, "mscale_all_dim": 0.8}}
LITE = {
    "q_lora_rank": None,
    "topk_method": "greedy",
    "n_group": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
MTP = {"num_nextn_predict_layers": 1}
LEADING = {"mlp_layer_types": ["dense", "sparse", "sparse"]}
DENSE = {"mlp_only_layers": [], "norm_topk_prob": True}
ALL_SPARSE = {"mlp_only_layers": [], "use_sliding_window": False}
SCALED = {"query_pre_attn_scalar": 16}
NORMED = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.25, 0.3, 0.2]}
WINDOWS = {"vision_config": {"patch_size": 28, "window_size": 112}}
LEVELS = {"vision_config": {"deepstack_visual_indexes": [0, 2]}}
FAR = {"relative_attention_max_distance": 128}
UNKNOWN = "not supported"
XVERSE = {"architectures": ["XverseForCausalLM"], "model_type": "xverse"}
NANBEIGE = {"architectures": ["NanbeigeForCausalLM"], "model_type": "nanbeige"}
UNBIASED = {"attention_bias": False, "mlp_bias": False}
PHI4_MINI = {"sliding_window": None, "tie_word_embeddings": True}
PHI3_4K = {
    "sliding_window": None,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 4096,
    },
}
OLMO3 = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {**YARN, "attention_factor": 0.1 * math.log(4.0) + 1.0},
}
"""llama.cpp ignores the key of the attention factor and uses this value."""

SCALE = math.sqrt(1 + math.log(256 / 32) / math.log(32))
"""The factor of longrope that the converter computes from the context lengths of phimoe."""

PHIMOE = {
    "router_jitter_noise": 0.01,
    "rope_parameters": {
        **PLUGIN_PHIMOE["rope_parameters"],
        "short_mscale": SCALE,
        "long_mscale": SCALE,
    },
}
NO_ROPE = {"use_sliding_window": False, "no_rope_layer_interval": 4, "num_hidden_layers": 5}

UNLIMITED = {"time_step_limit": [0.0, float("inf")]}
NO_EXPERTS = {
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "intermediate_size": 256,
    "shared_intermediate_size": 256,
}
PUBLISHED = {"layer_types": ["mamba", "attention", "mamba"]}

EPSILON = {"layer_norm_eps": 1e-5}
ROBERTA = {"architectures": ["RobertaModel"], "model_type": "roberta"}
PADDED = {"pad_token_id": 1}

CASES = {
    "llama": Case("llama"),
    "llama, tied": Case("llama", {"tie_word_embeddings": True}),
    "llama, biased": Case("llama", {"attention_bias": True}),
    "llama 3": Case("llama", {"rope_parameters": LLAMA3}),
    "llama, fused qkv": Case("llama", options=("--fuse-qkv",), refused="blk.0.attn_qkv.weight"),
    "xverse": Case("llama_variants", {"num_key_value_heads": 4, "vocab_size": 302}, stated=XVERSE),
    "nanbeige": Case("llama_variants", stated=NANBEIGE),
    "internlm3": Case("internlm3", UNBIASED, "pieces"),
    "ernie4.5": Case("ernie4_5", {"use_bias": False}, "pieces"),
    "olmo2": Case("olmo2"),
    "olmo3": Case("olmo3", {"rope_parameters": OLMO3}),
    "glm": Case("glm", {"max_position_embeddings": 64}, change=add_glm_tokens),
    "glm4": Case("glm4", change=add_glm_tokens),
    "seed-oss": Case("seed_oss", {"attention_out_bias": False}),
    "hunyuan dense": Case("hunyuan_v1_dense", {"max_position_embeddings": 32768}),
    "hunyuan moe": Case(
        "hunyuan_v1_moe",
        {"rope_parameters": LITE["rope_parameters"], "moe_topk": [2, 2]},
        "ranks",
        change=list_per_layer,
    ),
    "phi3": Case("phi3", PHI3_4K, "pieces"),
    "phi3, longrope": Case("phi3", PHI4_MINI, "pieces"),
    "mistral": Case("mistral", {"sliding_window": None}),
    "mixtral": Case("mixtral", asked="mixtral"),
    "qwen2": Case("qwen2", {"use_sliding_window": False}),
    "qwen3": Case("qwen3"),
    "qwen3, yarn": Case("qwen3", {"rope_parameters": YARN}),
    "qwen3 moe": Case("qwen3_moe", DENSE),
    "qwen2 moe": Case("qwen2_moe", ALL_SPARSE),
    "olmoe": Case("olmoe", {"clip_qkv": None, "num_key_value_heads": 4}),
    "qwen3 next": Case("qwen3_next", DENSE, change=guess),
    "qwen3 next, no mtp": Case("qwen3_next", DENSE, options=("--no-mtp",)),
    "qwen3 next, fused": Case("qwen3_next", DENSE, change=guess, options=("--fuse-gate-up-exps",)),
    "qwen3.5": Case("qwen3_5", change=guess),
    "qwen3.5 moe": Case("qwen3_5_moe", change=guess),
    "smollm3": Case("smollm3", NO_ROPE),
    "granite": Case("granite"),
    "granite moe": Case("granitemoe"),
    "granite moe, no shared mlp": Case("granitemoe", {"shared_intermediate_size": 0}),
    "granite hybrid": Case("granitemoehybrid", UNLIMITED, stated=PUBLISHED),
    "granite hybrid, dense": Case(
        "granitemoehybrid",
        {**UNLIMITED, **NO_EXPERTS},
        stated=PUBLISHED,
    ),
    "granite hybrid, attention only": Case(
        "granitemoehybrid",
        {
            **UNLIMITED,
            **NO_EXPERTS,
            "position_embedding_type": "rope",
            "layer_types": ["full_attention"] * 3,
        },
        stated={"layer_types": ["attention"] * 3},
    ),
    "bamba": Case("bamba", {**UNLIMITED, "mamba_proj_bias": False}, stated={"attn_rotary_emb": 8}),
    "phimoe": Case("phimoe", PHIMOE, "pieces", {"architectures": ["PhiMoEForCausalLM"]}),
    "phi": Case("phi"),
    "phi, fused qkv": Case("phi", options=("--fuse-qkv",)),
    "starcoder2": Case("starcoder2", {"sliding_window": None}),
    "starcoder2, fused qkv": Case("starcoder2", {"sliding_window": None}, options=("--fuse-qkv",)),
    "gemma": Case("gemma", tokenizer="pieces"),
    "gemma2": Case("gemma2", SCALED, "pieces"),
    "gemma3": Case("gemma3", SCALED, "pieces"),
    "gemma4": Case("gemma4", {"vocab_size_per_layer_input": VOCABULARY}, "fallback"),
    "gemma4 with images": Case(
        "gemma4_images",
        {"vocab_size_per_layer_input": VOCABULARY, "max_position_embeddings": 2048},
        "marked fallback",
        others={
            "vision_config": {"pooling_kernel_size": 3, "position_embedding_size": 512},
            "audio_config": {"attention_chunk_size": 12, "attention_context_left": 13},
        },
        media={"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0]},
    ),
    "gemma4, experts": Case("gemma4_moe", tokenizer="fallback", asked="gemma4"),
    "embeddinggemma": Case("embeddinggemma", SCALED, "pieces", {"sliding_window": 14}),
    "gpt-oss": Case("gpt_oss", {"swiglu_limit": 7.0}),
    "gpt-oss, mxfp4": Case("gpt_oss", {"swiglu_limit": 7.0}, change=pack),
    "deepseek v2": Case("deepseek_v2", LATENT),
    "deepseek v2 lite": Case("deepseek_v2", LITE),
    "deepseek v3": Case("deepseek_v3", LATENT, stated={"scoring_func": "sigmoid"}),
    "deepseek v3, unsaid": Case("deepseek_v3", LATENT),
    "glm4 moe": Case("glm4_moe", tokenizer="glm bytes"),
    "glm4 moe, mtp": Case(
        "glm4_moe", {"use_qk_norm": False}, "glm bytes", stated=MTP, change=add_mtp_layer
    ),
    "glm4 moe lite": Case(
        "glm4_moe_lite",
        {**LATENT, **LEADING},
        "glm bytes",
        stated={**MTP, "first_k_dense_replace": 1, "scoring_func": "sigmoid"},
        change=add_mtp_layer,
    ),
    "minimax m2": Case("minimax_m2", stated={"scoring_func": "sigmoid", "rotary_dim": 8}),
    "mamba2": Case("mamba2", {"use_bias": False, **UNLIMITED}),
    "lfm2": Case("lfm2", {"conv_bias": False}),
    "lfm2 moe": Case("lfm2_moe", {"conv_bias": False, "routed_scaling_factor": 1.0}),
    "bert": Case("bert", tokenizer="words"),
    "bert, classifier": Case(
        "bert_classifier", {"num_labels": 3}, "words", asked="bert_classifier", refused="pooler"
    ),
    "roberta": Case("xlm_roberta", PADDED, stated=ROBERTA, asked="bert"),
    "xlm-roberta": Case("xlm_roberta", PADDED, "bpe pieces", asked="bert"),
    "xlm-roberta, classifier": Case(
        "xlm_roberta_classifier", {**PADDED, "num_labels": 3}, "bpe pieces", asked="bert_classifier"
    ),
    "modernbert": Case("modernbert", stated=EPSILON),
    "modernbert, classifier": Case(
        "modernbert_classifier",
        {"num_labels": 3},
        stated=EPSILON,
        asked="modernbert_classifier",
    ),
    "t5 encoder": Case("t5", FAR, "pieces"),
    "t5 encoder, relu": Case("t5", {**FAR, "feed_forward_proj": "relu"}, "pieces"),
    "text of llava": Case("llava"),
    "text of gemma3": Case("gemma3_images", SCALED, "pieces"),
    "text of qwen2.5 vl": Case("qwen2_5_vl"),
    "text of qwen3 vl": Case("qwen3_vl"),
    "text of qwen3.5 vl": Case("qwen3_5_vl", options=("--no-mtp",)),
    "text of qwen3 vl moe": Case("qwen3_vl_moe", {"mlp_only_layers": []}, change=turn),
    "text of qwen2 audio": Case("qwen2_audio", {"use_sliding_window": False}),
    "qwen2.5 vl": Case("qwen2_5_vl", tokenizer="marked bytes", others=WINDOWS, media=NORMED),
    "qwen2 vl": Case("qwen2_vl", tokenizer="marked bytes", media=NORMED),
    "qwen3.5 vl": Case("qwen3_5_vl", tokenizer="marked bytes", media=NORMED, options=("--no-mtp",)),
    "qwen3.5 moe vl": Case(
        "qwen3_5_moe_vl", tokenizer="marked bytes", media=NORMED, options=("--no-mtp",)
    ),
    "qwen3 vl": Case("qwen3_vl", tokenizer="marked bytes", others=LEVELS, media=NORMED),
    "qwen3 vl moe": Case(
        "qwen3_vl_moe",
        {"mlp_only_layers": []},
        "marked bytes",
        others=LEVELS,
        media=NORMED,
        change=turn,
    ),
    "gemma3 with images": Case(
        "gemma3_images",
        SCALED,
        "marked pieces",
        media={**NORMED, "image_seq_length": 16},
        change=halve("mm_input_projection_weight"),
    ),
    "qwen2 audio": Case(
        "qwen2_audio",
        {"use_sliding_window": False},
        "marked bytes",
        others={"audio_token_index": 5, "audio_config": {"encoder_layers": 3}},
        media={},
        change=halve("conv1.weight", "conv2.weight"),
    ),
    "text of mistral3": Case("mistral3"),
    "idefics3": Case(
        "idefics3",
        tokenizer="idefics bytes",
        others={"vision_config": {"image_size": 24}},
        media=NORMED | {"size": {"longest_edge": 72}},
        change=name_text,
    ),
    "mistral3": Case("mistral3", tokenizer="pixtral bytes", media=NORMED),
    "llava": Case("llava", media=NORMED, refused="Unsupported model type: clip_vision_model"),
    "mllama": Case("mllama", refused=UNKNOWN),
    "whisper": Case("whisper", refused=UNKNOWN),
    "clip": Case("clip", refused=UNKNOWN),
    "siglip": Case("siglip", refused=UNKNOWN),
}
"""The converter cannot open FLUX and Dia folders: it expects a single class of transformers."""
