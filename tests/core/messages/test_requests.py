"""Sampling parameters out of range are refused by name; their limits are allowed."""

from __future__ import annotations

import math

import msgspec
import pytest

from ostro.core.errors import RequestError
from ostro.core.messages.outputs import Stats, TokenOutput
from ostro.core.messages.requests import (
    MAX_STOP_LENGTH,
    MAX_STOPS,
    RANGES,
    Dry,
    Sampling,
    TokenRequest,
)

BOUNDS = [(name, low, high) for name, low, high in RANGES]


def rules(name: str, value: object) -> Sampling:
    """Sampling with one field set, and others that do not conflict with it."""
    more = {"max_tokens": 2**31} if name == "min_tokens" else {}
    more |= {"temperature": 0} if name == "top_p" else {}
    return Sampling(**{**more, name: value})  # type: ignore[arg-type]


def test_every_number_has_a_range() -> None:
    numbers = {
        field.name
        for field in msgspec.structs.fields(Sampling)
        if field.type in (int, float, int | None, float | None)
    }
    assert numbers - {"ignore_eos"} == {name for name, _, _ in RANGES}


def test_the_defaults_are_in_range() -> None:
    assert Sampling().checked() == Sampling()


@pytest.mark.parametrize(("name", "low", "high"), BOUNDS)
def test_both_ends_of_a_range(name: str, low: float, high: float) -> None:
    kind = type(low) if isinstance(low, float) else type(high)
    for end in (low, high):
        rules(name, end).checked()
    step = 1 if kind is int else 1e-3
    beyond = (low - max(step, abs(low) * 1e-3), high + max(step, abs(high) * 1e-3))
    for value in (*beyond, math.inf, -math.inf, math.nan):
        with pytest.raises(RequestError, match=rf"^{name}=.* is not within {low}\.\.{high}") as e:
            rules(name, value).checked()
        assert e.value.param == name


@pytest.mark.parametrize(
    ("sampling", "param", "message"),
    [
        (Sampling(top_p=0), "top_p", "use temperature=0 for greedy"),
        (Sampling(min_tokens=3, max_tokens=2), "min_tokens", "exceeds max_tokens=2"),
        (Sampling(stop=("x",) * (MAX_STOPS + 1)), "stop", f"at most {MAX_STOPS}"),
        (Sampling(stop=("",)), "stop", "0 characters"),
        (Sampling(stop=("x" * (MAX_STOP_LENGTH + 1),)), "stop", "1025 characters"),
        (Sampling(stop_ids=(320,)), "stop_ids", r"token id 320 is not within 0\.\.319"),
        (Sampling(stop_ids=(-1,)), "stop_ids", "token id -1"),
        (Sampling(logit_bias={320: 1.0}), "logit_bias", "token id 320"),
        (Sampling(logit_bias={-1: 1.0}), "logit_bias", "token id -1"),
        (Sampling(logit_bias={1: 101.0}), "logit_bias", "bias 101.0 of token 1"),
        (Sampling(logit_bias={1: -101.0}), "logit_bias", "bias -101.0 of token 1"),
        (Sampling(logit_bias={1: math.nan}), "logit_bias", "bias nan of token 1"),
        (Sampling(dry=Dry(multiplier=-1)), "dry.multiplier", "multiplier=-1"),
        (Sampling(dry=Dry(multiplier=math.nan)), "dry.multiplier", "multiplier=nan"),
        (Sampling(dry=Dry(base=0.5)), "dry.base", "base=0.5"),
        (Sampling(dry=Dry(base=11)), "dry.base", "base=11"),
        (Sampling(dry=Dry(allowed_length=0)), "dry.allowed_length", "allowed_length=0"),
        (Sampling(dry=Dry(allowed_length=1001)), "dry.allowed_length", "allowed_length=1001"),
        (Sampling(dry=Dry(window=-1)), "dry.window", "window=-1"),
        (Sampling(dry=Dry(breakers=(320,))), "dry", "token id 320"),
        (Sampling(dry=Dry(breakers=(-1,))), "dry", "token id -1"),
    ],
)
def test_sampling_without_a_range_is_validated(
    sampling: Sampling, param: str, message: str
) -> None:
    with pytest.raises(RequestError, match=message) as error:
        sampling.checked(320)
    assert error.value.param == param and error.value.status == 400


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(top_p=0, temperature=0),
        Sampling(min_tokens=2, max_tokens=2),
        Sampling(stop=("x" * MAX_STOP_LENGTH,) * MAX_STOPS),
        Sampling(stop_ids=(0, 319), logit_bias={0: -100.0, 319: 100.0}),
        Sampling(dry=Dry(multiplier=0.8, breakers=(0, 319), window=64)),
        Sampling(max_tokens=0),
    ],
)
def test_limits_are_allowed(sampling: Sampling) -> None:
    assert sampling.checked(320) is sampling


@pytest.mark.parametrize(
    "message",
    [
        TokenRequest(id="a", tokens=[1, 2], sampling=Sampling(dry=Dry(base=2), logit_bias={3: 1})),
        TokenOutput(id="a", tokens=[4], finish="stop", stopped_by=4),
        Stats(running=1),
    ],
)
def test_messages_cross_processes_unchanged(message: msgspec.Struct) -> None:
    kinds = TokenRequest | TokenOutput | Stats
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=kinds)
    assert again == message
