"""`python -m roxxel_ckpt.cli` runs the command."""

import sys

from roxxel_ckpt.cli import main

sys.exit(main())
