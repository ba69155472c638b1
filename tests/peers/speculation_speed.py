"""Speed of speculative decoding beside none, in one process, interleaved.

python tests/peers/speculation_speed.py pair [--shape llama|qwen3_5] [--agree 0.7,0.3]
    [--streams 1,8] [--runs 5]
python tests/peers/speculation_speed.py heads --shape qwen3_5|qwen3_5_2b [--agree 0.7,0.3]
    [--streams 1,8] [--runs 5]
python tests/peers/speculation_speed.py assistant [--agree 0.7,0.3] [--streams 1,8] [--runs 5]
python tests/peers/speculation_speed.py text -m FILE [--speculate ngram] [--streams 1,8]

`pair` makes a model of the size of Qwen 3 0.6B, or of Qwen3.5 0.8B, three of whose four layers have
recurrent states, and a draft model of an eighth of its weights. Their layers add zeros, and their
heads map each token to the next one of a permutation, on which the two agree for a share of the
tokens. `heads` gives a model of the size of Qwen3.5 0.8B or 2B a multi-token head instead, and
compares it with an engine without one. `assistant` makes a model of the size of Gemma 4 E2B, whose
assistant has clusters of tokens. `text` lets a model correct a text. Requests with and without
drafts alternate; prints tokens per second, the ratio to those without, and the accepted tokens.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import ostro
from ostro.core.engine.engine import Engine
from ostro.core.engine.startup.start import open_engine
from ostro.core.load.weights import weight_slots
from ostro.core.messages.commands import ModelSpec
from ostro.core.messages.requests import DEFAULT_MODEL, Sampling, TokenRequest
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.core.settings import Settings

VOCAB = 151_936
CLUSTER_BITS = 11
"""Of 2,048 clusters."""

Config = Mapping[str, Any]
CONFIG: Config = {
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
LLAMA: Config = {
    **CONFIG,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "head_dim": 64,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
DRAFT: Config = {
    **LLAMA,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
QWEN3_5: Config = {
    **CONFIG,
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "head_dim": 256,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
}
HEAD_NORMS = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
QWEN3_5_2B: Config = {**QWEN3_5, "hidden_size": 2048, "intermediate_size": 6144}
SHAPES = {"llama": LLAMA, "qwen3_5": QWEN3_5, "qwen3_5_2b": QWEN3_5_2B}
TEXT = (
    "Correct the spelling, and write nothing but the corrected text: Teh quick brown fox jumps "
    "over the lazy dog. It was a brigt cold day in April, and the clocks were striking thirteen. "
    "All happy familys are alike; each unhappy family is unhappy in its own way."
)


def layer_shapes(config: Config, layer: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a layer by name."""
    wide, inner, head = (config[k] for k in ("hidden_size", "intermediate_size", "head_dim"))
    q, kv = (config[f"num_{name}_heads"] * head for name in ("attention", "key_value"))
    shapes: dict[str, tuple[int, ...]] = {
        "mlp.gate_proj.weight": (inner, wide),
        "mlp.up_proj.weight": (inner, wide),
        "mlp.down_proj.weight": (wide, inner),
        "input_layernorm.weight": (wide,),
        "post_attention_layernorm.weight": (wide,),
    }
    gated = config["model_type"] == "qwen3_5_text"
    if not gated or (layer + 1) % config["full_attention_interval"] == 0:
        norms = {f"self_attn.{name}_norm.weight": (head,) for name in "qk"} if gated else {}
        return (
            shapes
            | norms
            | {
                "self_attn.q_proj.weight": ((1 + gated) * q, wide),
                "self_attn.k_proj.weight": (kv, wide),
                "self_attn.v_proj.weight": (kv, wide),
                "self_attn.o_proj.weight": (wide, q),
            }
        )
    heads, dv = config["linear_num_value_heads"], config["linear_value_head_dim"]
    keys, values = config["linear_num_key_heads"] * config["linear_key_head_dim"], heads * dv
    return shapes | {
        "linear_attn.in_proj_qkv.weight": (2 * keys + values, wide),
        "linear_attn.in_proj_z.weight": (values, wide),
        "linear_attn.in_proj_b.weight": (heads, wide),
        "linear_attn.in_proj_a.weight": (heads, wide),
        "linear_attn.conv1d.weight": (2 * keys + values, 1, config["linear_conv_kernel_dim"]),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (dv,),
        "linear_attn.out_proj.weight": (wide, values),
    }


def write_model(folder: Path, config: Config, following: Tensor, seed: int) -> Path:
    """A model whose next token is `following[token]`: its layers compute, and add zeros."""
    generator = torch.Generator().manual_seed(seed)
    wide = config["hidden_size"]
    table = torch.randn(VOCAB, wide, generator=generator).bfloat16()
    head = torch.empty_like(table)
    head[following] = table
    # Qwen3.5's norms add 1 to their weights.
    norm = torch.zeros(wide) if config["model_type"] == "qwen3_5_text" else torch.ones(wide)
    tensors = {
        "model.embed_tokens.weight": table,
        "lm_head.weight": head,
        "model.norm.weight": norm.bfloat16(),
    }
    for layer in range(config["num_hidden_layers"]):
        for name, shape in layer_shapes(config, layer).items():
            values = torch.randn(shape, generator=generator).bfloat16()
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                values.zero_()
            tensors[f"model.layers.{layer}.{name}"] = values
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_pair(folder: Path, config: Config, agree: float) -> tuple[Path, Path]:
    """A model and its draft model, which agree on a share of the tokens."""
    following, other = permutations(VOCAB, agree)
    target = write_model(folder / "target", config, following, 1)
    return target, write_model(folder / "draft", DRAFT, other, 2)


