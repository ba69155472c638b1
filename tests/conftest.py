"""What the tests share: quiet libraries, one thread, and kernels interpreted where no GPU is."""

from __future__ import annotations

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning takes the other worker's core

import pytest
import torch

from ostro.plugins.conformance.kernels import interpret  # reads the environment

interpret()
THREADS = torch.get_num_threads()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """A model that an earlier test opened took every core."""
    torch.set_num_threads(THREADS)
