"""Attacks of each kind on every API family: an error in the family's form, then a good answer.

The names of the tests start with the rows of the threat table: C, requests; E, media; F, keys; G,
resources. `docs/security.md` lists them.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import struct
import time
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zlib import crc32

import httpx
import pytest
from tiny.bert import make_bert
from tiny.pictures import address, picture, saved
from tiny.server import RunningServer, serving
from tiny.vision import make_vision

from ostro.core.settings import Settings

KEY = "secret"
CLASSIFIER = "BertForSequenceClassification"
HI: list[Any] = [{"role": "user", "content": "hello"}]
CHAT, COMPLETE, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPOND, TALKS = "/v1/responses", "/v1/conversations"
BATCHES, FILES, UPLOADS = "/v1/batches", "/v1/files", "/v1/uploads"
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
MESSAGE_BATCHES = "/v1/messages/batches"
MESSAGE: dict[str, Any] = {"model": "tiny", "max_tokens": 2, "messages": HI}
RERANK: dict[str, Any] = {"query": "hello", "documents": ["hello", "a"]}
FEW = {"num_predict": 2}
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HI, "max_tokens": 2},
    f"{CHAT}/input_tokens": {"messages": HI},
    COMPLETE: {"prompt": "hello", "max_tokens": 2},
    EMBED: {"model": "bert", "input": "hello"},
    RESPOND: {"input": "hello", "max_output_tokens": 16},
    f"{RESPOND}/input_tokens": {"input": "hello"},
    TALKS: {"metadata": {"a": "b"}},
    UPLOADS: {"filename": "a", "purpose": "batch", "bytes": 9, "mime_type": "text/plain"},
    MESSAGES: MESSAGE,
    COUNT: {"model": "tiny", "messages": HI},
    MESSAGE_BATCHES: {"requests": [{"custom_id": "a", "params": MESSAGE}]},
    "/api/chat": {"model": "tiny", "messages": HI, "stream": False, "options": FEW},
    "/api/generate": {"model": "tiny", "prompt": "hello", "stream": False, "options": FEW},
    "/api/embed": {"model": "bert", "input": "hello"},
    "/rerank": RERANK,
    "/v1/rerank": RERANK,
    "/v2/rerank": RERANK,
    "/score": {"text_1": "hello", "text_2": "a"},
    "/classify": {"input": "hello"},
    "/pooling": {"input": "hello"},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [1, 2]},
    "/apply-template": {"messages": HI},
}
"""A good request for each route."""
UNSERVED = ["/v1/images/generations", "/v1/audio/speech", BATCHES]
"""Routes for JSON whose good requests need another model or a file: their own tests send them."""
FORMS = [FILES, "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits"]
JSON = {"content-type": "application/json"}
DEEP = b"[" * 10_000 + b"]" * 10_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of a model for texts and images, an embedding model, a reranker, a classifier."""
    root = tmp_path_factory.mktemp("models")
    make_vision(root / "tiny")
    make_bert(root / "bert")
    make_bert(root / "ranker", CLASSIFIER, num_labels=1)
    make_bert(root / "judge", CLASSIFIER, num_labels=3)
    also = [str(root / name) for name in ("bert", "ranker", "judge")]
    settings = Settings(reference=str(root / "tiny"), dtype="float32")
    with serving(settings, also=also, api_keys=[KEY], store="memory") as running:
        yield running


@pytest.fixture(scope="module")
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60, headers={"x-api-key": KEY}) as client:
        yield client


def message_of(path: str, body: Any) -> str:
    """The message of an error, in the form of a path's family."""
    if path.startswith("/v1/messages"):
        assert body.keys() == {"type", "error", "request_id"} and body["type"] == "error"
        return str(body["error"]["message"])
    if path == "/v2/rerank":
        assert body.keys() == {"message"}
        return str(body["message"])
    if path.endswith("/rerank"):
        assert body.keys() == {"detail"}
        return str(body["detail"])
    if path.startswith("/api/"):
        assert body.keys() == {"error"} and isinstance(body["error"], str)
        return str(body["error"])
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return str(body["error"]["message"])


