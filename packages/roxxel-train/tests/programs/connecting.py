"""One of several processes of which some are missing; started by test_local.py."""

import sys

from roxxel_train._together import meeting
from roxxel_train.distributed import initialize

meeting.TELL_S = 0.2
address, count, index = sys.argv[1:]
initialize(address, int(count), int(index))
