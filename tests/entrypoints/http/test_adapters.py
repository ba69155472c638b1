"""Adapters over HTTP: how requests ask for them, what is answered, how they come and go."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import FormData

from ostro.core.engine.request import AdapterRef
from ostro.core.errors import OstroError, RequestError, UsageError
from ostro.core.ipc.messages import AdapterInfo
from ostro.core.pipeline import ModelTarget
from ostro.entrypoints.http.adapters import adapter_refs
from ostro.entrypoints.http.admin import Admin
from ostro.entrypoints.http.app import make_app
from ostro.entrypoints.http.audio import target_of

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
LOAD, UNLOAD, LIST = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/lora_adapters"
GENERATION = "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of adapters, beside which lies one that is nobody's business."""
    folder = tmp_path_factory.mktemp("adapters") / "root"
    for name in ("sql", "style", "pirate", "holed", "broken"):
        (folder / name).mkdir(parents=True)
        (folder / name / "adapter_config.json").write_text("{}")
    (folder / "pirate" / "chat_template.jinja").write_text(
        "{% for message in messages %}arr {{ message.content }}{% endfor %}"
    )
    (folder.parent / "secret").mkdir()
    (folder.parent / "root2" / "sql").mkdir(parents=True)
    (folder / "link").symlink_to(folder.parent / "secret")
    (folder / "inner").symlink_to(folder / "sql")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "holed" / "weights").symlink_to("/etc/passwd")
    return folder


@pytest.fixture(scope="module")
def shared(start: Any, root: Path) -> Any:
    return start(adapter_root=root)


@pytest.fixture
def server(shared: Any) -> Iterator[Any]:
    """A server that loads adapters, and has none yet."""
    yield shared
    for name in list(shared.echo.adapters):
        assert shared.post(UNLOAD, lora_name=name).status_code == 200


def load(server: Any, name: str, path: str | None = None, **more: Any) -> Any:
    answer = server.post(LOAD, lora_name=name, lora_path=path or name, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: Any, status: int, code: str, param: str | None = None) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == code and (param is None or error["param"] == param), error
    return str(error["message"])


def last(server: Any) -> list[tuple[str, float]]:
    """The adapters that the engine was asked for last."""
    return [(each.name, each.scale) for each in server.echo.seen[-1].adapters]


# What requests ask for


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, []),
        ({"adapters": []}, []),
        ({"adapters": ["sql", "style"]}, [("sql", 1), ("style", 1)]),
        (
            {"adapters": [{"name": "sql", "scale": 0.5}, {"name": "style", "scale": -1}]},
            [("sql", 0.5), ("style", -1)],
        ),
        ({"adapters": ["style", {"name": "sql", "scale": 0}]}, [("style", 1), ("sql", 0)]),
        ({"adapter": "sql"}, [("sql", 1)]),
        ({"adapter": {"name": "sql", "scale": 2}}, [("sql", 2)]),
        ({"model": "sql"}, [("sql", 1)]),
        ({"model": "echo:sql"}, [("sql", 1)]),
        ({"model": "default:sql", "adapters": ["style"]}, [("sql", 1), ("style", 1)]),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETE])
def test_adapters_are_selected_by_three_fields(
    server: Any, path: str, body: Any, expected: Any
) -> None:
    load(server, "sql"), load(server, "style")
    prompt = {"messages": "hi"} if path == CHAT else {"prompt": "hi"}
    answer = server.post(path, **prompt, **body)
    assert answer.status_code == 200, answer.text
    assert last(server) == expected
    assert answer.json()["model"] == body.get("model", "echo")


