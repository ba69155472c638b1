"""config.json is read within limits, and what is wrong with it is said by line and column."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from ostro.core.errors import ConfigError, ModelNotFound
from ostro.core.load.container import read_config


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "config.json: line 1 column 1: not JSON"),
        (b'{\n  "a": 1,\n  b\n}', "config.json: line 3 column 3: not JSON"),
        (b"[1]", "line 1 column 1: must be an object, not a list"),
        (b"3", "must be an object, not a int"),
        (b'{"a": "\xff"}', "not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", "nested more than 100 levels deep"),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", "nested more than 100 levels deep"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "nested more than 100 levels deep"),
        (b'{"a":' + b"[" * 9_000_000, "nested more|not JSON"),
        (b'{"a": "' + b"x" * 10_000_000 + b'"}', "larger than 10 MB"),
        (b" " * 100_000_000, "larger than 10 MB"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else value,
)
def test_a_config_that_is_malformed_or_too_much_is_refused(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        read_config(tmp_path)


def test_a_config_is_read_from_its_file_or_its_folder(tmp_path: Path) -> None:
    deep = json.loads("[" * 99 + "]" * 99)
    config = {"model_type": "llama", "name": "ö", "limit": [0.0, float("inf")], "deep": deep}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_config(tmp_path) == config
    assert read_config(tmp_path / "config.json") == config


def test_a_missing_config_lists_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no config\.json in .*; found: nothing"):
        read_config(tmp_path)
    (tmp_path / "README.md").touch()
    with pytest.raises(ModelNotFound, match=r"found: README\.md"):
        read_config(tmp_path)
    with pytest.raises(ModelNotFound, match=r"no config\.json in .*missing; found: nothing"):
        read_config(tmp_path / "missing" / "config.json")


def test_code_that_a_config_names_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace = tmp_path / "ran"
    (tmp_path / "modeling_evil.py").write_text(f"open({str(trace)!r}, 'w')")
    config = {"auto_map": {"AutoModel": "modeling_evil.Model"}, "model_type": "evil"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with caplog.at_level(logging.WARNING):
        assert read_config(tmp_path) == {"model_type": "evil"}
    assert "auto_map is ignored" in caplog.text
    assert not trace.exists()