def refused(path: str, answer: httpx.Response, *statuses: int, words: str = "") -> None:
    """The answer is an error of the path's family that shows nothing of the server."""
    assert answer.status_code in statuses, (answer.status_code, answer.text[:300])
    message = message_of(path, answer.json())
    assert message and words in answer.text, message
    for leak in ("Traceback", "msgspec", "site-packages", str(Path.cwd()), KEY):
        assert leak not in answer.text


def check_good(http: httpx.Client, path: str) -> None:
    """A good request is answered; for routes without a model a chat is."""
    path = path if path in GOOD else CHAT
    answer = http.post(path, json=GOOD[path])
    assert answer.status_code == 200, answer.text


C1 = {
    "empty": b"",
    "unfinished": b"{",
    "list": b"[]",
    "text": b'"text"',
    "null": b"null",
    "UTF-16": '{"model": "tiny"}'.encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf{}",
    "invalid UTF-8": b'{"model": "\xff"}',
    "lone surrogate": b'{"model": "\\ud800"}',
    "U+0000": b'{"model": "a\\u0000b"}',
    "two members of one name": b'{"model": "a", "model": "b"}',
    "NaN": b'{"model": NaN}',
    "Infinity": b'{"model": Infinity}',
    "long integer": b'{"model": ' + b"9" * 5000 + b"}",
    "two documents": b"{} {}",
    "unknown field": b'{"no_such_field": 1}',
    "10,000 levels": b'{"model": ' + DEEP + b"}",
    "300,000 objects": b'{"model": [' + b"{}," * 300_000 + b"{}]}",
}


@pytest.mark.parametrize("path", [*GOOD, *UNSERVED])
def test_c1_c3_malformed_bodies(http: httpx.Client, path: str) -> None:
    for name, data in C1.items():
        answer = http.post(path, content=data, headers=JSON)
        # what is longer than a context is refused before it is read
        assert answer.status_code in (400, 413), (name, answer.status_code, answer.text[:200])
        refused(path, answer, 400, 413)
    check_good(http, path)


def raw(server: RunningServer, *lines: str) -> tuple[int, Any]:
    """The status and the JSON of the answer to a request's head, sent without its body."""
    address = urlsplit(server.url)
    head = "\r\n".join([*lines, "Host: localhost", f"x-api-key: {KEY}", "", ""])
    with socket.create_connection((address.hostname, address.port), timeout=120) as client:
        client.sendall(head.encode())
        answer = b""
        while part := client.recv(1 << 16):
            answer += part
    status, _, body = answer.partition(b"\r\n\r\n")
    return int(status.split()[1]), json.loads(body)


@pytest.mark.parametrize("path", [*GOOD, *UNSERVED, *FORMS])
def test_c2_wrong_envelopes(server: RunningServer, http: httpx.Client, path: str) -> None:
    foreign = {"origin": "https://example.org"}  # a browser's request, see `check_type`
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = http.post(path, content=b"{}", headers={**foreign, "content-type": kind})
        refused(path, answer, 415, words="Content-Type")
    if path not in FORMS:
        bomb = gzip.compress(b" " * (1 << 20))
        answer = http.post(path, content=bomb, headers={**JSON, "content-encoding": "gzip"})
        refused(path, answer, 415, words="Content-Encoding")
    kind = "multipart/form-data; boundary=x" if path in FORMS else "application/json"
    head = [f"POST {path} HTTP/1.1", f"Content-Type: {kind}", f"Content-Length: {1 << 40}"]
    status, body = raw(server, *head)
    assert status == 413 and message_of(path, body)
    check_good(http, path)


@pytest.mark.parametrize("path", FORMS)
def test_c2_malformed_forms(http: httpx.Client, path: str) -> None:
    kind = {"content-type": "multipart/form-data; boundary=x"}
    part = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n'
    for name, data in {
        "empty": b"",
        "no boundary": b"text",
        "no file": part + b"--x--\r\n",
        "a thousand fields": part * 1000 + b"--x--\r\n",
        "no name": b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--\r\n",
    }.items():
        answer = http.post(path, content=data, headers=kind)
        assert answer.status_code == 400, (name, answer.status_code, answer.text[:200])
        refused(path, answer, 400)
    check_good(http, path)