def test_a_request_can_select_a_generation(server: Any) -> None:
    generation = load(server, "sql")["generation"]
    answer = server.complete(adapter={"generation": generation}).json()
    assert server.echo.seen[-1].adapters == (AdapterRef(generation=generation),)
    assert answer["adapter_generations"] == [generation]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"adapters": "sql"}, "adapters"),
        ({"adapters": {"sql": 1}}, "adapters"),
        ({"adapters": [7]}, "adapters[0]"),
        ({"adapters": [{"name": "sql", "scale": "much"}]}, "adapters[0].scale"),
        ({"adapters": [{"name": "sql", "weight": 1}]}, "adapters[0]"),
        ({"adapters": [{"name": "sql", "scale": 10**400}]}, "adapters[0].scale"),
        ({"adapters": [{"scale": 1}]}, "adapters"),
        ({"adapters": [{"name": "sql", "generation": GENERATION}]}, "adapters"),
        ({"adapters": [{"generation": "abc"}]}, "adapters"),
        ({"adapters": [{"generation": "G" * 64}]}, "adapters"),
        ({"adapters": ["sql", "sql"]}, "adapters"),
        ({"adapter": "sql", "adapters": ["sql"]}, "adapters"),
        ({"model": "sql", "adapter": {"name": "sql", "scale": 0.5}}, "adapters"),
        ({"adapters": [f"a{i}" for i in range(17)]}, "adapters"),
        ({"adapter": ["sql"]}, "adapter"),
        ({"adapter": ""}, "adapter"),
        ({"adapter": "a" * 1_000_000}, "adapter"),
        ({"model": "echo:"}, "model"),
    ],
)
def test_malformed_adapter_fields_are_rejected(server: Any, body: Any, param: str) -> None:
    load(server, "sql")
    answer = server.complete(**body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert server.complete(adapter="sql").status_code == 200


def test_an_infinite_scale(server: Any) -> None:
    """JSON cannot write infinity; a number that is too large is refused."""
    text = '{"prompt": "a", "adapters": [{"name": "sql", "scale": 1e999}]}'
    headers = {"content-type": "application/json"}
    answer = server.http.post(COMPLETE, content=text, headers=headers)
    assert "out of range" in refused(answer, 400, "invalid_request_error")


def test_unknown_names_are_rejected(server: Any) -> None:
    load(server, "style")
    refused(server.complete(adapter="sql"), 404, "adapter_not_found")
    refused(server.complete(model="echo:sql"), 404, "adapter_not_found")
    message = refused(server.complete(model="styl"), 404, "model_not_found", "model")
    assert "'echo'" in message and "nearest adapters: style" in message
    refused(server.complete(adapter="x", stream=True), 404, "adapter_not_found")
    assert server.complete(model="style").status_code == 200


def test_sixteen_adapters(server: Any) -> None:
    names = [f"a{i}" for i in range(16)]
    for name in names:
        load(server, name, "sql")
    assert server.complete(adapters=names).status_code == 200
    assert [name for name, _ in last(server)] == names


def test_the_longest_model_name_wins(server: Any) -> None:
    service = server.service
    service.names = ("echo", "org/echo", "org/echo:7b")
    try:
        assert service.locate("org/echo:7b") == ("org/echo:7b", None)
        assert service.locate("org/echo:7b:sql") == ("org/echo:7b", "sql")
        assert service.locate("org/echo:sql") == ("org/echo", "sql")
        with pytest.raises(OstroError, match="not found; available: "):
            service.locate("org:sql")
    finally:
        service.names = ("echo",)


def test_an_adapter_cannot_have_a_model_s_name(server: Any) -> None:
    message = refused(server.post(LOAD, lora_name="echo", lora_path="sql"), 409, "adapter_conflict")
    assert "name of a model" in message


def test_the_engine_resolves_unknown_names(server: Any) -> None:
    server.service.resolves = True
    try:
        refused(server.complete(model="sql"), 404, "adapter_not_found")
        assert server.http.get("/v1/models/sql").status_code == 404
        server.echo.adapters["sql"] = AdapterInfo(name="sql", reference="sql")
        assert server.complete(model="sql").status_code == 200 and last(server) == [("sql", 1)]
        cards = server.http.get("/v1/models").json()["data"]
        assert [card["id"] for card in cards] == ["echo", "sql"]
    finally:
        server.service.resolves = False


def test_forms_name_adapters() -> None:
    def wanted(**fields: str) -> list[tuple[str, float]]:
        return [(w.name, w.scale) for w in adapter_refs(target_of(FormData(fields)))]

    assert wanted() == []
    assert wanted(adapter="sql") == wanted(adapters="sql") == [("sql", 1)]
    assert wanted(adapter='{"name": "sql", "scale": 2}') == [("sql", 2)]
    given = '["sql", {"name": "style", "scale": 0.5}]'
    assert wanted(adapters=given) == [("sql", 1), ("style", 0.5)]
    for bad in ("[", "[1]", '["\\ud800"]', '[{"name": "a", "scale": NaN}]', "[" * 5000):
        with pytest.raises(RequestError):
            wanted(adapters=bad)


def test_duplicate_adapters_are_rejected() -> None:
    assert adapter_refs(ModelTarget(adapters=["a"]), "b") == (
        AdapterRef(name="b"),
        AdapterRef(name="a"),
    )
    with pytest.raises(RequestError, match="duplicate"):
        adapter_refs(ModelTarget(adapters=["a"]), "a")


# What is answered


def test_responses_list_generations(server: Any) -> None:
    generations = [load(server, name)["generation"] for name in ("sql", "style")]
    names = {"adapters": ["sql", "style"]}
    assert server.complete(**names).json()["adapter_generations"] == generations
    assert server.complete(["ab", "cd"], n=2, **names).json()["adapter_generations"] == generations
    assert server.chat(**names).json()["adapter_generations"] == generations
    for plain in (server.complete(), server.chat()):
        assert "adapter_generations" not in plain.json()


@pytest.mark.parametrize("path", [CHAT, COMPLETE])
def test_streams_tell_of_generations_where_a_choice_ends(server: Any, path: str) -> None:
    prompt = {"messages": "hi"} if path == CHAT else {"prompt": "hi"}
    generation = load(server, "sql")["generation"]
    events = server.events(path, **prompt, model="sql", n=2)
    assert {event["model"] for event in events} == {"sql"}
    for event in events:
        ends = any(choice["finish_reason"] for choice in event["choices"])
        assert event.get("adapter_generations") == ([generation] if ends else None)
    assert not any("adapter_generations" in event for event in server.events(path, **prompt))


def test_an_adapter_that_does_not_apply_is_not_listed(server: Any) -> None:
    load(server, "sql")
    server.echo.generations = lambda request: ()
    try:
        assert server.complete(adapter="sql").json()["adapter_generations"] == []
    finally:
        del server.echo.generations


def test_models_list_their_adapters(server: Any) -> None:
    generation = load(server, "sql")["generation"]
    base, card = server.http.get("/v1/models").json()["data"]
    assert base["id"] == "echo" and "parent" not in base
    assert card == {
        **base,
        "id": "sql",
        "root": "echo",
        "parent": "echo",
        "adapter_generation": generation,
    }
    assert server.http.get("/v1/models/sql").json() == card
    assert server.http.get("/v1/models/echo:sql").json() == {**card, "id": "echo:sql"}
    for absent in ("style", "echo:style"):
        answer = server.http.get(f"/v1/models/{absent}")
        refused(answer, 404, "model_not_found", "model")


# Chat templates


def test_an_adapter_s_template(server: Any) -> None:
    load(server, "pirate"), load(server, "sql")

    def prompt(**body: Any) -> str:
        assert server.chat("hi", **body).status_code == 200
        return bytes(t for t in server.echo.seen[-1].tokens if t < 256).decode()

    assert prompt(model="pirate") == prompt(adapter="pirate") == "arr hi"
    base = prompt()
    assert "user" in base
    for others in (["sql"], ["pirate", "sql"], [{"name": "pirate", "scale": 0}]):
        assert prompt(adapters=others) == base
    seen = len(server.echo.seen)
    prompt(model="pirate")
    assert len(server.echo.seen) == seen + 1


def test_the_template_of_an_adapter_that_is_not_read_yet(server: Any, root: Path) -> None:
    path = root / "pirate"
    server.echo.adapters["lazy"] = AdapterInfo(name="lazy", reference=str(path))
    assert server.chat("hi", adapter="lazy").status_code == 200
    assert bytes(server.echo.seen[-1].tokens) == b"arr hi"
    server.echo.adapters["lazy"].loaded = False
    server.echo.adapters["lazy"].template = None
    assert server.http.get(LIST).status_code == 200
    assert server.chat("hi", adapter="lazy").status_code == 200
    assert bytes(server.echo.seen[-1].tokens) == b"arr hi"
    server.echo.adapters["hopeless"] = AdapterInfo(name="hopeless", reference="broken")
    refused(server.chat("hi", adapter="hopeless"), 422, "invalid_lora_adapter")


# Coming and going


def test_an_adapter_is_loaded_and_unloaded(server: Any, root: Path) -> None:
    info = load(server, "sql", pinned=True)
    assert info["name"] == "sql" and info["rank"] == 8 and info["pinned"] is True
    assert server.complete(model="sql").status_code == 200
    listed = server.http.get(LIST)
    assert listed.json()["data"] == [{**info, "requests": 1}]
    assert str(root) not in listed.text
    answer = server.post(UNLOAD, lora_name="sql", lora_int_id=7)
    assert answer.json() == {"name": "sql", "model": "echo", "unloaded": True}
    assert server.http.get(LIST).json()["data"] == []
    assert not server.service.adapters.templates
    refused(server.complete(model="sql"), 404, "model_not_found")
    refused(server.post(UNLOAD, lora_name="sql"), 404, "adapter_not_found")


def test_a_name_that_is_taken(server: Any) -> None:
    first = load(server, "sql")
    again = {"lora_name": "sql", "lora_path": "style"}
    refused(server.post(LOAD, **again), 409, "adapter_conflict", "lora_name")
    assert server.http.get(LIST).json()["data"][0]["generation"] == first["generation"]
    assert load(server, "sql", "style", load_inplace=True)["generation"] != first["generation"]


@pytest.mark.parametrize("inplace", [False, True])
def test_another_generation_than_expected(server: Any, inplace: bool) -> None:
    generation = load(server, "sql")["generation"]
    wrong = {"lora_name": "sql", "expected_generation": GENERATION}
    if inplace:
        body = {**wrong, "lora_path": "style", "load_inplace": True}
        refused(server.post(LOAD, **body), 409, "adapter_conflict")
        assert server.post(LOAD, **{**body, "expected_generation": generation}).status_code == 200
    else:
        refused(server.post(UNLOAD, **wrong), 409, "adapter_conflict")
        right = {**wrong, "expected_generation": generation}
        assert server.post(UNLOAD, **right).status_code == 200


def test_while_another_is_loaded(server: Any) -> None:
    answer = server.post(LOAD, lora_name="busy", lora_path="sql")
    refused(answer, 429, "lora_load_busy")
    assert answer.headers["retry-after"]
    load(server, "sql")


def test_unloading_what_is_in_use(server: Any) -> None:
    load(server, "sql")
    server.echo.step_seconds = 0.01
    body = {"prompt": "abc", "model": "sql", "max_tokens": 30, "ignore_eos": True, "stream": True}
    try:
        with server.http.stream("POST", COMPLETE, json=body) as response:
            lines = (line for line in response.iter_lines() if line.startswith("data: {"))
            next(lines)
            assert server.post(UNLOAD, lora_name="sql").status_code == 200
            refused(server.complete(model="sql"), 404, "model_not_found")
            ended = [json.loads(line[6:]) for line in lines][-1]
    finally:
        server.echo.step_seconds = 0
    assert ended["choices"][0]["finish_reason"] == "length" and ended["adapter_generations"]


@pytest.mark.parametrize(
    "path",
    [
        "/etc",
        "../secret",
        "sql/../../secret",
        "../root2/sql",
        "link",
        "link/inner",
        "loop",
        "holed",
        ".",
        "",
        "/",
        "..",
        "~",
        "x" * 1_000_000,
        "../" * 1000,
    ],
)
def test_paths_out_of_the_root(server: Any, root: Path, path: str) -> None:
    answer = server.post(LOAD, lora_name="bad", lora_path=path)
    if path == "~":  # a name like any other here, and nobody's home
        refused(answer, 404, "adapter_not_found", "lora_path")
    else:
        refused(answer, 403, "adapter_path_forbidden", "lora_path")
    assert str(root) not in answer.text and "secret/" not in answer.text
    assert len(answer.text) < 1000
    assert not server.echo.adapters
    load(server, "bad", "sql")


@pytest.mark.parametrize("path", ["sql", "./sql", "style/../sql", "inner", "{root}/sql"])
def test_paths_within_the_root(server: Any, root: Path, path: str) -> None:
    load(server, "good", path.format(root=root))
    assert server.echo.adapters["good"].reference == str(root / "sql")


@pytest.mark.parametrize("path", ["nothing", "x" * 300, "sql/adapter_config.json/x"])
def test_missing_paths_are_rejected(server: Any, path: str) -> None:
    answer = server.post(LOAD, lora_name="bad", lora_path=path)
    refused(answer, 404, "adapter_not_found", "lora_path")


def test_errors_do_not_contain_the_adapter_root(server: Any, root: Path) -> None:
    answer = server.post(LOAD, lora_name="bad", lora_path="broken")
    message = refused(answer, 422, "invalid_lora_adapter")
    assert message == "broken: nothing that can be read" and str(root) not in answer.text


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("a/b", "invalid_lora_name"),
        ("", "invalid_lora_name"),
        ("x" * 129, "invalid_lora_name"),
        ("x" * 1_000_000, "invalid_lora_name"),
        ("a\nb", "invalid_lora_name"),
        ("a\0b", "invalid_request_error"),
        (7, "invalid_request_error"),
    ],
)
def test_invalid_names_are_rejected(server: Any, name: Any, code: str) -> None:
    answer = server.post(LOAD, lora_name=name, lora_path="sql")
    refused(answer, 400, code)
    assert len(answer.text) < 1000
    load(server, "x" * 128, "sql")


