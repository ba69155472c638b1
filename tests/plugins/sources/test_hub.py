"""The hub source: references, selections, tokens, and connections that break."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from huggingface_hub import constants

from ostro import Alias, HubReference
from ostro.core.errors import ModelNotFound, PickleRefused, UsageError
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.sources.hub.aliases import aliases
from ostro.plugins.sources.hub.download import token_from

if TYPE_CHECKING:
    from tests.plugins.sources.conftest import Hub

SHA = "0123456789abcdef0123456789abcdef01234567"
"""The commit of the models of the fake hub."""

LLAMA = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "tokenizer.json": b"{}",
    "tokenizer.model": b"x",
    "README.md": b"# no",
    "pytorch_model.bin": b"pickle",
    "original/consolidated.00.pth": b"pickle",
    "modeling_llama.py": b"print('never fetched')",
    "model.safetensors.index.json": json.dumps(
        {
            "weight_map": {
                "a": "model-00001-of-00002.safetensors",
                "b": "model-00002-of-00002.safetensors",
            }
        }
    ).encode(),
    "model-00001-of-00002.safetensors": bytes(range(256)) * 256,
    "model-00002-of-00002.safetensors": b"b" * 1000,
}
NEEDED = {
    "config.json",
    "tokenizer.json",
    "tokenizer.model",
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
}
GGUF = {
    "README.md": b"x",
    "llama-Q4_K_M.gguf": b"GGUF q4km",
    "llama-Q8_0.gguf": b"GGUF q80",
    "mmproj-llama-Q8_0.gguf": b"GGUF proj",
    "big/llama-BF16-00001-of-00002.gguf": b"GGUF bf 1",
    "big/llama-BF16-00002-of-00002.gguf": b"GGUF bf 2",
}


@pytest.fixture(autouse=True)
def models(hub: Hub) -> None:
    hub.models["org/llama"] = dict(LLAMA)
    hub.models["org/llama-GGUF"] = dict(GGUF)


@pytest.fixture
def manager() -> PluginManager:
    manager = PluginManager()
    manager.load()
    return manager


def names(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("org/name", HubReference(id="org/name")),
        ("org/name@v1", HubReference(id="org/name", revision="v1")),
        (
            "org/name@refs/pr/1:Q4_K_M",
            HubReference(id="org/name", revision="refs/pr/1", selector="Q4_K_M"),
        ),
        ("o.r-g/na.me:dir/x.gguf", HubReference(id="o.r-g/na.me", selector="dir/x.gguf")),
        ("name", None),
        ("org/name/more", None),
        ("../name", None),
        ("s3://org/name", None),
        ("org/na me", None),
        ("", None),
    ],
)
def test_references_are_parsed(text: str, parsed: HubReference | None) -> None:
    assert HubReference.parse(text) == parsed


def test_only_what_is_needed_is_fetched_and_only_once(hub: Hub, manager: PluginManager) -> None:
    folder = manager.locate("org/llama", Settings())
    assert names(folder) == NEEDED == hub.fetched()
    for name in NEEDED:
        assert (folder / name).read_bytes() == LLAMA[name]
    hub.asked.clear()
    assert manager.locate("org/llama@main", Settings()) == folder
    assert not hub.fetched()


def test_a_selector_names_a_format_or_a_file(hub: Hub, manager: PluginManager) -> None:
    file = manager.locate("org/llama-GGUF:q4_k_m", Settings())
    assert file.read_bytes() == b"GGUF q4km"
    assert hub.fetched() == {"llama-Q4_K_M.gguf", "mmproj-llama-Q8_0.gguf"}
    file = manager.locate("org/llama-GGUF:llama-Q8_0.gguf", Settings())
    assert file.read_bytes() == b"GGUF q80"
    file = manager.locate("org/llama-GGUF:BF16", Settings())
    assert file.name == "llama-BF16-00001-of-00002.gguf"
    assert (file.parent / "llama-BF16-00002-of-00002.gguf").read_bytes() == b"GGUF bf 2"
    with pytest.raises(ModelNotFound, match=r"several models: .*name one"):
        manager.locate("org/llama-GGUF", Settings())
    with pytest.raises(ModelNotFound, match=r"no 'Q4_K_X'; .*offers.*llama-Q4_K_M.gguf"):
        manager.locate("org/llama-GGUF:Q4_K_X", Settings())


def test_the_only_gguf_needs_no_selector(hub: Hub, manager: PluginManager) -> None:
    hub.models["org/one"] = {"one.gguf": b"GGUF", "mmproj.gguf": b"GGUF", "config.json": b"{}"}
    assert manager.locate("org/one", Settings()).name == "one.gguf"


@pytest.mark.parametrize(
    ("beside", "taken"),
    [
        ({"mmproj-model-f16.gguf"}, "mmproj-model-f16.gguf"),
        ({"one.mmproj-Q8_0.gguf", "one.mmproj-f16.gguf"}, "one.mmproj-f16.gguf"),
        ({"mmproj-F32.gguf", "mmproj-F16.gguf", "mmproj-BF16.gguf"}, "mmproj-BF16.gguf"),
        ({"mmproj-F32.gguf", "one-MMPROJ.gguf", "mmproj-Q8_0.gguf"}, "mmproj-F32.gguf"),
        ({"other/mmproj-F16.gguf", "mmproj.txt", "one.mmproj"}, None),
    ],
)
def test_a_projector_is_fetched_with_its_text_model(
    beside: set[str], taken: str | None, hub: Hub, manager: PluginManager
) -> None:
    hub.models["org/sees"] = dict.fromkeys(beside | {"one-Q4_0.gguf", "one-Q8_0.gguf"}, b"GGUF")
    for selector in ("Q4_0", "one-Q8_0.gguf"):
        file = manager.locate(f"org/sees:{selector}", Settings())
        assert file.name.startswith("one-Q")
        assert names(file.parent) - {"one-Q4_0.gguf", "one-Q8_0.gguf"} == {taken} - {None}
    assert manager.locate("org/sees:Q4_0", Settings(offline=True)).name == "one-Q4_0.gguf"


def test_offline_a_text_is_served_without_a_projector_that_did_not_come(
    hub: Hub, manager: PluginManager
) -> None:
    """What was cached before its repository had a projector is still served."""
    hub.models["org/sees"] = {"one.gguf": b"GGUF"}
    file = manager.locate("org/sees", Settings())
    hub.models["org/sees"]["mmproj-F16.gguf"] = b"GGUF proj"
    assert manager.locate("org/sees", Settings(offline=True)) == file


def test_pickles_are_refused_before_they_are_fetched(hub: Hub, manager: PluginManager) -> None:
    hub.models["org/old"] = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    with pytest.raises(PickleRefused, match="safetensors or GGUF"):
        manager.locate("org/old", Settings())
    hub.models["org/data"] = {"train.csv": b"x"}
    with pytest.raises(ModelNotFound, match=r"it holds train\.csv"):
        manager.locate("org/data", Settings())
    assert not hub.fetched()


def test_an_adapter_is_fetched_as_a_folder(hub: Hub, manager: PluginManager) -> None:
    hub.models["org/lora"] = {
        "adapter_config.json": b"{}",
        "adapter_model.safetensors": b"x",
        "README.md": b"x",
    }
    folder = manager.locate("org/lora", Settings(), kind="adapter")
    assert names(folder) == {"adapter_config.json", "adapter_model.safetensors"}
    hub.models["org/old"] = {"adapter_config.json": b"{}", "adapter_model.bin": b"x"}
    with pytest.raises(PickleRefused):
        manager.locate("org/old", Settings(), kind="adapter")


def test_second_copies_are_left_where_they_are(hub: Hub, manager: PluginManager) -> None:
    hub.models["org/image"] = {
        "model_index.json": b"{}",
        "image.safetensors": b"all in one",
        "unet/config.json": b"{}",
        "unet/diffusion_pytorch_model.safetensors": b"x",
        "unet/diffusion_pytorch_model.fp16.safetensors": b"y",
        "vae/diffusion_pytorch_model.bf16.safetensors": b"only this",
        "onnx/model.json": b"{}",
    }
    assert names(manager.locate("org/image", Settings())) == {
        "model_index.json",
        "unet/config.json",
        "unet/diffusion_pytorch_model.safetensors",
        "vae/diffusion_pytorch_model.bf16.safetensors",
    }


@pytest.mark.parametrize("offline", [False, True])
def test_a_cached_commit_may_be_abbreviated(
    hub: Hub, manager: PluginManager, offline: bool
) -> None:
    path = manager.locate(f"org/llama@{SHA}", Settings())
    settings = Settings(offline=offline)
    assert manager.locate(f"org/llama@{SHA[:7]}", settings) == path
    assert manager.locate("org/llama", Settings(revision=SHA[:8], offline=offline)) == path
    for unknown in (SHA[:3], "f" * 8):
        with pytest.raises(ModelNotFound, match=unknown):
            manager.locate(f"org/llama@{unknown}", settings)


def test_revisions_come_from_the_reference_or_the_settings(
    hub: Hub, manager: PluginManager
) -> None:
    assert manager.locate("org/llama@v1", Settings()).is_dir()
    with pytest.raises(ModelNotFound, match=r"has no revision 'v9'; .*lists its branches"):
        manager.locate("org/llama", Settings(revision="v9"))


def test_what_is_not_there_is_explained(hub: Hub, manager: PluginManager) -> None:
    with pytest.raises(ModelNotFound, match=r"org/lama does not exist .*or is private"):
        manager.locate("org/lama", Settings())
    Path("org").mkdir()
    with pytest.raises(ModelNotFound, match="there is no local folder org/lama"):
        manager.locate("org/lama", Settings())
    assert not manager.broken


@pytest.mark.parametrize("source", [None, "literal:wrong"])
def test_a_gated_model_says_how_to_get_in(
    hub: Hub, manager: PluginManager, source: str | None
) -> None:
    hub.gated.add("org/llama")
    with pytest.raises(ModelNotFound, match=r"is gated: accept its terms at .*hf auth login") as e:
        manager.locate("org/llama", Settings(token_source=source))
    assert "--token-source" in str(e.value) and "wrong" not in str(e.value)
    assert manager.locate("org/llama", Settings(token_source="literal:open")).is_dir()


def test_access_tokens_are_read_from_token_source(
    hub: Hub, manager: PluginManager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_TOKEN", "from-env")
    (tmp_path / "token").write_text("from-file\n")
    assert token_from("env:MY_TOKEN") == "from-env"
    assert token_from(f"file:{tmp_path / 'token'}") == "from-file"
    assert token_from(f"path:{tmp_path / 'token'}") == "from-file"
    assert token_from("literal:a:b") == "a:b"
    assert token_from("cache") is None and token_from(None) is None
    assert token_from("none") is False
    for wrong in ("env:ABSENT", "env:", "file:/no/such", "literal:", "vault:x", "none:x"):
        with pytest.raises(UsageError, match="token"):
            token_from(wrong)
    monkeypatch.setenv("HF_TOKEN", "from-hf")
    manager.locate("org/llama-GGUF:Q8_0", Settings(token_source="env:MY_TOKEN"))
    assert hub.tokens == {"Bearer from-env"}
    hub.tokens.clear()
    manager.locate("org/llama", Settings(token_source="none"))
    assert hub.tokens == {None}


def test_a_connection_that_breaks_off_is_taken_up_again(hub: Hub, manager: PluginManager) -> None:
    name = "model-00001-of-00002.safetensors"
    hub.broken_off[name] = 2
    folder = manager.locate("org/llama", Settings())
    assert (folder / name).read_bytes() == LLAMA[name]
    assert any(n == name and span for _, n, span in hub.asked), "it went on where it stopped"


def test_half_a_download_is_never_used(hub: Hub, manager: PluginManager) -> None:
    name = "model-00001-of-00002.safetensors"
    hub.broken_off[name] = 1000
    with pytest.raises(ModelNotFound, match=r"could not be fetched .*run the command again"):
        manager.locate("org/llama", Settings())
    with pytest.raises(ModelNotFound, match=rf"partly in the cache \(without .*{name}.*offline"):
        manager.locate("org/llama", Settings(offline=True))
    hub.broken_off.clear()
    hub.asked.clear()
    folder = manager.locate("org/llama", Settings())
    assert (folder / name).read_bytes() == LLAMA[name]
    assert name in hub.fetched() and "config.json" not in hub.fetched()
    assert manager.locate("org/llama", Settings(offline=True)) == folder


def test_half_a_split_file_is_never_used(hub: Hub, manager: PluginManager) -> None:
    second = "big/llama-BF16-00002-of-00002.gguf"
    hub.broken_off[second] = 1000
    with pytest.raises(ModelNotFound, match="could not be fetched"):
        manager.locate("org/llama-GGUF:BF16", Settings())
    with pytest.raises(ModelNotFound, match=r"without .*00002-of-00002"):
        manager.locate("org/llama-GGUF:BF16", Settings(offline=True))


def test_offline_uses_the_cache_without_requests(hub: Hub, manager: PluginManager) -> None:
    with pytest.raises(ModelNotFound, match="not in the cache, and offline mode is set"):
        manager.locate("org/llama", Settings(offline=True))
    folder = manager.locate("org/llama", Settings())
    file = manager.locate("org/llama-GGUF:Q8_0", Settings())
    hub.asked.clear()
    hub.tokens.clear()
    assert manager.locate("org/llama", Settings(offline=True)) == folder
    assert manager.locate("org/llama-GGUF:Q8_0", Settings(offline=True)) == file
    with pytest.raises(ModelNotFound, match="has no 'Q4_K_M'"):
        manager.locate("org/llama-GGUF:Q4_K_M", Settings(offline=True))
    with pytest.raises(ModelNotFound, match="not in the cache"):
        manager.locate("org/llama@v1", Settings(offline=True))
    assert not hub.asked and not hub.tokens


@pytest.mark.parametrize("how", ["refused", "error 503"])
def test_a_hub_out_of_reach_is_replaced_by_the_cache_aloud(
    how: str,
    hub: Hub,
    manager: PluginManager,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = manager.locate("org/llama", Settings())
    if how == "refused":
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    else:
        hub.down = 503
    assert manager.locate("org/llama", Settings()) == folder
    assert any("cannot be reached; using the cached org/llama" in m for m in caplog.messages)
    with pytest.raises(ModelNotFound, match=r"not in the cache, and .* cannot be reached"):
        manager.locate("org/other", Settings())


@pytest.mark.parametrize("index", [b"{", b"[]", b'{"weight_map": {"a": 1}}', b"[" * 100_000])
def test_a_malformed_index_is_left_to_whoever_reads_it(
    hub: Hub, manager: PluginManager, index: bytes
) -> None:
    hub.models["org/llama"]["model.safetensors.index.json"] = index
    folder = manager.locate("org/llama", Settings())
    assert manager.locate("org/llama", Settings(offline=True)) == folder
    assert not manager.broken


def test_a_listing_that_leads_outside_is_refused(hub: Hub, manager: PluginManager) -> None:
    for name in ("../evil.json", "/etc/evil.json", "a\\..\\evil.json"):
        hub.models["org/evil"] = {**LLAMA, name: b"{}"}
        with pytest.raises(ModelNotFound, match="unsafe name"):
            manager.locate("org/evil", Settings())


@pytest.fixture
def pinned(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    """A function that pins the alias "tiny" to a file of the hub with this content."""

    def pin(content: bytes) -> None:
        alias = Alias(
            name="llama",
            reference="org/llama-GGUF:llama-Q8_0.gguf",
            licence="mit",
            about="",
            sha256=hashlib.sha256(content).hexdigest(),
        )
        monkeypatch.setitem(aliases(), "tiny", alias)

    yield pin


def test_an_alias_is_fetched_and_verified(
    hub: Hub,
    manager: PluginManager,
    pinned: Callable[[bytes], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    pinned(GGUF["llama-Q8_0.gguf"])
    path = manager.locate("tiny", Settings())
    assert path.read_bytes() == GGUF["llama-Q8_0.gguf"]
    assert caplog.messages == ["tiny is org/llama-GGUF:llama-Q8_0.gguf, licence mit"]
    assert manager.locate("tiny", Settings(offline=True)) == path
    assert len(caplog.messages) == 1


def test_a_file_with_another_hash_is_removed(
    hub: Hub, manager: PluginManager, pinned: Callable[[bytes], None], tmp_path: Path
) -> None:
    pinned(b"other")
    for _ in range(2):
        with pytest.raises(ModelNotFound, match=r"tiny: the file of .* has sha256 .*; it was rem"):
            manager.locate("tiny", Settings())
        assert not any(path.name == "llama-Q8_0.gguf" for path in tmp_path.rglob("*"))
    with pytest.raises(ModelNotFound, match="in the cache has no"):
        manager.locate("tiny", Settings(offline=True))
    assert manager.locate("org/llama-GGUF:llama-Q8_0.gguf", Settings()).exists()


def test_a_file_that_changes_on_the_hub_is_verified_again(
    hub: Hub,
    manager: PluginManager,
    pinned: Callable[[bytes], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned(GGUF["llama-Q8_0.gguf"])
    manager.locate("tiny", Settings())
    hub.models["org/llama-GGUF"]["llama-Q8_0.gguf"] = b"GGUF changed"
    monkeypatch.setattr("tests.plugins.sources.conftest.SHA", "f" * 40)
    with pytest.raises(ModelNotFound, match="tiny: the file of"):
        manager.locate("tiny", Settings())


def test_a_path_is_preferred_to_an_alias(manager: PluginManager, tmp_path: Path) -> None:
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2/config.json").write_text("{}")
    assert manager.locate("smollm2", Settings()) == Path("smollm2")


def test_the_nearest_alias_is_named(hub: Hub, manager: PluginManager) -> None:
    with pytest.raises(ModelNotFound, match=r"'smollm' not found; nearest: .*smollm2"):
        manager.locate("smollm", Settings())
    with pytest.raises(ModelNotFound, match="not a file, a folder, an alias or an org/name"):
        manager.locate("xyzzy", Settings())
    with pytest.raises(ModelNotFound, match="adapter 'smollm2' not found"):
        manager.locate("smollm2", Settings(), "adapter")
    assert not hub.asked


def test_every_alias_is_a_hub_reference_with_a_licence() -> None:
    for name, alias in aliases().items():
        parsed = HubReference.parse(alias.reference)
        assert parsed is not None and alias.licence and alias.about
        assert name == name.lower() and "/" not in name and ":" not in name
        assert re.fullmatch("[0-9a-f]{64}", alias.sha256) if parsed.selector else not alias.sha256
