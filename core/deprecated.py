"""What is on its way out, and the warnings that say so.

A hook argument, a hook or a record field stays for one minor release after its warning. The hook
specifications refer to what stands here: `@hookspec(warn_on_impl_args={"old": HOOK_OLD})`.
"""

from __future__ import annotations


class OstroDeprecationWarning(FutureWarning):
    """Base of our deprecation warnings; users see them, since plugin authors often are users."""


class RemovedInOstro1(OstroDeprecationWarning):
    """Works in every 0.x and is gone in 1.0."""
