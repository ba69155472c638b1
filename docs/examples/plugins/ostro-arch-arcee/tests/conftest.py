"""Select Triton's interpreter if there is no GPU; this must precede the import of triton."""

from ostro.testing import interpret

interpret()
