"""Two plugins that want one thing, and one thing that no plugin wants."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ostro.core.errors import PluginError, UnsupportedArchitecture
from ostro.core.records import Architecture, Files

if TYPE_CHECKING:
    from tests.core.conftest import Site


def test_a_name_conflict_is_an_error_only_when_the_name_is_used(site: Site) -> None:
    site.wheel("dup", site.architecture("llama"))
    manager = site.load()
    assert "llama" not in manager.collect("architectures")
    assert manager.get("architectures", "qwen3").name == "qwen3"
    with pytest.raises(PluginError) as caught:
        manager.get("architectures", "llama")
    for part in ("architectures.llama (built in)", "dup (ostro-dup 1.0)", "replaces=True"):
        assert part in str(caught.value)
    assert "OSTRO_DISABLE_PLUGINS=dup" in str(caught.value)
    for name in ("dup", "architectures.llama"):
        assert site.info(manager, name).status == "conflict"
        assert "'llama'" in site.info(manager, name).reason
    assert site.info(manager, "architectures.qwen3").status == "active"


def test_a_name_can_be_replaced_on_purpose(site: Site) -> None:
    site.wheel("mine", site.architecture("llama", replaces=True, classes=("LlamaForCausalLM",)))
    manager = site.load()
    assert manager.get("architectures", "llama").config == "x.y:C"
    assert manager.architecture_for(["LlamaForCausalLM"]).config == "x.y:C"
    site.wheel("yours", site.architecture("llama", replaces=True))
    with pytest.raises(PluginError, match=r"mine .* and yours"):
        site.load().get("architectures", "llama")


@pytest.mark.parametrize("field", ["classes", "gguf"])
def test_two_claims_on_one_class_name_both_wheels(site: Site, field: str) -> None:
    site.wheel("one", site.architecture("one", **{field: ("SameForCausalLM", "One")}))
    site.wheel("two", site.architecture("two", **{field: ("SameForCausalLM",)}))
    manager = site.load()

    def ask(name: str) -> Architecture:
        if field == "gguf":
            return manager.architecture_for(gguf=name)
        return manager.architecture_for([name])

    assert ask("One").name == "one"
    with pytest.raises(PluginError) as caught:
        ask("SameForCausalLM")
    for part in ("one (ostro-one 1.0)", "two (ostro-two 1.0)", "--arch: one, two"):
        assert part in str(caught.value)
    assert manager.architecture_for(["SameForCausalLM"], name="two").name == "two"
    assert site.info(manager, "two").status == "conflict"
    assert site.info(manager, "architectures.llama").status == "active"


def test_a_replacement_of_another_name_takes_its_classes(site: Site) -> None:
    site.wheel("fast", site.architecture("fastllama", classes=("LlamaForCausalLM",), replaces=True))
    manager = site.load()
    assert manager.architecture_for(["LlamaForCausalLM"]).name == "fastllama"
    assert manager.get("architectures", "llama").name == "llama"


def claiming(site: Site, name: str, test: str) -> str:
    test = f"lambda files, config: {test}"
    return site.architecture(name).replace("model='x.y:M'", f"model='x.y:M', claims={test}")


def folder(*names: str) -> Files:
    return Files(root=Path("/models/x"), names=names)


def test_a_folder_without_a_class_is_claimed_by_what_it_holds(site: Site) -> None:
    site.wheel("one", claiming(site, "one", "'one.json' in files.names"))
    site.wheel("two", claiming(site, "two", "'two.json' in files.names or config.get('two')"))
    site.wheel("bad", claiming(site, "bad", "config['absent']"))
    manager = site.load()
    assert manager.architecture_for(files=folder("one.json")).name == "one"
    assert manager.architecture_for(files=folder(), config={"two": 1}).name == "two"
    assert "KeyError" in manager.broken["bad"].reason
    assert "bad" not in manager.collect("architectures")
    with pytest.raises(PluginError, match=r"one .* and two "):
        manager.architecture_for(files=folder("one.json", "two.json"))
    with pytest.raises(UnsupportedArchitecture, match=r"names no class.*Broken plugins: bad"):
        manager.architecture_for(files=folder("three.json"))
    with pytest.raises(UnsupportedArchitecture):
        manager.architecture_for(["OtherForCausalLM"], files=folder("one.json"))


def test_an_unknown_model_error_has_suggestions(site: Site) -> None:
    manager = site.load()
    with pytest.raises(UnsupportedArchitecture) as caught:
        manager.architecture_for(["LlamaForCausalLMs"])
    for part in (
        "'LlamaForCausalLMs'",
        "LlamaForCausalLM",
        "pip install ostro-arch-",
        "ostro models",
    ):
        assert part in str(caught.value)
    with pytest.raises(UnsupportedArchitecture, match=r"nearest: .*llama"):
        manager.architecture_for(name="lama")
    with pytest.raises(PluginError, match=r"nearest: .*llama"):
        manager.get("architectures", "lama")
    with pytest.raises(
        PluginError, match=r"unknown kind of record 'architecture'.*nearest: architectures"
    ):
        manager.collect("architecture")
