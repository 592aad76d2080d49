"""One of two processes that meet by name; started by test_local.py."""

import atexit
import sys
import threading

import jax
from roxxel_train.distributed import barrier, initialize


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")


def say_what_reads() -> None:
    names = {thread.name for thread in threading.enumerate()}
    say(f"still reading: {sorted(names & {'roxxel-news', 'roxxel-watcher'})}")


atexit.register(say_what_reads)  # runs after what is registered later
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
        barrier("late", timeout_s=600)
    except TimeoutError as error:
        say(error)
barrier("end")
sys.exit(int(sys.argv[1]) * index)
