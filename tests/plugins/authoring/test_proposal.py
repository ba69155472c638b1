"""`ostro plugin new --from`: what a reference's sources decide is written, the rest is marked."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from ostro import Settings
from ostro.core.engine.startup.build import build_engine
from ostro.core.errors import ConfigError, ModelNotFound
from ostro.core.load.model import LoadedModel, load_model
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.authoring.difference import differences
from ostro.plugins.authoring.reference import find
from ostro.plugins.authoring.roles import role
from ostro.plugins.authoring.shape import annotation, shape_of
from ostro.plugins.conformance.parity import BAR, RED, deviation
from ostro.plugins.conformance.weights import reinitialise

if TYPE_CHECKING:
    from tests.plugins.authoring.conftest import Install, Plugin

TOKENS = list(range(3, 60))
CLASSES = (
    "OlmoForCausalLM",
    "Olmo2ForCausalLM",
    "GPTNeoXForCausalLM",
    "StableLmForCausalLM",
    "Phi3ForCausalLM",
    "MixtralForCausalLM",
    "Qwen2MoeForCausalLM",
    "FalconForCausalLM",
    "CohereForCausalLM",
    "GPT2LMHeadModel",
    "BloomForCausalLM",
    "GemmaForCausalLM",
    "MambaForCausalLM",
    "DeepseekV3ForCausalLM",
)


@pytest.mark.sample(1)
@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_gives_a_clean_project(cls: str, plugin: Plugin, tmp_path: Path) -> None:
    ran = plugin("new", "mine", "--from", f"transformers:{cls}", "-o", tmp_path / "p")
    assert ran.code == 0 and "marked TODO" in ran.out, ran.err
    checked = plugin("check", tmp_path / "p")
    assert checked.code == 0, checked.out
    for file in (tmp_path / "p").rglob("*.py"):
        text = file.read_text()
        ast.parse(text)
        assert all(len(line) <= 100 for line in text.splitlines())
    if importlib.util.find_spec("ruff") is None:
        return
    for words in (["check", "--no-cache", "-q"], ["format", "--diff", "-q", "--no-cache"]):
        command = [sys.executable, "-m", "ruff", *words, "."]
        styled = subprocess.run(
            command, cwd=tmp_path / "p", capture_output=True, text=True, check=False
        )
        assert styled.returncode == 0, styled.stdout


def lines_of(text: str, what: str) -> set[int]:
    """The lines that the marks of a proposed model name for a part of the reference."""
    found: set[int] = set()
    for spans in re.findall(rf"TODO \w+\.py:([\d, -]+): {re.escape(what)}$", text, re.MULTILINE):
        for span in spans.split(", "):
            first, _, last = span.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return found


def test_marks_name_the_very_lines_that_are_not_llamas(plugin: Plugin, tmp_path: Path) -> None:
    assert plugin("new", "o", "--from", "transformers:OlmoForCausalLM", "-o", tmp_path).code == 0
    model = (tmp_path / "ostro_arch_o" / "model.py").read_text()
    source = find("transformers:OlmoForCausalLM").text.splitlines()
    named = lines_of(model, "OlmoAttention.forward")
    clipping = {i for i, line in enumerate(source, 1) if ".clamp_(" in line}
    projecting = {i for i, line in enumerate(source, 1) if "self.o_proj(attn_output)" in line}
    assert clipping and clipping <= named and not projecting & named
    assert not [line for line in source if len(line.strip()) > 40 and line.strip() in model]
    assert "clip_qkv: float | None = None" in model and '"clip_qkv": None' in model


@pytest.mark.slow
def test_a_family_that_is_llama_differs_in_nothing() -> None:
    llama = find("transformers:LlamaForCausalLM")
    assert differences(llama, llama) == []
    arcee = differences(find("transformers:ArceeForCausalLM"), llama)
    assert {d.topic for d in arcee} == {"feed_forward"} and len(arcee) == 2


def test_names_are_paired_where_they_tell_enough(plugin: Plugin, tmp_path: Path) -> None:
    words = ("new", "neox", "--from", "transformers:GPTNeoXForCausalLM", "-o", tmp_path)
    assert plugin(*words).code == 0
    model = (tmp_path / "ostro_arch_neox" / "model.py").read_text()
    assert 'Pair("gpt_neox.embed_in", "model.embed_tokens")' in model
    assert 'Pair(f"{THEIRS}.attention.dense", f"{LAYER}.self_attn.o_proj")' in model
    assert 'Pair(f"{THEIRS}.mlp.dense_4h_to_h", f"{LAYER}.mlp.fc2")' in model
    assert re.search(r"TODO .*query_key_value, several in one", model)
    assert "bias=config.attention_bias" in model and "return nn.MLP(" in model
    assert role("transformer.h.{i}.attn.c_proj", gated=False) == "model.layers.{i}.self_attn.o_proj"
    assert role("transformer.h.{i}.mlp.c_proj", gated=False) == "model.layers.{i}.mlp.fc2"
    assert role("transformer.h.{i}.crossattention.c_proj", gated=False) is None
    assert role("model.vision_tower", gated=True) is None


def test_config_fields_are_typed_and_the_tiny_one_is_small() -> None:
    shape = shape_of(find("transformers:StableLmForCausalLM"))
    assert {f.name: f.annotation for f in shape.new}["use_qkv_bias"] == "bool"
    assert shape.renamed == {"rms_norm_eps": "layer_norm_eps"}
    assert shape.pending["use_parallel_residual"] == "False"
    assert shape.tiny["hidden_size"] == 64 and shape.tiny["num_hidden_layers"] == 2
    gpt2 = shape_of(find("transformers:GPT2LMHeadModel"))
    assert gpt2.tiny["n_embd"] == 64 and gpt2.renamed["hidden_size"] == "n_embd"
    assert shape_of(find("transformers:MistralForCausalLM")).windowed


@pytest.mark.parametrize(
    ("said", "value", "ours"),
    [
        ("int", 3, "int"),
        ("int | None", None, "int | None"),
        ("Optional[float]", None, "float | None"),
        ("float | int", 0.0, "float"),
        ("list[int] | None", None, "tuple[int, ...] | None"),
        ("RopeParameters | dict | None", None, "object"),
        ("int | list[int]", 3, "tuple[int, ...]"),
        (None, True, "bool"),
    ],
)
def test_annotations_follow_type_and_default(said: str | None, value: Any, ours: str) -> None:
    assert annotation(said, value) == ours


def load(folder: Path, **settings: Any) -> tuple[LoadedModel, Any]:
    asked, plugins = Settings(dtype="float32", **settings), PluginManager()
    plugins.load(asked)
    loaded = load_model(folder, asked, plugins)
    return loaded, build_engine(loaded, asked, plugins, [], rows=64, block=16, blocks=16).runner


@torch.inference_mode()
def truth(model: Any) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([TOKENS])).logits[0]
    return logits


def test_a_class_of_transformers_works_at_once(
    plugin: Plugin, installed: Install, tmp_path: Path
) -> None:
    """As a body: in chunks, so that pages are read as well; and a spoilt one is not right."""
    project = tmp_path / "p"
    words = ("new", "nanochat", "--from", "transformers:NanoChatForCausalLM", "-o", project)
    assert plugin(*words).code == 0
    installed(project)
    tiny = shape_of(find("transformers:NanoChatForCausalLM")).tiny
    model = transformers.NanoChatForCausalLM(transformers.NanoChatConfig(**tiny)).eval()
    reinitialise(model, 0.2)
    model.save_pretrained(tmp_path / "model")
    loaded, runner = load(tmp_path / "model")
    assert loaded.architecture.name == "nanochat"
    assert deviation(runner.logits(TOKENS, 7), truth(model)) <= BAR
    for layer in loaded.model.get_submodule("model.layers").children():
        layer.self_attn.scaling *= 1.1  # type: ignore[operator, union-attr, assignment]
    assert deviation(runner.logits(TOKENS, 7), truth(model)) >= RED


REMOTE = """
from pathlib import Path
Path(__file__).with_name("executed").touch()
raise SystemExit("code of a checkpoint was run")
"""
NAMES = {
    "model.embed_tokens": "net.wte",
    "model.norm": "net.ln_f",
    "self_attn": "attention",
    "q_proj": "wq",
    "k_proj": "wk",
    "v_proj": "wv",
    "o_proj": "wo",
    "gate_proj": "w1",
    "up_proj": "w3",
    "down_proj": "w2",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "model.layers": "net.blocks",
}


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A checkpoint with code: Llama, under names of its own, with a trap in every file."""
    folder = tmp_path / "remote"
    folder.mkdir()
    for kind in ("modeling", "configuration"):
        [path] = Path(str(transformers.__file__)).parent.glob(f"models/llama/{kind}_llama.py")
        text = path.read_text().replace("Llama", "Mine")
        for ours, theirs in NAMES.items():
            old, new = ours.rpartition(".")[2], theirs.rpartition(".")[2]
            text = re.sub(rf"(?<=self\.){old}\b", new, text)
        before, cls, after = text.partition("class MineForCausalLM")
        text = before + cls + after.replace("self.model = ", "self.net = ")
        (folder / f"{kind}_mine.py").write_text(text + REMOTE)
    return folder


