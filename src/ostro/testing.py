"""The conformance kit.

pytest --ostro-arch NAME --pyargs ostro.testing
"""

from ostro.plugins.conformance import *  # noqa: F403
from ostro.plugins.conformance import ArchitectureTests


class TestNamed(ArchitectureTests):
    """The architectures that `--ostro-arch` names."""
