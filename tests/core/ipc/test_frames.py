"""Messages on a socket: what cannot be written is the fault of the request."""

from __future__ import annotations

import pytest

from ostro.core.errors import RequestError
from ostro.core.ipc.frames import Frames, frame, to_engine
from ostro.core.messages.requests import JobRequest, PoolingRequest


@pytest.mark.parametrize("integer", [2**64, -(2**63) - 1, 10**30])
def test_an_integer_beyond_64_bits_is_refused(integer: int) -> None:
    for request in (
        JobRequest(id="a", values={"steps": integer}),
        PoolingRequest(id="a", inputs=[[integer]]),
    ):
        with pytest.raises(RequestError, match="integer"):
            frame(request)


@pytest.mark.parametrize("integer", [2**64 - 1, -(2**63)])
def test_integers_of_64_bits_are_written(integer: int) -> None:
    request = JobRequest(id="a", values={"steps": integer})
    [body] = Frames().feed(frame(request))
    assert to_engine.decode(body) == request
