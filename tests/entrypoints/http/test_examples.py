"""The examples of gateways and of Kubernetes: their routes, options and metrics exist."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from echo.server import Running, Start

from ostro.core.plugins.manager import PluginManager
from ostro.entrypoints.cli import build
from ostro.entrypoints.http.app import routes_of

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "docs" / "examples"
NGINX = EXAMPLES / "nginx.conf"
OPERATIONS = ROOT / "docs" / "operations.md"


@pytest.fixture(scope="module")
def paths() -> set[str]:
    """The paths of all GET routes."""
    plugins = PluginManager()
    plugins.load()
    names = (route.name for route in routes_of(plugins))
    return {name.removeprefix("GET ") for name in names if name.startswith("GET ")}


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    """The documents of the manifest by kind."""
    found = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    return {document["kind"]: document for document in found}


def test_the_manifest_probes_routes_that_exist(manifest: dict[str, Any], paths: set[str]) -> None:
    template = manifest["Deployment"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in paths
        assert container[probe]["httpGet"]["port"] == container["ports"][0]["name"]
    annotations = template["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] in paths
    assert int(annotations["prometheus.io/port"]) == container["ports"][0]["containerPort"]


def test_the_manifest_has_valid_options(manifest: dict[str, Any]) -> None:
    pod = manifest["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    parser, _ = build(container["args"])
    args = parser.parse_args(container["args"])
    assert args.drain_timeout < pod["terminationGracePeriodSeconds"]
    assert args.host == "0.0.0.0" and args.keys and args.open_metrics
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert mounts[str(args.keys.parent)] in [volume["name"] for volume in pod["volumes"]]


def test_the_selectors_of_the_manifest_agree(manifest: dict[str, Any]) -> None:
    labels = manifest["Deployment"]["spec"]["template"]["metadata"]["labels"]
    port = manifest["Deployment"]["spec"]["template"]["spec"]["containers"][0]["ports"][0]
    assert manifest["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert manifest["Service"]["spec"]["selector"] == labels
    assert manifest["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    pool = manifest["InferencePool"]["spec"]
    assert pool["selector"]["matchLabels"] == labels
    assert pool["targetPorts"] == [{"number": port["containerPort"]}]


def test_the_metrics_of_the_page_exist(server: Running) -> None:
    assert server.complete("hello").status_code == 200
    text = server.http.get("/metrics").text
    named = set(re.findall(r"`((?:vllm:|ostro_)\w+)`", OPERATIONS.read_text()))
    assert named
    for name in named:
        assert f"# TYPE {name} " in text or f"# TYPE {name.removesuffix('_total')} " in text, name


def test_the_gateway_hides_a_route_that_exists(paths: set[str]) -> None:
    exact = re.findall(r"location = (\S+)", NGINX.read_text())
    assert exact and set(exact) <= paths


@contextmanager
def gateway(folder: Path, *replicas: Running) -> Iterator[str]:
    """Run nginx with the example's configuration in front of servers, and yield its URL."""
    program = shutil.which("nginx")
    if program is None:
        pytest.skip("nginx is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = NGINX.read_text().replace("listen 8080", f"listen 127.0.0.1:{port}")
    for address, replica in zip(("127.0.0.1:1234", "127.0.0.1:1235"), replicas, strict=True):
        assert address in text
        text = text.replace(address, replica.url.removeprefix("http://"))
    for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"):
        text = text.replace("http {", f"http {{\n  {name}_temp_path {folder}/{name};\n", 1)
    text = text.replace("http {", "http {\n  access_log off;\n", 1)
    file = folder / "nginx.conf"
    file.write_text(f"daemon off;\npid {folder}/pid;\nerror_log {folder}/log;\n{text}")
    process = subprocess.Popen(
        [program, "-p", str(folder), "-c", str(file), "-e", str(folder / "log")]
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.process
def test_the_gateway_streams_and_avoids_a_replica_that_drains(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = start(), start()
    with gateway(tmp_path, one, two) as url, httpx.Client(base_url=url, timeout=120) as client:
        for number in range(8):
            answer = client.post("/v1/completions", json={"prompt": f"request {number}"})
            assert answer.status_code == 200 and answer.headers["x-request-id"]
        assert one.echo.seen and two.echo.seen, "both replicas work"
        monkeypatch.setattr(one.service.engine, "draining", True)
        count = len(two.echo.seen)
        for number in range(8):
            answer = client.post("/v1/completions", json={"prompt": f"request {number}"})
            assert answer.status_code == 200
        assert len(two.echo.seen) == count + 8
        assert client.get("/metrics").status_code == 404
        monkeypatch.setattr(two.echo, "step_seconds", 0.1)
        body = {"prompt": "abcdefgh", "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as stream:
            times = [time.monotonic() for line in stream.iter_lines() if line.startswith("data:")]
        assert times[-1] - times[0] > 0.4, "the gateway buffers the stream"
