"""Building blocks of model files: linears, attention, experts, norms, rope, model base classes."""

from ostro.core.nn import *  # noqa: F403 - the names are those in `__all__` of ostro.core.nn
from ostro.core.nn import __all__ as __all__