def permutations(vocab: int, agree: float) -> tuple[Tensor, Tensor]:
    """Two permutations of all tokens that agree on a share of them; the first is one cycle."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(vocab, generator=generator)
    following = torch.empty_like(order)
    following[order] = order.roll(-1)
    other = following.clone()
    wrong = torch.nonzero(torch.rand(vocab, generator=generator) > agree)[:, 0]
    other[wrong] = following[wrong].roll(1)
    return following, other


def write_head(folder: Path, config: Config, agree: float) -> Path:
    """A model with a multi-token head that agrees with it on a share of the tokens.

    The head's linear passes the embedding on, mixed with a random rotation of it: the larger its
    part, the more tokens are nearer to the result than the right one.
    """
    following, _ = permutations(VOCAB, agree)
    made = write_model(folder / "target", config, following, 1)
    generator, wide = torch.Generator().manual_seed(3), config["hidden_size"]
    tensors = load_file(made / "model.safetensors")
    table = tensors["model.embed_tokens.weight"].float()
    sample = torch.randint(VOCAB, (1000,), generator=generator)
    rotation = torch.linalg.qr(torch.randn(wide, wide, generator=generator))[0]
    low, high = 0.0, 1.0
    for _ in range(12):
        part = (low + high) / 2
        mixed = (1 - part) * torch.eye(wide) + part * rotation
        right = ((table[sample] @ mixed.T) @ table.T).argmax(-1) == sample
        low, high = (part, high) if right.float().mean() > agree else (low, part)
    tensors |= {
        "mtp.fc.weight": torch.cat((mixed, torch.zeros(wide, wide)), 1).bfloat16(),
        **{f"mtp.{name}.weight": torch.zeros(wide).bfloat16() for name in HEAD_NORMS},
    }
    for name, shape in layer_shapes(config, config["full_attention_interval"] - 1).items():
        values = torch.randn(shape, generator=generator).bfloat16()
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            values.zero_()
        tensors[f"mtp.layers.0.{name}"] = values
    save_file(tensors, made / "model.safetensors")
    return made


def random_weights(config: Config, seed: int) -> dict[str, Tensor]:
    """The tensors of a Gemma 4 model or assistant whose layers compute, and add zeros."""
    generator = torch.Generator().manual_seed(seed)
    plugins = PluginManager()
    plugins.load(Settings())
    [record] = (
        record
        for record in plugins.collect("architectures").values()
        if config["architectures"][0] in record.classes
    )
    own = resolve(record.config).from_hf(config)
    names = resolve(record.names)(own)
    with torch.device("meta"):
        made = list(weight_slots(resolve(record.model)(own)))
    tensors = {}
    for slot in made:
        ours = slot.name if slot.kind == "tensor" else f"{slot.name}.weight"
        adds = ours.endswith(("o_proj.weight", "down_proj.weight", "per_layer_projection.weight"))
        if len(slot.shape) < 2:
            values = torch.ones(slot.shape, dtype=torch.bfloat16)
        elif adds or "embed_tokens_per_layer" in ours:
            values = torch.zeros(slot.shape, dtype=torch.bfloat16)
        else:
            values = torch.randn(slot.shape, generator=generator).bfloat16()
        tensors[names.write(ours).theirs] = values
    return tensors


def write_assistant(folder: Path, agree: float) -> tuple[Path, Path]:
    """A model of the size of Gemma 4 E2B and an assistant that agrees on a share of the tokens.

    The first projection of the assistant passes on a part of each embedding of the model. Tokens of
    which it has the same signs are a cluster.
    """
    config = json.loads((Path(__file__).with_name("shapes") / "gemma-4-e2b.json").read_text())
    config["tie_word_embeddings"] = False
    target = random_weights(config, 1)
    vocab, wide, part = config["vocab_size"], config["hidden_size"], 256
    following, other = permutations(vocab, agree)
    table = target["model.embed_tokens.weight"]
    target["lm_head.weight"] = torch.empty_like(table)
    target["lm_head.weight"][following] = table / 64  # the cap of logits keeps them apart
    text = {
        **config,
        **{"hidden_size": part, "intermediate_size": 2048, "num_hidden_layers": 4},
        **{"num_attention_heads": 4, "num_kv_shared_layers": 4, "tie_word_embeddings": True},
        **{"hidden_size_per_layer_input": 0, "use_double_wide_mlp": False},
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    }
    own = {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": wide,
        "use_ordered_embeddings": True,
        "text_config": text,
    }
    assistant = random_weights(own, 2)
    vectors = torch.empty(vocab, part, dtype=torch.bfloat16)
    vectors[other] = table[:, :part]
    signs = (vectors[:, :CLUSTER_BITS] > 0).long() @ 2 ** torch.arange(CLUSTER_BITS)
    order = signs.argsort()
    clusters = vectors[order].view(2**CLUSTER_BITS, -1, part)
    assistant |= {
        "model.embed_tokens.weight": vectors,
        "pre_projection.weight": torch.eye(2 * wide)[:part].bfloat16(),
        "masked_embedding.token_ordering": order,
        "masked_embedding.centroids.weight": clusters.float().mean(1).bfloat16(),
    }
    folders = folder / "target", folder / "assistant"
    for made, tensors, stated in zip(folders, (target, assistant), (config, own), strict=True):
        made.mkdir()
        save_file(tensors, made / "model.safetensors")
        (made / "config.json").write_text(json.dumps(stated))
    return folders


def rate_of(
    engine: Engine, prompts: Sequence[list[int]], tokens: int, speculate: bool, run: int
) -> float:
    """Tokens per second of requests at once, from the first token of the last of them on."""
    for index, prompt in enumerate(prompts):
        rules = Sampling(temperature=0, max_tokens=tokens, ignore_eos=True)
        request = TokenRequest(
            id=f"{speculate} {run} {index}",
            tokens=prompt,
            sampling=rules,
            speculate=speculate,
            cache=False,
        )
        engine.submit(request)
    begun, count, start = set[str](), 0, 0.0
    while engine.busy:
        for output in engine.step():
            assert output.error is None, output.error
            begun.add(output.id)
            if start:
                count += len(output.tokens)
        if not start and len(begun) == len(prompts):
            start = time.perf_counter()
    return count / (time.perf_counter() - start)


def compare(
    title: str,
    engine: Engine,
    prompts: Sequence[list[int]],
    tokens: int,
    runs: int,
    plain: Engine | None = None,
) -> None:
    """Print the medians of rates with and without drafts; the first run is not counted.

    plain: the engine without drafts, by default the same one.
    """
    rates: dict[bool, list[float]] = {False: [], True: []}
    for run in range(runs + 1):
        before = engine.stats()
        drafted, accepted = before.drafted_tokens, before.accepted_tokens
        for speculate in (False, True):
            used = engine if speculate or plain is None else plain
            rates[speculate].append(rate_of(used, prompts, tokens, speculate, run))
    stats = engine.stats()
    off, on = (statistics.median(rates[key][1:]) for key in (False, True))
    ratios = [a / b for a, b in zip(rates[True][1:], rates[False][1:], strict=True)]
    print(
        f"{title}, {len(prompts)} streams: {off:.1f} tok/s without, {on:.1f} with, "
        f"{statistics.median(ratios):.2f}; last run {stats.accepted_tokens - accepted} of "
        f"{stats.drafted_tokens - drafted} drafts accepted",
        flush=True,
    )


def prompts_of(streams: int) -> list[list[int]]:
    rng = random.Random(streams)
    return [[rng.randrange(VOCAB) for _ in range(16)] for _ in range(streams)]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("pair", "heads", "assistant", "text"))
    parser.add_argument("-m", "--model")
    parser.add_argument("--shape", choices=SHAPES, default="llama")
    parser.add_argument("--speculate", default="ngram")
    parser.add_argument("--agree", default="0.7,0.3")
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--quant", default="q8_0")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args(words)
    streams = [int(text) for text in args.streams.split(",")]
    if args.what == "text":
        with ostro.load(args.model, speculate=args.speculate, context=2048) as model:
            prompt = model.prompt([{"role": "user", "content": TEXT}]).tokens
            for count in streams:
                compare(args.speculate, model.engine, [prompt] * count, args.tokens, args.runs)
        return
    heads, shape = args.what == "heads", args.shape
    for agree in map(float, args.agree.split(",")):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            if heads:
                target, draft = str(write_head(Path(folder), SHAPES[shape], agree)), "heads"
            elif args.what == "assistant":
                shape = "gemma-4-e2b"
                target, draft = map(str, write_assistant(Path(folder), agree))
            else:
                target, draft = map(str, write_pair(Path(folder), SHAPES[shape], agree))
            settings = Settings(reference=target, speculate=draft, quant=args.quant, context=2048)
            engine = stack.enter_context(opened(settings))
            # A head follows sequences that turn drafts off.
            without = replace(settings, speculate=None)
            plain = stack.enter_context(opened(without)) if heads else None
            for count in streams:
                title = f"{args.what}, {shape}, agree {agree:.0%}"
                compare(title, engine, prompts_of(count), args.tokens, args.runs, plain)


@contextmanager
def opened(settings: Settings) -> Iterator[Engine]:
    """The engine of a model."""
    plugins = PluginManager()
    plugins.load(settings)
    models, _ = open_engine([ModelSpec(settings)], plugins, lambda *_: None)
    engine = models.entries[DEFAULT_MODEL].tokens
    assert engine is not None
    try:
        yield engine
    finally:
        models.close()


if __name__ == "__main__":
    main()
