"""Permissions of a caller."""

from __future__ import annotations

import pytest

from ostro.entrypoints.operations.access.caller import ANYONE, Caller, Forbidden


def test_the_default_caller_may_do_everything() -> None:
    for scope in ("open", "infer", "admin", "metrics"):
        ANYONE.require(scope)
    ANYONE.check("any", ["sql"])
    assert ANYONE.bounded_priority(None) == 0 and ANYONE.bounded_priority(-5) == -5
    assert ANYONE.salted(None) == "" and ANYONE.salted("mine") == "mine"


def test_a_caller_is_held_to_its_scopes_models_and_adapters() -> None:
    caller = Caller(
        name="team",
        scopes=frozenset({"infer"}),
        models=frozenset({"small"}),
        adapters=frozenset({"sql"}),
    )
    caller.require("open")
    caller.require("infer")
    caller.check("small", ["sql"])
    with pytest.raises(Forbidden, match="scope 'admin'"):
        caller.require("admin")
    with pytest.raises(Forbidden, match="model 'large'") as wrong:
        caller.check("large")
    assert wrong.value.param == "model" and wrong.value.status == 403
    with pytest.raises(Forbidden, match="adapter 'style'"):
        caller.check("small", ["sql", "style"])


def test_a_request_cannot_claim_a_better_priority_than_its_caller() -> None:
    caller = Caller(priority=10)
    assert [caller.bounded_priority(x) for x in (None, -3, 10, 20)] == [10, 10, 10, 20]


def test_callers_with_equal_requested_salts_have_different_salts() -> None:
    first, second = Caller(salt="a"), Caller(salt="b")
    salts = [each.salted(salt) for each in (first, second) for salt in (None, "x")]
    assert len({*salts}) == 4 and all(len(salt) == 64 for salt in salts)
    assert first.salted(None) == first.salted("")
