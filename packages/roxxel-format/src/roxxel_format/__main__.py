"""`python -m roxxel_format` is the `roxxel-format` command."""

import sys

from roxxel_format.cli import main

sys.exit(main())
