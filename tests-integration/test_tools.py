"""The tools by which nox sessions check an environment and a machine."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

import forked
import pytest

from .conftest import CUDA, REAL, real
from .drill_cases import SIMULATED, places
from .tools import bare, devices, imports, paths, prose

if TYPE_CHECKING:
    from pathlib import Path

    from .tools.trips import Trip

EXTRA = "from roxxel_store import missing_extra"


def test_documentation_speaks_to_its_reader() -> None:
    counted = (prose.count(page.read_text("utf-8")) for page in prose.pages())
    advice, _, you, the_of, articles, semicolons = sum(counted, prose.Counts()).row()

    assert advice >= 4
    assert you >= 8
    assert the_of <= 9
    assert articles <= 18
    assert semicolons <= 0.03


def test_a_package_that_brings_too_much_is_named() -> None:
    found = bare.foreign("roxxel-format", {"numpy"})

    assert "jax came with roxxel-format, which may bring ['numpy'] alone" in found


@pytest.mark.parametrize(
    ("source", "findings"),
    [
        ("import json", 0),
        ("import nothing_of_this_name", 1),
        (f"{EXTRA}; raise missing_extra('this', 'x', 'some-package', 'x')", 0),
        ("raise ModuleNotFoundError('this needs x')", 1),
    ],
)
def test_a_module_that_needs_more_must_name_the_extra(
    source: str, findings: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"bare_{findings}_{len(source)}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))

    found = bare.unusable(f"bare_{findings}_{len(source)}")

    assert len(found) == findings


def test_devices_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert devices.main("cpu") == 0
    assert capsys.readouterr().out.startswith("found 1: ")


def test_no_device_is_said_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert devices.main("nowhere") == devices.NONE_FOUND
    assert "found 0: Unknown backend nowhere" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wanted", "found", "settings"),
    [
        (4, "tpu:4", {"JAX_PLATFORMS": "tpu"}),
        (2, "cuda:4", {"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": "0,1", **CUDA}),
        (
            1,
            "tpu:4",
            {
                "JAX_PLATFORMS": "tpu",
                "TPU_VISIBLE_CHIPS": "0",
                "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
                "TPU_PROCESS_BOUNDS": "1,1,1",
            },
        ),
    ],
)
def test_a_program_sees_as_many_real_devices_as_it_asks_for(
    wanted: int, found: str, settings: dict[str, str]
) -> None:
    assert real(wanted, found) == {**REAL, **settings}


@pytest.mark.parametrize(("wanted", "found"), [(8, "cuda:1"), (2, "tpu:4")])
def test_a_program_that_asks_for_others_is_skipped(wanted: int, found: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=f"needs {wanted} "):
        real(wanted, found)


@pytest.mark.parametrize(
    ("found", "counts"),
    [
        (None, [*SIMULATED.values()]),
        ("cuda:1", [(1, 1)]),
        ("tpu:4", [(1, 1), (1, 4)]),
    ],
)
def test_runs_are_stopped_in_places_that_are_there(
    found: str | None, counts: list[tuple[int, int]]
) -> None:
    assert [*places(found).values()] == counts


@pytest.mark.parametrize("sent", [b"", b"9\0", b"9\0\0\0\0\0\0\0{"])
def test_a_program_killed_while_it_asks_for_a_fork_ends_no_other(sent: bytes) -> None:
    address = str(forked.commands().parent / "socket")
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(address)
        link.sendall(sent)

    done = forked.run(
        [sys.executable, "-c", "print('here')"], capture_output=True, text=True
    )

    assert done.stdout == "here\n"


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("mine/text.py", "1", []),
        ("mine/text.py", "2", ["mine/text.py"]),
        ("mine/more.py", "1", ["mine/more.py", "mine/text.py"]),
    ],
)
def test_installed_files_are_compared_with_the_sources(
    name: str,
    content: str,
    found: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = tmp_path / "src" / "mine" / "text.py"
    info = tmp_path / "site" / "mine-1.dist-info"
    installed = tmp_path / "site" / name
    for path in (source, info / "METADATA", installed):
        path.parent.mkdir(parents=True, exist_ok=True)
    source.write_text("1")
    installed.write_text(content)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    record = f"{name},sha256={bare.hash_of(installed)},1\n"
    (info / "RECORD").write_text(record + "mine-1.dist-info/METADATA,sha256=aa,1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    wrong = bare.differing("mine", tmp_path / "src")

    assert [line.partition(":")[0] for line in wrong] == found


@pytest.fixture(scope="module")
def walked() -> dict[str, Trip]:
    return paths.main()


def test_paths_pass_through_few_modules(walked: dict[str, Trip]) -> None:
    most = {
        "a batch": 11,
        "a save": 16,
        "a restore": 14,
        "a save in a bucket": 18,
        "a restore in a bucket": 17,
        "a TOML file to a Trainer": 54,
        "a second start": 60,
        "a resume": 35,  # 34, or 35 on a busy machine
        "ls": 10,
        "report": 20,
        "a refused replay": 43,
    }

    assert walked.keys() == most.keys()
    for name, modules in most.items():
        assert len(walked[name].modules) <= modules, name


def test_the_drawing_of_a_batch_shows_modules_that_run_for_it(
    walked: dict[str, Trip],
) -> None:
    ran = walked["a batch"].modules

    drawn = {module for _, module, _ in imports.BATCH}
    # `paths` reads a stream without a trainer.
    not_run = {name for name in drawn - {*ran} if not name.startswith("roxxel_train")}
    # These run once for many steps, see the notes of the drawing.
    assert not_run == {"roxxel_curriculum._plan.solution", "roxxel_curriculum._order"}


def test_prose_is_counted_and_code_is_not() -> None:
    page = (
        "# The title of a page\n\nThe length of a row is fixed. Raise `steps`, and you "
        "go on; that's usual.\n\n```python\nyou = 'the X of'\n```\n\n"
        "| you | the X of |\n"
    )

    counted = prose.count(page)

    assert counted.sentences == 2
    assert (counted.advice, counted.you, counted.the_of) == (1, 1, 1)
    assert (counted.articles, counted.semicolons) == (1, 1)


@pytest.mark.parametrize(
    ("sentence", "is_advice"),
    [
        ("If disks differ, copy the corpus first.", True),
        ("You should declare it early.", True),
        ("Don't delete the manifest.", True),
        ("Copies have digests.", False),
        ("The command never shows credentials.", False),
    ],
)
def test_advice_tells_the_reader_what_to_do(sentence: str, is_advice: bool) -> None:
    assert prose.advises(sentence) == is_advice