def test_a_folder_with_code_gives_a_model_project(
    remote: Path, plugin: Plugin, installed: Install, tmp_path: Path
) -> None:
    """Nothing of it is run; its tensors go where the proposed pairs say, and the logits agree."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 128}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).eval()
    reinitialise(model, 0.2)
    tensors = {}
    for name, tensor in model.state_dict().items():
        for ours, theirs in NAMES.items():
            name = re.sub(rf"(^|\.){re.escape(ours)}(?=\.)", rf"\1{theirs}", name)
        tensors[name] = tensor
    save_file(tensors, remote / "model.safetensors", metadata={"format": "pt"})
    raw = {**config.to_dict(), "architectures": ["MineForCausalLM"], "model_type": "mine"}
    raw["auto_map"] = {"AutoModelForCausalLM": "modeling_mine.MineForCausalLM"}
    (remote / "config.json").write_text(json.dumps(raw))
    project = tmp_path / "p"
    ran = plugin("new", "mine", "--from", remote, "-o", project)
    assert ran.code == 0, ran.err
    written = (project / "ostro_arch_mine" / "model.py").read_text()
    assert 'Pair(f"{THEIRS}.attention.wq", f"{LAYER}.self_attn.q_proj")' in written
    installed(project)
    loaded, runner = load(remote)
    assert loaded.architecture.name == "mine"
    assert deviation(runner.logits(TOKENS, 7), truth(model)) <= BAR
    assert not (remote / "executed").exists()


def test_what_the_proposed_model_does_not_do_is_refused(
    plugin: Plugin, installed: Install, tmp_path: Path
) -> None:
    words = ("new", "olmoid", "--from", "transformers:OlmoForCausalLM", "-o", tmp_path / "p")
    assert plugin(*words).code == 0
    installed(tmp_path / "p")
    config = importlib.import_module("ostro_arch_olmoid.model").Config
    raw = transformers.OlmoConfig().to_dict()
    assert config.from_hf(raw).hidden_size == raw["hidden_size"]
    with pytest.raises(ConfigError, match="only clip_qkv=None is implemented"):
        config.from_hf({**raw, "clip_qkv": 8.0})


def test_a_class_that_is_claimed_already_is_pointed_out(plugin: Plugin, tmp_path: Path) -> None:
    ran = plugin("new", "l", "--from", "transformers:LlamaForCausalLM", "-o", tmp_path / "p")
    assert ran.code == 0 and "the plugin llama claims that class already" in ran.out
    assert "TODO" not in ran.out
    record = (tmp_path / "p" / "ostro_arch_l" / "__init__.py").read_text()
    assert 'model=f"{__name__}.model:Model"' in record


def test_unresolvable_references_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no class 'OlmoForCausalML'; nearest: OlmoFor"):
        find("transformers:OlmoForCausalML")
    with pytest.raises(ModelNotFound, match="names no class"):
        find(str(tmp_path))
    (tmp_path / "config.json").write_text('{"architectures": ["Mine"]}')
    with pytest.raises(ModelNotFound, match=r"no modeling_\*\.py with the class Mine"):
        find(str(tmp_path))
    (tmp_path / "modeling_a.py").write_text("class Mine(object):\n  def")
    with pytest.raises(ConfigError, match="cannot be parsed"):
        find(str(tmp_path))
    (tmp_path / "modeling_a.py").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        find(str(tmp_path))


HOSTILE = """
class EvilConfig(PreTrainedConfig):
    attribute_map = {"hidden_size": 'n"}; import evil; x = {"', "evil()": "b", 'a': open("evil")}
    vocab_size: __import__("evil").x = __import__("evil")
    plain: int = 3

