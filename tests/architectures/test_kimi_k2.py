"""Kimi K2, which is DeepSeek-V3 with a tiktoken vocabulary, in a folder as published."""

from __future__ import annotations

import json
import shutil
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny.published import published_deviation
from tiny.vocabularies import write

import ostro
from ostro.core.load.model import load_model
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.entrypoints.python.model import LocalModel
from ostro.plugins.conformance.parity import BAR, Subject, subject

TOKENS = [bytes([byte]) for byte in range(256)] + [b"ki", b"mi", b"kimi"]
END = len(TOKENS)
NAMED = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>"}
TEMPLATE = (
    "{% for m in messages %}<|im_{{ m.role }}|>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>{% endif %}"
)
YARN = {
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "factor": 32.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 64,
}
PUBLISHED = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"},
    "model_type": "kimi_k2",
    "aux_loss_alpha": 0.001,
    "ep_size": 1,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 0,
    "rope_scaling": {**YARN, "type": "yarn"},
    "rope_theta": 50000.0,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "topk_method": "noaux_tc",
}


@pytest.fixture(scope="module")
def tiny(plugins: PluginManager) -> Iterator[Subject]:
    shape = {
        **plugins.get("architectures", "deepseek_v3").conformance.tiny,
        "vocab_size": END + 256,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 2.827,
        "rope_parameters": {**YARN, "rope_type": "yarn", "rope_theta": 50000.0},
    }
    with subject(plugins, "deepseek_v3", config=shape) as made:
        yield made


@pytest.fixture(scope="module")
def folder(tiny: Subject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("kimi")
    shutil.copy(tiny.folder / "model.safetensors", made)
    raw = {k: v for k, v in tiny.raw_config.items() if k != "rope_parameters"}
    (made / "config.json").write_text(json.dumps(raw | PUBLISHED))
    ranks = (f"{b64encode(token).decode()} {rank}" for rank, token in enumerate(TOKENS))
    (made / "tiktoken.model").write_text("\n".join(ranks) + "\n")
    added = {str(END + i): {"content": text, "special": True} for i, text in NAMED.items()}
    write(
        made / "tokenizer_config.json",
        added_tokens_decoder=added,
        auto_map={"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        tokenizer_class="TikTokenTokenizer",
        chat_template=TEMPLATE,
    )
    write(made / "generation_config.json", max_length=256, eos_token_id=END + 2)
    return made


def test_published_config_has_the_references_logits(tiny: Subject, folder: Path) -> None:
    loaded = load_model(folder, Settings(dtype="float32", device="cpu"), tiny.plugins)
    assert loaded.architecture.name == "deepseek_v3"
    assert published_deviation(tiny, loaded) <= BAR


def test_published_files_chat(tiny: Subject, folder: Path) -> None:
    """tiktoken.model, the chat template and the end of the answer come from the folder."""
    messages = [{"role": "user", "content": "kimi"}]
    prompt = [END + 3, TOKENS.index(b"kimi"), END + 2, END + 4]
    with ostro.load(folder, dtype="float32", device="cpu") as model:
        assert isinstance(model, LocalModel)
        assert model.encode(messages) == prompt
        answer = model.generate(messages, max_tokens=6, temperature=0)
        assert answer == model.tokenizer.decode(tiny.reference_tokens(prompt, 6))
        assert model.tokenizer.eos_ids >= {END + 1}
