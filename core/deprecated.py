"""Deprecation warnings.

A deprecated hook, hook argument or record field works for one more minor release. A hook
specification uses the warnings like this: `@hookspec(warn_on_impl_args={"old": HOOK_OLD})`.
"""

from __future__ import annotations


class OstroDeprecationWarning(FutureWarning):
    """Base of ostro's deprecation warnings; a FutureWarning, since Python shows it by default."""


class RemovedInOstro1(OstroDeprecationWarning):
    """Works in all 0.x releases and is removed in 1.0."""
