"""`python -m paramstream.cli` is the command `paramstream` of this very interpreter."""

import sys

from .main import main

sys.exit(main())
