"""Rules of options: text, or a TOML file that is a small regular file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiny.pipes import pipe

from ostro.core.errors import UsageError
from ostro.core.placement.patterns import PatternRule, parse_rules, read_rules, regex

RULES = [PatternRule("*.down_proj", "q4k"), PatternRule("lm_head", "float")]


@pytest.mark.parametrize(
    "text", ['"*.down_proj" = "q4k"\nlm_head = "float"', '"*.down_proj" = "q4k"\r\nlm_head="float"']
)
def test_rules_are_text_or_in_a_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rules.toml"
    file.write_bytes(text.encode())
    assert read_rules(str(file), "--topology") == RULES
    given = "*.down_proj = q4k, lm_head = 'float'"
    assert read_rules(given, "--topology") == parse_rules(given, "--topology") == RULES


def test_parsed_rules_are_never_a_path(tmp_path: Path) -> None:
    for name in ("rules.toml", "pipe"):
        with pipe(tmp_path / name), pytest.raises(UsageError, match="write PATTERN = NAME"):
            parse_rules(str(tmp_path / name), "--topology")
    with pytest.raises(UsageError, match="--topology: '' is not a rule"):
        parse_rules("", "--topology")
    with pytest.raises(UsageError) as raised:
        parse_rules("x" * 1_000_000)
    assert len(str(raised.value)) < 200


def test_many_stars_are_one() -> None:
    """Each further ".*" of a regular expression would multiply the time of a failed match."""
    name = "model.layers.10.self_attn.q_proj"
    stars = regex("*" * 8 + "!")  # with eight stars apart 0.5 s, with twelve ten minutes
    assert stars.pattern.count(".*") == 1 and not stars.fullmatch(name)
    assert regex("*" * 1000 + "[9-11].**.q_proj").fullmatch(name)


def test_a_file_of_rules_is_regular_and_small(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    with pipe(file), pytest.raises(UsageError, match=r"rules\.toml: not a regular file"):
        read_rules(str(file), "--topology")
    for path in (tmp_path, Path("/dev/zero")):
        with pytest.raises(UsageError, match="not a regular file"):
            read_rules(str(path), "--topology")
    os.remove(file)
    file.touch()
    os.truncate(file, 1 << 40)
    with pytest.raises(UsageError, match="larger than 1 MB"):
        read_rules(str(file), "--topology")
    file.write_text("a = " + "[" * 100_000)
    with pytest.raises(UsageError, match=r"rules\.toml"):
        read_rules(str(file), "--topology")
