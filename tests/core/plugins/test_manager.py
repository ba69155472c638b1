"""The plugin manager, with real wheels on the path: whatever one does, the others keep working."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ostro.core.deprecated import RemovedInOstro1
from ostro.core.errors import ModelNotFound, PluginError, UsageError
from ostro.core.plugins.kinds import KINDS
from ostro.core.plugins.manager import ROUTES_NOTE, PluginManager
from ostro.core.results import InvalidResult
from ostro.core.routes import Route
from ostro.core.settings import Settings

if TYPE_CHECKING:
    from tests.core.conftest import Site


def test_a_wheel_offers_an_architecture(site: Site) -> None:
    site.wheel("good", site.architecture("mine", classes=("MineForCausalLM",), gguf=("mine",)))
    manager = site.load()
    assert manager.collect("architectures")["mine"].classes == ("MineForCausalLM",)
    assert manager.architecture_for(["MineForCausalLM"]).name == "mine"
    assert manager.architecture_for(gguf="mine").name == "mine"
    assert manager.architecture_for(["LlamaForCausalLM"]).name == "llama"
    assert manager.architecture_for(["LlamaForCausalLM"], name="mine").name == "mine"
    found = site.info(manager, "good")
    assert (found.status, found.source, found.version) == ("active", "ostro-good 1.0", "1.0")
    assert found.hooks == ("ostro_architectures",)
    assert found.offers == {"architectures": ("mine",)}


ARCHITECTURE = """
@hookimpl
def ostro_architectures():
    yield Architecture(name='a', api=(0, 2), config='x.y:C', model='x.y:M', trunk=False)
