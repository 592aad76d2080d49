from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import forked
import pytest
from roxxel_train import local
from roxxel_train._together import launcher

PROGRAMS = Path(__file__).with_name("programs")


def script(folder: Path, text: str) -> str:
    """Write a program that needs no JAX; it begins with its index in `index`."""
    path = folder / "script.py"
    path.write_text(
        "import os, signal, sys\nindex = int(os.environ['JAX_PROCESS_ID'])\n" + text
    )
    return str(path)


def test_processes_meet_and_a_late_one_is_named(
    capfd: pytest.CaptureFixture[str],
) -> None:
    code = local.main(["--devices-per-process", "2", str(PROGRAMS / "meeting.py"), "3"])

    out, err = capfd.readouterr()
    assert code == 3, err
    assert "process 0 of 2, 4 devices" in out
    assert "barrier 'late': process 1 of 2 did not arrive within 0.2 s; read" in out
    assert "[process 1] process 1 of 2, 4 devices" in err
    assert "[process 1] barrier 'late': process 1 of 2 did not arrive within" in err
    # A request that returns while Python shuts down would abort the program.
    assert "still reading: []" in out
    assert "[process 1] still reading: []" in err


def test_script_gets_its_arguments_and_only_process_0_is_heard(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = script(tmp_path, "print(index, sys.argv[1:], flush=True)\n")

    code = local.main(["--processes", "3", program, "--steps", "10"])

    assert (code, *capfd.readouterr()) == (0, "0 ['--steps', '10']\n", "")


def test_another_program_cannot_take_the_port_of_the_processes(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        "import socket\n"
        "host, port = os.environ['JAX_COORDINATOR_ADDRESS'].split(':')\n"
        "try:\n"
        "    socket.create_server((host, int(port)))\n"
        "except OSError:\n"
        "    sys.exit(0)\n"
        "sys.exit('it is free')\n",
    )

    assert local.main(["--processes", "1", program]) == 0


def test_failure_of_one_ends_the_others_and_shows_what_it_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = script(tmp_path, "sys.exit('out of luck') if index else signal.pause()\n")

    assert local.main([program]) == 1
    assert "[process 1] out of luck" in capfd.readouterr().err


def test_what_all_processes_say_is_shown_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # The first that ends must not end another before that has spoken.
    program = script(
        tmp_path,
        "import time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(f'{sys.argv[0]}.{index}', 'w').close()\n"
        "while not all(os.path.exists(f'{sys.argv[0]}.{i}') for i in range(3)):\n"
        "    time.sleep(0.01)\n"
        "sys.exit('refused')\n",
    )

    assert local.main(["--processes", "3", program]) == 1
    assert capfd.readouterr().err == "refused\n"


def test_only_the_last_lines_of_another_process_are_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = script(
        tmp_path, "if index:\n  for i in range(100): print(i)\nsys.exit(index)\n"
    )

    assert local.main([program]) == 1

    shown = capfd.readouterr().err.splitlines()
    assert shown[0] == "[process 1] (40 earlier lines are left out)"
    assert shown[1:] == [f"[process 1] {i}" for i in range(40, 100)]


def test_processes_end_with_a_killed_launcher(tmp_path: Path) -> None:
    for name in ("ready", "alive"):
        os.mkfifo(tmp_path / name)
    program = tmp_path / "script.py"
    # The fifo `alive` has an end while one of the processes lives.
    program.write_text(
        "import os, signal, sys\n"
        "from roxxel_train.distributed import initialize\n"
        "alive = open(sys.argv[2], 'w')\n"
        "initialize()\n"
        "if os.environ['JAX_PROCESS_ID'] == '0': open(sys.argv[1], 'w').close()\n"
        "signal.pause()\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-m", "roxxel_train.local", str(program)]
        + [str(tmp_path / name) for name in ("ready", "alive")]
    )
    with (tmp_path / "alive").open() as alive:
        (tmp_path / "ready").read_text()  # both are connected
        launcher.kill()
        launcher.wait()

        assert alive.read() == ""


def test_process_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_GRACE_S", 0.1)
    os.mkfifo(tmp_path / "ready")
    program = script(
        tmp_path,
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(sys.argv[1], 'r' if index else 'w').close()\n"
        "sys.exit(4) if index else signal.pause()\n",
    )

    assert local.main([program, str(tmp_path / "ready")]) == 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2])
@pytest.mark.usefixtures("interrupts_are_not_ignored")
def test_signal_goes_to_all_and_all_may_save(
    tmp_path: Path, number: signal.Signals
) -> None:
    os.mkfifo(tmp_path / "ready")
    program = script(
        tmp_path,
        "path, saved = sys.argv[1:]\n"
        "def save(*_):\n"
        "    open(saved + str(index), 'w').close()\n"
        "    sys.exit(75)\n"
        f"signal.signal({number}, save)\n"
        "open(path, 'w' if index else 'r').close()\n"
        f"if index == 0: os.kill(os.getppid(), {number})\n"
        "signal.pause()\n",
    )
    before = signal.getsignal(number)

    saved = str(tmp_path / "saved")
    assert local.main([program, str(tmp_path / "ready"), saved]) == 75
    assert sorted(path.name for path in tmp_path.glob("saved*")) == ["saved0", "saved1"]
    assert signal.getsignal(number) is before


def test_a_failure_counts_more_than_a_preemption_before_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    # The fifo has an end while process 0 lives.
    program = script(
        tmp_path,
        "alive = open(sys.argv[1], 'r' if index else 'w')\n"
        "if index: alive.read()\n"
        "sys.exit(3 if index else 75)\n",
    )

    assert local.main([program, str(tmp_path / "alive")]) == 3


def test_process_that_a_signal_ended_gives_its_number(tmp_path: Path) -> None:
    program = script(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)\n")

    assert local.run([sys.executable, program], 1) == 128 + signal.SIGKILL


def test_devices_are_added_to_the_flags_that_are_set(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_foo=1")
    program = script(tmp_path, "print(os.environ['XLA_FLAGS'])\n")

    local.main(["--processes", "1", "--devices-per-process", "4", program])

    flags = "--xla_foo=1 --xla_force_host_platform_device_count=4\n"
    assert capfd.readouterr().out == flags


@pytest.mark.parametrize("count", ["0", "-1", "two"])
def test_impossible_number_of_processes_is_refused(
    capfd: pytest.CaptureFixture[str], count: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        local.main([f"--processes={count}", "train.py"])

    assert caught.value.code == 2
    assert f"must be 1 or more, got {count}" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("started", "lines"),
    [
        ([0, 2], {0: "2 of 3 processes are connected", 2: "process 0 is there"}),
        ([1], {1: "process 0 does not answer at 127.0.0.1:"}),
    ],
)
def test_each_process_says_who_is_missing_while_it_connects(
    started: list[int], lines: dict[int, str]
) -> None:
    with ExitStack() as stack:
        address = f"127.0.0.1:{stack.enter_context(launcher.held_port())}"
        command = [sys.executable, str(PROGRAMS / "connecting.py"), address, "3"]
        processes: dict[int, forked.Popen] = {}
        for index in started:
            process = processes[index] = stack.enter_context(
                forked.Popen([*command, str(index)], stderr=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
        for index, text in lines.items():
            output = processes[index].stderr
            assert output is not None
            line = next(line for line in output if text in line)
            assert line.startswith(f"process {index} of 3 (given arguments) has waited")
