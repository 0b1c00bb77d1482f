"""`python -m linglue` is the command line."""

import sys

from linglue.cli import main

sys.exit(main())
