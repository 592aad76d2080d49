"""One of two processes that meet by name; started by test_local.py."""

import sys

import jax
from roxxel_train.distributed import barrier, initialize


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")


initialize()
initialize()
index = jax.process_index()
say(f"process {index} of {jax.process_count()}, {jax.device_count()} devices")
barrier("begin")
barrier("begin")
if index == 0:
    try:
        barrier("late", timeout_s=0.2)
    except TimeoutError as error:
        say(error)
barrier("process 0 has given up")
if index == 1:
    try:
        barrier("late", timeout_s=60)
    except TimeoutError as error:
        say(error)
barrier("end")
sys.exit(int(sys.argv[1]) * index)
