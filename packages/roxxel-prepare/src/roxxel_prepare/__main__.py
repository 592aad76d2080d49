"""`python -m roxxel_prepare` is the `roxxel-prepare` command."""

import sys

from roxxel_prepare.cli import main

sys.exit(main())