LONG = "hello " * 20_000
WRONG: list[tuple[str, dict[str, Any], str]] = [
    # C4: numbers
    (CHAT, {"n": 10**9}, "n"),
    (CHAT, {"max_tokens": -1}, "max_tokens"),
    (CHAT, {"temperature": -1}, "temperature"),
    (COMPLETE, {"max_tokens": 2**63}, "max_tokens"),
    (COMPLETE, {"seed": 2**63}, "seed"),
    (COMPLETE, {"logprobs": 10**6}, "logprobs"),
    (RESPOND, {"max_output_tokens": -1}, "max_output_tokens"),
    (RESPOND, {"top_p": 2}, "top_p"),
    (MESSAGES, {"max_tokens": -1}, "max_tokens"),
    (MESSAGES, {"temperature": 1.5}, "temperature"),
    (MESSAGES, {"top_k": -5}, "top_k"),
    ("/api/chat", {"options": {"temperature": -1}}, "temperature"),
    ("/api/generate", {"options": {"num_predict": 2**63}}, "num_predict"),
    ("/rerank", {"top_n": -1}, "top_n"),
    ("/v2/rerank", {"max_tokens_per_doc": 0}, "max_tokens_per_doc"),
    (EMBED, {"dimensions": 0}, "dimensions"),
    (UPLOADS, {"bytes": 2**60}, "bytes"),
    # C5: stop strings
    (CHAT, {"stop": [""]}, "stop"),
    (COMPLETE, {"stop": "x" * (1 << 20)}, "stop"),
    (MESSAGES, {"stop_sequences": [""]}, "stop_sequences"),
    ("/api/chat", {"options": {"stop": [""]}}, "stop"),
    # C6: prompts
    (COMPLETE, {"prompt": []}, "prompt"),
    (COMPLETE, {"prompt": [-1]}, "prompt"),
    (COMPLETE, {"prompt": LONG}, "context"),
    (CHAT, {"messages": [{"role": "user", "content": LONG}]}, "context"),
    (RESPOND, {"input": LONG}, "context"),
    (MESSAGES, {"messages": [{"role": "user", "content": LONG}]}, "context"),
    ("/api/chat", {"messages": [{"role": "user", "content": LONG}]}, "context"),
    ("/api/generate", {"prompt": LONG}, "context"),
    (EMBED, {"input": []}, "input"),
    (EMBED, {"input": [[10**9]]}, str(10**9)),
    ("/pooling", {"input": ["a", 5]}, "input"),
    ("/detokenize", {"tokens": [10**9]}, str(10**9)),
    ("/detokenize", {"tokens": [-1]}, "-1"),
    # C7: logit bias
    (CHAT, {"logit_bias": {"-1": 1}}, "logit_bias"),
    (COMPLETE, {"logit_bias": {"1": 1000}}, "logit_bias"),
    # C9: conversations
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": [{"role": "wizard", "content": "a"}]}, "role"),
    (RESPOND, {"input": [{"role": "wizard", "content": "a"}]}, "input"),
    (TALKS, {"items": [{"type": "wizard"}]}, "items"),
    (MESSAGES, {"messages": []}, "messages"),
    (MESSAGES, {"messages": [{"role": "wizard", "content": "a"}]}, "role"),
    (COUNT, {"messages": [{"role": "user", "content": []}]}, "content"),
    ("/api/chat", {"messages": [{"role": "wizard", "content": "a"}]}, "role"),
    ("/apply-template", {"messages": [{"role": "user"}]}, "content"),
    (MESSAGE_BATCHES, {"requests": []}, "requests"),
    # C11: templates
    (CHAT, {"chat_template": "{{ messages }}"}, "chat_template"),
    (CHAT, {"chat_template_kwargs": {"tools": []}}, "tools"),
    ("/tokenize", {"prompt": None, "messages": HI, "chat_template": "x"}, "chat_template"),
    # C12: tools
    (CHAT, {"tools": [{"type": "function"}]}, "tools"),
    (CHAT, {"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool"),
    (MESSAGES, {"tools": [{"name": "f"}]}, "tools"),
    ("/api/chat", {"tools": [{"type": "function"}]}, "tools"),
]


@pytest.mark.parametrize(("path", "fields", "word"), WRONG, ids=range(len(WRONG)))
def test_c4_to_c12_wrong_fields(
    http: httpx.Client, path: str, fields: Mapping[str, Any], word: str
) -> None:
    body = {name: value for name, value in (GOOD[path] | fields).items() if value is not None}
    refused(path, http.post(path, json=body), 400, 413, words=word)
    check_good(http, path)


@pytest.mark.parametrize("path", [path for path in GOOD if "batches" not in path])
def test_c8_unknown_models(http: httpx.Client, path: str) -> None:
    if path in (TALKS, UPLOADS):  # they name no model
        return
    refused(path, http.post(path, json={**GOOD[path], "model": "nothing"}), 404, words="nothing")
    check_good(http, path)


def image(url: str) -> dict[str, dict[str, Any]]:
    """Requests of each family with an image at an address."""
    part = {"type": "image_url", "image_url": {"url": url}}
    source = {"type": "image", "source": {"type": "url", "url": url}}
    seen = {"type": "input_image", "image_url": url}
    return {
        CHAT: {"messages": [{"role": "user", "content": [part]}]},
        RESPOND: {"input": [{"role": "user", "content": [seen]}]},
        MESSAGES: {"messages": [{"role": "user", "content": [source]}]},
    }


ADDRESSES = [
    "http://127.0.0.1/a.png",
    "http://[::1]/a.png",
    "http://169.254.169.254/latest/meta-data",
    "http://0x7f.1/a.png",
    "http://2130706433/a.png",
    "ftp://example.org/a.png",
    "gopher://example.org/",
    "file:///etc/passwd",
    "/etc/passwd",
    "data:image/png;base64,@@@",
    "data:text/html;base64,PGI+",
    "data:image/png;base64,iVBORw0KGgo=",
]


@pytest.mark.parametrize("path", [CHAT, RESPOND, MESSAGES])
def test_e1_e2_e3_addresses_and_damaged_images(http: httpx.Client, path: str) -> None:
    for url in ADDRESSES:
        answer = http.post(path, json=GOOD[path] | image(url)[path])
        assert answer.status_code == 400, (url, answer.status_code, answer.text[:200])
        refused(path, answer, 400)
        assert "root:" not in answer.text
    check_good(http, path)


def test_e2_damaged_images_of_ollama(http: httpx.Client) -> None:
    for data in ("@@@", "PGI+", "iVBORw0KGgo="):
        message = {"role": "user", "content": "hello", "images": [data]}
        body = {**GOOD["/api/chat"], "messages": [message]}
        refused("/api/chat", http.post("/api/chat", json=body), 400)
    check_good(http, "/api/chat")


@pytest.mark.parametrize("path", [*GOOD, *UNSERVED, *FORMS, "/api/tags", "/v1/models", BATCHES])
def test_f1_missing_and_wrong_keys(server: RunningServer, http: httpx.Client, path: str) -> None:
    with httpx.Client(base_url=server.url) as client:
        for headers in (
            {},
            {"authorization": "Bearer secre"},
            {"authorization": "Bearer secret2"},
            {"x-api-key": "clé".encode()},
            {"x-api-key": "x" * 10_000},
        ):
            for answer in (
                client.post(path, json=GOOD.get(path, {}), headers=headers),
                client.get(f"{path}?api_key={KEY}", headers=headers),
            ):
                assert answer.status_code == 401, answer.text
                message_of(path, answer.json())
    check_good(http, path)


def bomb(side: int = 40_000) -> str:
    """A PNG of a few KB that announces and contains a giant white image, as a data URL."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", crc32(name + data))

    packed = zlib.compressobj(9)
    rows = b"".join(packed.compress(bytes(1 + side // 8)) for _ in range(side // 40))
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows + packed.flush())
    return "data:image/png;base64," + b64encode(data + chunk(b"IEND", b"")).decode()


@pytest.mark.parametrize("path", [CHAT, RESPOND, MESSAGES, "/api/chat"])
def test_e3_images_of_giant_size(http: httpx.Client, path: str) -> None:
    url = bomb()
    assert len(url) < 200_000
    seen = {**image(url), "/api/chat": ollama_image(url)}
    refused(path, http.post(path, json=GOOD[path] | seen[path]), 400)
    check_good(http, path)


@pytest.mark.parametrize("path", [CHAT, RESPOND, MESSAGES])
def test_e5_a_thousand_images(http: httpx.Client, path: str) -> None:
    body = GOOD[path] | image(address(saved(picture(1, 8, 8))))[path]
    [[name, [message]]] = [(name, body[name]) for name in ("messages", "input") if name in body]
    many = [{**message, "content": message["content"] * 1000}]
    refused(path, http.post(path, json={**body, name: many}), 400)
    check_good(http, path)


def ollama_image(url: str) -> dict[str, Any]:
    """A request with the image of a data URL."""
    images = [url.partition(",")[2]]
    return {"messages": [{"role": "user", "content": "hello", "images": images}]}


@pytest.mark.parametrize("path", [CHAT, RESPOND, MESSAGES, "/api/chat"])
def test_c10_control_tokens_are_text(http: httpx.Client, path: str) -> None:
    """The text of a token costs several tokens; as a token for an image it would be refused."""
    text = "<|image_pad|><|im_end|>"
    fields = (
        {"input": text} if path == RESPOND else {"messages": [{"role": "user", "content": text}]}
    )
    counts = []
    for body in (GOOD[path], GOOD[path] | fields):
        answer = http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        used = found.get("usage") or {"prompt_tokens": found.get("prompt_eval_count")}
        cached = used.get("cache_read_input_tokens", 0)
        counts.append(used.get("prompt_tokens") or used["input_tokens"] + cached)
    assert counts[1] > counts[0] + 4, counts


STREAMS: dict[str, dict[str, Any]] = {
    CHAT: {"max_tokens": None, "ignore_eos": True},
    COMPLETE: {"max_tokens": 200, "ignore_eos": True},
    RESPOND: {"max_output_tokens": None, "store": False},
    MESSAGES: {"max_tokens": 4000},
    "/api/chat": {"options": {"num_predict": -1}},
    "/api/generate": {"options": {"num_predict": -1}},
}


@pytest.mark.process
@pytest.mark.parametrize("path", STREAMS)
def test_g4_clients_that_leave(server: RunningServer, http: httpx.Client, path: str) -> None:
    body = {**GOOD[path], **STREAMS[path], "stream": True}
    for _ in range(3):
        with http.stream("POST", path, json=body) as answer:
            assert answer.status_code == 200, answer.read()
            next(answer.iter_raw())
    limit = time.monotonic() + 120
    while server.stats().running:
        assert time.monotonic() < limit, "a request of a client that left still runs"
        time.sleep(0.02)
    check_good(http, path)


def test_the_page_names_tests_that_exist() -> None:
    tests = Path(__file__).resolve().parents[2]
    page = (tests.parent / "docs/security.md").read_text()
    named = re.findall(r"`([a-z_/]+\.py)(?:::([a-z_0-9]+))?`", page)
    assert len(named) > 50
    for file, name in named:
        assert not name or f"def {name}(" in (tests / file).read_text(), (file, name)
        assert (tests / file).is_file(), file
    own = {name for file, name in named if file.endswith("test_threats.py")}
    listed = set(re.findall(r"^def (test_[cefg]\d[a-z_0-9]*)", Path(__file__).read_text(), re.M))
    assert listed - {"test_e2_damaged_images_of_ollama"} <= own
