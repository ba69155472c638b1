"""The conformance kit.

pytest --ostro-arch NAME --pyargs ostro.testing
"""

from ostro.plugins import conformance
from ostro.plugins.conformance import *  # noqa: F403
from ostro.plugins.conformance import ArchitectureTests

__all__ = conformance.__all__


class TestNamed(ArchitectureTests):
    """The architectures that `--ostro-arch` names."""
