"""Select Triton's interpreter without a GPU; this must happen before triton is imported."""

from ostro.testing import interpret

interpret()
