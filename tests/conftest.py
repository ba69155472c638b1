"""What the tests share: quiet libraries, one thread, and kernels interpreted where no GPU is."""

from __future__ import annotations

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from ostro.core.testing.kernels import interpret  # reads the environment

interpret()
