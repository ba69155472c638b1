"""`python -m ostro` is the command line."""

import sys

from ostro.entrypoints.cli import main

sys.exit(main())