class EvilModel(nn.Module):
    config: EvilConfig
    def __init__(self, config):
        self.x["evil"].attention = nn.Linear(1, 1)
        self.wte = (lambda: evil).Embedding(config.plain, 1, bias=evil())
        self.blocks = nn.ModuleList([B(config)])

class B(nn.Module):
    def __init__(self, config):
        self.attention = A(config)

class A(nn.Module):
    def __init__(self, config):
        self.wq = nn.Linear(1, 1, bias=evil("x"))
        self.wo = nn.Linear(1, 1, bias=config.evil if evil else 2)
"""


def test_nothing_that_a_folder_says_gets_into_the_code(plugin: Plugin, tmp_path: Path) -> None:
    """Names are names, values are values: what is run later is ours alone."""
    folder = tmp_path / 'evil\nimport evil"""'
    folder.mkdir()
    raw = {"architectures": ["EvilModel"], "a: int = evil()\n    b": 1, "class": 2, "plain": 3}
    (folder / "config.json").write_text(json.dumps(raw | {"words": "'\"\nimport evil"}))
    (folder / 'modeling_"""\nimport evil\n.py').write_text(HOSTILE)
    (folder / "modeling_b.py").write_text(HOSTILE)
    ran = plugin("new", "mine", "--from", folder, "-o", tmp_path / "p")
    assert ran.code == 0, ran.err
    for file in (tmp_path / "p").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            named = node.names[0].name if isinstance(node, ast.Import | ast.ImportFrom) else ""
            assert "evil" not in called.lower() and "evil" not in named
            assert not isinstance(node, ast.Name) or "evil" not in node.id
    model = (tmp_path / "p" / "ostro_arch_mine" / "model.py").read_text()
    assert "bias=False" in model and "plain: int = 3" in model


def test_a_source_that_is_nested_too_deeply_is_refused(plugin: Plugin, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["A"]}')
    sum_of_many = "+".join(["x"] * 5000)
    text = f"class A(B):\n    def __init__(self):\n        self.a = nn.Linear({sum_of_many})\n"
    (tmp_path / "modeling_a.py").write_text(text)
    ran = plugin("new", "mine", "--from", tmp_path, "-o", tmp_path / "p")
    assert ran.code != 0 and ran.err.startswith("ostro: ") and not (tmp_path / "p").exists()


def test_a_source_that_contains_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["A"], "n": 3}')
    body = "    def __init__(self, config):\n        super().__init__()\n"
    text = f"class A(B):\n{body}        self.b = B(config)\n"
    text += f"class B(A):\n{body}        self.a = A(config)\n        self.w = nn.Linear(1, 1)\n"
    (tmp_path / "modeling_a.py").write_text(text)
    assert all(leaf.path.count(".") < 20 for leaf in find(str(tmp_path)).leaves())