def test_a_path_with_nul(server: Any) -> None:
    answer = server.post(LOAD, lora_name="bad", lora_path="sql\0")
    refused(answer, 400, "invalid_request_error")


def test_misspelled_fields_are_not_dropped(server: Any) -> None:
    body = {"lora_name": "a", "lora_path": "sql", "inplace": True}
    refused(server.post(LOAD, **body), 400, "invalid_request_error", "inplace")
    refused(server.post(LOAD, lora_name="a"), 400, "invalid_request_error", "lora_path")
    body = {"lora_name": "a", "lora_path": "sql", "model": "other"}
    refused(server.post(LOAD, **body), 404, "model_not_found", "model")


# Who may


def every(server: Any, headers: Any = None) -> list[Any]:
    """All three routes, asked for nothing that could be."""
    post: Callable[..., Any] = server.http.post
    body = {"lora_name": "nobody", "lora_path": "nowhere"}
    found = [post(LOAD, json=body, headers=headers)]
    found.append(post(UNLOAD, json={"lora_name": "nobody"}, headers=headers))
    return [*found, server.http.get(LIST, headers=headers)]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_without_a_root_there_are_no_routes(start: Any) -> None:
    for answer in every(start()):
        assert "--adapter-root" in refused(answer, 404, "lora_loading_disabled")