"""

BROKEN = {
    "raises at import": ("raise RuntimeError('no luck')", "RuntimeError: no luck"),
    "imports what is not there": ("import no_such_module_here", "No module named"),
    "is no Python": ("def (:", "SyntaxError"),
    "exits at import": ("import sys\nsys.exit(3)", r"sys.exit\(3\)"),
    "raises a BaseException at import": ("raise GeneratorExit('x')", "GeneratorExit"),
    "raises in a hook": (
        "@hookimpl\ndef ostro_architectures():\n    1 / 0\n",
        r"ZeroDivisionError.*bad_.*py:4",
    ),
    "raises in a generator": (
        ARCHITECTURE + "    raise OSError('gone')\n",
        "OSError: gone",
    ),
    "exits in a hook": (
        "@hookimpl\ndef ostro_architectures():\n    raise SystemExit('bye')\n",
        r"sys.exit\(bye\)",
    ),
    "raises a BaseException in a hook": (
        "class Odd(BaseException): pass\n@hookimpl\ndef ostro_parsers():\n    raise Odd('odd')\n",
        "Odd: odd",
    ),
    "raises what cannot be printed": (
        "class Mute(Exception):\n    def __str__(self): raise ValueError\n"
        "@hookimpl\ndef ostro_parsers():\n    raise Mute\n",
        "cannot be printed",
    ),
    "answers None": ("@hookimpl\ndef ostro_architectures(): pass\n", "returned None"),
    "answers a string": ("@hookimpl\ndef ostro_caches(): return 'paged'\n", "'paged'"),
    "answers another record": (
        "@hookimpl\ndef ostro_parsers(): return [LogitsProcessor(name='x', processor='a:b')]\n",
        "expected a record Parser",
    ),
    "answers without end": (
        "@hookimpl\ndef ostro_logits_processors():\n    n = 0\n    while True:\n        n += 1\n"
        "        yield LogitsProcessor(name=f'n{n}', processor='a:b')\n",
        "more than 1000",
    ),
    "names a record with a number": (
        ARCHITECTURE.replace("'a'", "7"),
        "the field name is 7, expected str",
    ),
    "names a record with nothing": (ARCHITECTURE.replace("'a'", "' '"), "invalid name"),
    "names a record with a control character": (
        ARCHITECTURE.replace("'a'", "'a\\x1bb'"),
        "invalid name",
    ),
    "declares a name twice": (
        ARCHITECTURE + ARCHITECTURE.splitlines()[-1],
        "'a' twice",
    ),
    "gives a string for a tuple": (
        ARCHITECTURE.replace("trunk=False", "classes='MineForCausalLM'"),
        r"classes is 'MineForCausalLM', expected tuple\[str, ...\]",
    ),
    "malforms a reference": (
        ARCHITECTURE.replace("trunk=False", "conformance=Conformance(reference='no colon')"),
        r"the field conformance\.reference is 'no colon', expected Import",
    ),
    "tests with no config": (
        ARCHITECTURE.replace("trunk=False", "conformance=Conformance(wide=[('hidden_size', 8)])"),
        r"the field conformance\.wide is \[.*, expected Mapping",
    ),
    "tests with a mapping": (
        ARCHITECTURE.replace("trunk=False", "conformance={'tiny': {}}"),
        "the field conformance is {'tiny': {}}, expected Conformance",
    ),
    "malforms an import string": (ARCHITECTURE.replace("x.y:M", "no colon"), "model is 'no colon'"),
    "speaks a newer API": (
        ARCHITECTURE.replace("(0, 2)", "(0, 3)"),
        "plugin API 0.3, this ostro has 0.2",
    ),
    "speaks an API to come": (ARCHITECTURE.replace("(0, 2)", "(1, 0)"), "plugin API 1.0"),
    "speaks a past 0.n": (ARCHITECTURE.replace("(0, 2)", "(0, 1)"), "plugin API 0.1"),
    "uses a field of a newer API": (
        ARCHITECTURE.replace("trunk", "shiny"),
        "unexpected keyword argument 'shiny'; is it a field of another plugin API",
    ),
    "misspells a hook": (
        ARCHITECTURE.replace("_architectures", "_architecture"),
        "unknown hook ostro_architecture; nearest: ostro_architectures",
    ),
    "misspells an argument": (
        "@hookimpl\ndef ostro_routes(app): return []\n",
        r"Argument\(s\) {'app'}",
    ),
    "forgets the marker": (
        "def ostro_architectures(): return []\n",
        "ostro_architectures is not marked with @hookimpl",
    ),
    "wraps the others": (
        "@hookimpl(wrapper=True)\ndef ostro_locate(reference):\n    return (yield)\n",
        "ostro_locate is a hook wrapper",
    ),
    "has no hooks": ("x = 1\n", "it implements no hook"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_wheel_breaks_no_other(
    what: str, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    source, reason = BROKEN[what]
    site.wheel("bad", source)
    site.wheel("good", site.architecture("mine"))
    manager = site.load()
    bad, good = site.info(manager, "bad"), site.info(manager, "good")
    assert bad.status == "broken"
    assert bad.source == "ostro-bad 1.0"
    assert not bad.offers and not bad.hooks
    assert re.search(reason, bad.reason), bad.reason
    assert "\n" not in bad.reason
    assert good.status == "active"
    assert {"llama", "mine"} <= set(manager.collect("architectures"))
    assert not {"a"} & set(manager.collect("architectures"))
    assert manager.broken["bad"].error is not None
    assert any("bad (ostro-bad 1.0) is not used" in line for line in caplog.messages)
    manager.check_pending()


def test_an_interrupt_by_the_user_is_not_the_plugins_fault(site: Site) -> None:
    site.wheel("bad", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        site.load()


def test_a_fault_of_one_kind_drops_what_was_declared_of_another(site: Site) -> None:
    site.wheel("bad", site.architecture("a") + "@hookimpl\ndef ostro_parsers(): 1 / 0\n")
    manager = site.load()
    assert "a" in manager.collect("architectures")
    assert manager.collect("parsers") is not None
    assert "a" not in manager.collect("architectures")
    assert list(manager.broken) == ["bad"]


def test_declarations_are_called_once_per_kind(site: Site) -> None:
    module = site.wheel(
        "good",
        "calls = []\n" + site.architecture("mine").replace("    y", "    calls.append(1); y"),
    )
    manager = site.load()
    calls = sys.modules[module].calls
    manager.collect("caches")
    assert calls == []
    manager.collect("architectures")
    manager.collect("architectures")
    assert calls == [1]


def test_third_party_plugins_are_called_first_and_the_first_result_wins(
    site: Site, tmp_path: Path
) -> None:
    target = f"__import__('pathlib').Path({str(tmp_path)!r})"
    site.wheel(
        "store",
        "@hookimpl\ndef ostro_locate(reference, kind):\n"
        f"    return {target} if reference.startswith('s3://') and kind == 'model' else None\n",
    )
    site.wheel("wrong", "@hookimpl\ndef ostro_locate(reference): return 'a string'\n")
    site.wheel("worse", "@hookimpl\ndef ostro_locate(reference): raise SystemExit\n")
    manager = site.load()
    assert manager.locate("s3://bucket/x", Settings()) == tmp_path
    assert {"wrong", "worse"} == set(manager.broken)
    assert "expected a Path" in manager.broken["wrong"].reason
    with pytest.raises(ModelNotFound, match=r"adapter .* not found"):
        manager.locate("s3://bucket/x", Settings(), kind="adapter")


def test_an_ostro_error_of_locate_reaches_the_user(site: Site) -> None:
    site.wheel(
        "store",
        "@hookimpl\ndef ostro_locate(reference):\n"
        "    raise errors.ModelNotFound('the bucket is closed')\n",
    )
    manager = site.load()
    with pytest.raises(ModelNotFound, match="the bucket is closed"):
        manager.locate("a", Settings())
    assert not manager.broken


def test_configure_reaches_all_plugins_and_later_ones(site: Site) -> None:
    names = "names = []\n@hookimpl\ndef ostro_configure(settings): names.append(settings.name)\n"
    module = site.wheel("good", names)
    site.wheel("bad", "@hookimpl\ndef ostro_configure(settings): settings.name = 'mine'\n")
    manager = site.load(Settings(name="served"))
    assert sys.modules[module].names == ["served"]
    assert "FrozenInstanceError" in manager.broken["bad"].reason

    class Late:
        def __init__(self) -> None:
            self.names: list[str | None] = []

    late = Late()

    from ostro import hookimpl

    @hookimpl
    def ostro_configure(settings: Settings) -> None:
        late.names.append(settings.name)
        raise ValueError

    late.ostro_configure = ostro_configure  # type: ignore[attr-defined]
    manager.register(late, "late")
    assert late.names == ["served"]
    assert "late" in manager.broken and manager.get_plugin("late") is None


class Server:
    async def hello(self) -> None: ...


def test_routes_are_declared_without_a_server(site: Site) -> None:
    site.wheel(
        "web",
        "async def hello(request): ...\n"
        "@hookimpl\ndef ostro_routes():\n    return (Route(name='GET /hello', endpoint=hello),)\n",
    )
    manager = site.load()
    info = site.info(manager, "web")
    assert info.hooks == ("ostro_routes",)
    assert info.offers == {"routes": ("GET /hello",)} and not info.note
    assert isinstance(manager.collect("routes")["GET /hello"], Route)


@pytest.mark.parametrize("argument", ["server", "engine"])
def test_deprecated_routes_are_declared_with_a_server(site: Site, argument: str) -> None:
    site.wheel(
        "web",
        f"@hookimpl\ndef ostro_routes({argument}):\n"
        f"    yield Route(name='GET /hello', endpoint={argument}.hello)\n",
    )
    with pytest.warns(RemovedInOstro1, match=r"write ostro_routes\(\)"):
        manager = site.load()
    info = site.info(manager, "web")
    assert (info.status, info.offers, info.note) == ("active", {}, ROUTES_NOTE)
    assert manager.deprecated_routes() == ["web"]
    servers = [Server(), Server()]
    for server in servers:
        routes = manager.collect("routes", server=server, engine=server)
        assert routes["GET /hello"].endpoint == server.hello
        assert "POST /tokenize" in routes, "the built-in plugin has no arguments"
    assert site.info(manager, "web").offers == {"routes": ("GET /hello",)}


def test_processes_compare_what_they_loaded(site: Site) -> None:
    site.wheel("one", site.architecture("one"))
    first, second = site.load(), site.load()
    assert first.digest() == second.digest()
    second.compare(first.registry())
    second.collect("architectures")
    assert first.digest() == second.digest()
    site.wheel("two", site.architecture("two"))
    third = site.load()
    assert third.digest() != first.digest()
    with pytest.raises(PluginError, match="two is absent in one"):
        first.compare(third.registry())


def test_hook_calls_are_traced(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site.wheel("good", site.architecture("mine"))
    site.load().collect("architectures")
    assert "ostro_architectures" not in capsys.readouterr().err
    monkeypatch.setenv("OSTRO_TRACE_PLUGINS", "1")
    site.load().collect("architectures")
    assert "ostro: ostro_architectures of good: [Architecture(" in capsys.readouterr().err
    monkeypatch.setenv("OSTRO_TRACE_PLUGINS", "maybe")
    with pytest.raises(UsageError, match="OSTRO_TRACE_PLUGINS='maybe': expected 1 or 0"):
        PluginManager()


def test_built_in_plugins_are_whole(site: Site) -> None:
    manager = site.load()
    for each in manager.describe():
        assert each.status == "active", f"{each.name}: {each.reason}"
    for kind in ("architectures", "quantizers", "checkpoints", "caches"):
        assert manager.collect(kind), kind
    assert set(KINDS) >= {kind for each in manager.describe() for kind in each.offers}


def test_warnings_of_deprecated_hooks_reach_the_author(site: Site) -> None:
    import pluggy

    class Specs:
        @pluggy.HookspecMarker("ostro")(
            warn_on_impl_args={"old": RemovedInOstro1("ostro_later(old) goes away; use new")}
        )
        def ostro_later(self, old: int, new: int) -> None: ...

    class Plugin:
        @pluggy.HookimplMarker("ostro")
        def ostro_later(self, old: int) -> None: ...

    manager = pluggy.PluginManager("ostro")
    manager.add_hookspecs(Specs)
    with pytest.warns(RemovedInOstro1, match="use new"):
        manager.register(Plugin())


def test_an_error_is_explained_by_the_plugins_that_it_came_through(site: Site) -> None:
    hook = "@hookimpl\ndef ostro_caches():\n    return []\n"
    inner = site.wheel("inner", f"def fail():\n    return {{}}['k']\n{hook}", version="2.1")
    source = f"import {inner} as inner\ndef call():\n    inner.fail()\n{hook}"
    outer = site.wheel("outer", source)
    manager = site.load()
    with pytest.raises(KeyError) as raised:
        sys.modules[outer].call()
    raised.value.add_note("step 3")
    assert manager.explain(raised.value) == (
        f"KeyError: 'k' in step 3 (plugin inner 2.1, {inner}.py:3, "
        f"called by outer 1.0, {outer}.py:4)"
    )
    assert manager.explain(ValueError("of nobody")) == "ValueError: of nobody"
    noted = ValueError("went wrong")
    noted.add_note("raised in model.layers.0")
    assert manager.explain(noted) == "ValueError: went wrong in model.layers.0"
    result = InvalidResult(type("Q", (), {"__module__": f"{inner}.storage"}), "rows", None, "[2]")
    assert manager.explain(result) == (
        f"InvalidResult: {inner}.storage.Q.rows returned None, expected [2] (plugin inner 2.1)"
    )
    text = manager.explain(ValueError("x" * 10_000))
    assert len(text) < 500
