"""On a mesh with an axis `context`, the columns of long rows are split over it."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from roxxel import open_run

from .conftest import run_python
from .runs import rows

if TYPE_CHECKING:
    from subprocess import CompletedProcess

pytestmark = pytest.mark.first

PROGRAM = Path(__file__).parent / "programs" / "context_axis.py"


@pytest.fixture
def found(
    request: pytest.FixtureRequest, tmp_path: Path, compilation_cache: Path
) -> Any:
    """What a part of the program prints."""
    command = str(PROGRAM), request.param
    done = run_python(tmp_path, compilation_cache, *command, devices=8)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("found", ["laws"], indirect=True)
def test_loss_and_gradients_are_those_of_one_device(found: Any) -> None:
    for name, of_mesh in found.items():
        for index, loss in enumerate(of_mesh["losses"]):
            rounding = (1e-5, 1e-3)[index]
            alone = found["alone"]["losses"][index]
            gradient = of_mesh["gradients"][index]
            assert loss == pytest.approx(alone, rel=rounding), name
            assert gradient < 50 * rounding, name


@pytest.mark.parametrize("found", ["refusals"], indirect=True)
def test_what_cannot_be_split_is_refused(found: Any) -> None:
    columns, kernel = found

    assert columns == (
        "a batch of 2 rows does not divide over all devices, nor do its 50 columns "
        "over the 4 of the axis 'context'; use a seq_len of 49 or 53"
    )
    assert 'attention="cudnn" cannot split a row' in kernel


@pytest.mark.long
def test_plan_for_eight_devices_splits_the_state_and_gathers_the_weights(
    tmp_path: Path, compilation_cache: Path
) -> None:
    command = str(PROGRAM.with_name("eight_devices.py")), "small", "16", "1024", "none"
    done = run_python(tmp_path, compilation_cache, *command, devices=8)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    # Float32 weights and two moments, but for what is too small to be split.
    assert found["state"] == pytest.approx(12 * found["parameters"] / 8, rel=0.01)
    # As `docs/guides/hosts.md` says.
    assert found["kept"] == pytest.approx(38e9, rel=0.05)
    assert found["all-gather"] == pytest.approx(0.2e9, rel=0.05)
    assert found["all-reduce"] == pytest.approx(0.16e9, rel=0.05)


@pytest.mark.long
def test_what_a_device_keeps_computes_and_receives(
    tmp_path: Path, compilation_cache: Path
) -> None:
    command = str(PROGRAM.with_name("long_rows.py")), "131072"
    done = run_python(tmp_path, compilation_cache, *command, devices=8)
    assert done.returncode == 0, done.stderr
    found = [*map(json.loads, done.stdout.splitlines())]

    # What does not fall are the scores of a block and the gradients of the weights.
    one, two, four, eight = (each["kept"] for each in found)
    fixed = 2 * two - one
    assert fixed < one / 8
    for ways, kept in ((4, four), (8, eight)):
        assert kept - fixed == pytest.approx((one - fixed) / ways, rel=0.2)

    # All devices together make the products of one.
    products = {each["context"] * each["products"] for each in found}
    assert len(products) == 1

    # Keys and values of 12 layers with 768 channels: gathered in both passes, and their
    # gradients summed once, however many blocks add to them.
    numbers = 2 * 12 * 131_072 * 768
    assert [each.get("all-gather", 0) for each in found] == [0, *[2 * numbers] * 3]
    weights = [each.get("all-reduce", 0) - numbers for each in found[1:]]
    assert len({*weights}) == 1
    assert weights[0] < numbers


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, compilation_cache: Path) -> Path:
    """A folder with the runs of the program, all of the same config but for the mesh.

    They accumulate, average weights, look for spikes, evaluate, and log the loss of
    each source. The rows of the first phase are split over all devices of `whole`, and
    the columns of the last.
    """
    folder = tmp_path_factory.mktemp("context")
    program(folder, compilation_cache, "runs")
    return folder


def program(
    folder: Path, cache: Path, *given: str, code: int = 0
) -> CompletedProcess[str]:
    name, *others = given
    command = str(PROGRAM), name, str(folder), *others
    done = run_python(folder, cache, *command, devices=8)
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.long
def test_a_run_killed_at_every_step_is_an_unbroken_one(
    trained: Path, compilation_cache: Path
) -> None:
    for step in range(1, 6):
        program(trained, compilation_cache, "killed", str(step), code=-signal.SIGKILL)
    program(trained, compilation_cache, "killed", "0")

    whole, broken = rows(trained / "whole"), rows(trained / "broken")
    assert whole == broken
    assert {"loss", "loss/web", "loss/code", "digest", "eval_loss/long"} <= {
        name for row in whole for name in row
    }
    one, other, alone = (
        [*open_run(trained / name).sampler().where("web", 0, 2000)]
        for name in ("whole", "broken", "alone")
    )
    assert one
    assert one == other == alone


@pytest.mark.long
@pytest.mark.parametrize("name", ["whole", "moved"])
def test_a_run_on_any_meshes_is_that_of_one_device(name: str, trained: Path) -> None:
    for row, alone in zip(rows(trained / name), rows(trained / "alone"), strict=True):
        assert row.keys() == alone.keys()
        for key, value in alone.items():
            is_number = isinstance(value, float)
            assert row[key] == (
                pytest.approx(value, rel=1e-4) if is_number else value
            ), key


@pytest.mark.long
def test_the_run_can_be_verified_replayed_and_sampled(
    trained: Path, compilation_cache: Path
) -> None:
    done = program(trained, compilation_cache, "commands")

    assert "bit-equal (8 rows of the log, 5 digests of the state" in done.stdout
    assert done.stdout.splitlines()[-1] == "[0, 0, 0]"
