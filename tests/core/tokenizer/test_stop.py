"""Stop strings are found wherever pieces of text end, and nothing after them gets out."""

from __future__ import annotations

import random
import re

import pytest
from tiny.steps import count_lines

from ostro.core.tokenizer.stop import Stop


def feed(pieces: list[str], strings: list[str], keep: bool = False) -> tuple[str, str | None]:
    """What gets out, and the string that ended it."""
    stop = Stop(strings, keep=keep)
    text = "".join(stop.add(piece) for piece in pieces)
    return text + ("" if stop.found else stop.rest()), stop.found


@pytest.mark.parametrize(
    ("pieces", "strings", "text", "found"),
    [
        (["hello"], [], "hello", None),
        (["he", "llo"], ["ell"], "h", "ell"),
        (["h", "e", "l", "l", "o"], ["lo"], "hel", "lo"),
        (["aaa", "ab"], ["aab"], "aa", "aab"),
        (["abcd"], ["cd", "bc"], "a", "bc"),
        (["abab", "abc"], ["ababc"], "ab", "ababc"),
        (["hel"], ["help"], "hel", None),
        (["END", "more"], ["END"], "", "END"),
        (["", "x", ""], ["x"], "", "x"),
        (["é", "😀"], ["😀"], "é", "😀"),
    ],
)
def test_stop(pieces: list[str], strings: list[str], text: str, found: str | None) -> None:
    assert feed(pieces, strings) == (text, found)
    kept = feed(pieces, strings, keep=True)
    assert kept == (text + (found or ""), found)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    stop = Stop(["STOP"])
    assert stop.add("abcS") == "abc"
    assert stop.add("T") == ""
    assert stop.add("x") == "STx"
    assert stop.add("STO") == ""
    assert stop.rest() == "STO" and stop.rest() == ""


def test_nothing_comes_after_the_end() -> None:
    stop = Stop(["b"])
    assert stop.add("abab") == "a" and stop.found == "b"
    assert stop.add("abab") == ""


@pytest.mark.parametrize(
    ("pieces", "strings", "text", "found"),
    [
        (["a", "b", "<e>", "c"], ["<e>"], "ab", "<e>"),
        (["ab", "<e>", "c"], ["b<e>"], "a", "b<e>"),
        (["ab", "<e>", "cd"], ["<e>c"], "ab", "<e>c"),
        (["ab", "<e>", "<f>", "c"], ["b<e><f>"], "a", "b<e><f>"),
        (["ab", "<e>", "c"], ["e"], "abc", None),
        (["ab", "<e>", "c"], [">", "<", "<e"], "abc", None),
        (["ab", "<e>", "c"], ["<e>", "e>c"], "ab", "<e>"),
        (["ab", "<e>", "c"], ["b<e>x", "c"], "ab", "c"),
        (["ab", "<e>"], ["b<e>x"], "ab", None),
        (["ab<", "e>", "c"], ["<e>"], "ab", "<e>"),
        (["a", "<f>", "c"], ["<e>", "ac"], "", "ac"),
        (["a", "<ee>", "<e>", "c"], ["<ee>x", "<e>"], "a", "<e>"),
    ],
)
def test_a_control_token_in_a_stop_string(
    pieces: list[str], strings: list[str], text: str, found: str | None
) -> None:
    for keep in (False, True):
        stop, out = Stop(strings, keep=keep, controls=["<e>", "<f>", "<ee>"]), ""
        for piece in pieces:
            control = re.fullmatch("<..?>", piece)
            out += stop.add("", piece) if control else stop.add(piece)
        out += "" if stop.found else stop.rest()
        assert (out, stop.found) == (text + (found or "") * keep, found)


@pytest.mark.parametrize("seed", range(200))
def test_pieces_do_not_matter(seed: int) -> None:
    """However a text is cut, the outcome is that of the first stop string in the whole."""
    rng = random.Random(seed)
    text = "".join(rng.choices("ab", k=40))
    strings = ["".join(rng.choices("ab", k=rng.randint(1, 7))) + "a" for _ in range(3)]
    pieces, rest = [], text
    while rest:
        cut = rng.randint(1, 5)
        pieces.append(rest[:cut])
        rest = rest[cut:]
    found = [(at, string) for string in strings if (at := text.find(string)) >= 0]
    first = min(at for at, _ in found) if found else len(text)
    out, by = feed(pieces, strings)
    ends = {text.find(string) + len(string) for string in strings if string in text}
    if not found:
        assert (out, by) == (text, None)
    else:
        assert by in strings and text.startswith(out + by)
        assert len(out) >= first and len(out) + len(by) <= max(ends)


def test_long_repetitions_cost_no_more_lines_per_piece() -> None:
    stop = Stop(["a" * 1023 + "b"] * 16)
    lines = [count_lines(lambda: stop.add("a")) for _ in range(2000)]
    assert max(lines) < 2 * lines[0]