def test_api_keys_do_not_load(start: Any, root: Path) -> None:
    server = start(adapter_root=root, keys=["user"])
    for answer in every(server):
        refused(answer, 401, "invalid_api_key")
    for answer in every(server, bearer("user")):
        assert "--admin-key" in refused(answer, 403, "admin_key_required")


def test_the_admin_key_beside_api_keys(start: Any, root: Path) -> None:
    server = start(adapter_root=root, keys=["user"], admin_key="boss")
    for answer in every(server, bearer("user")):
        refused(answer, 403, "admin_key_required")
    for answer in every(server, bearer("bos")):
        refused(answer, 401, "invalid_api_key")
    assert [a.status_code for a in every(server, bearer("boss"))] == [404, 404, 200]
    assert server.http.get("/v1/models", headers=bearer("boss")).status_code == 200


def test_the_admin_key_alone(start: Any, root: Path) -> None:
    server = start(adapter_root=root, admin_key="boss")
    for headers in (None, bearer("bos"), {"authorization": "Basic boss"}):
        for answer in every(server, headers):
            refused(answer, 401, "invalid_admin_key")
            assert answer.headers["www-authenticate"] == "Bearer"
    assert [a.status_code for a in every(server, bearer("boss"))] == [404, 404, 200]
    assert server.http.get("/v1/models").status_code == 200


@pytest.mark.parametrize(
    ("place", "key", "message"),
    [(None, "boss", "--adapter-root"), ("/nowhere", None, "not a folder"), (".", " ", "empty")],
)
def test_invalid_admin_options_are_rejected(
    server: Any, place: Any, key: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        make_app(server.service, server.plugins, adapter_root=place, admin_key=key)


def test_a_folder_of_too_many_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostro.entrypoints.http.admin.MAX_FILES", 1)
    admin = Admin.of(root, None, False)
    assert admin.find("sql") == root / "sql"
    with pytest.raises(OstroError, match="more than 1 files"):
        admin.find("pirate")
