"""Cache kinds: what a plugin implements, and the views that layers read."""

from __future__ import annotations

from ostro.core.cache import PagedView, RecurrentView

__all__ = [
    "PagedView",
    "RecurrentView",
]
