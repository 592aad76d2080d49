"""A sweep: its file, its blends, its runs, its laws, and when it recommends nothing."""

from __future__ import annotations

import csv
import re
import shutil
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel import open_run, sweep
from roxxel.cli import main
from roxxel.config import ConfigError, SweepConfig, blends_of, load_config
from roxxel.sweeping import Sweep, fit_law, load_sweep, runs_of
from roxxel.sweeping._result import forewarnings
from roxxel.sweeping._runs import of_earlier_files
from roxxel.sweeping.laws import LAWS, best_blend, log_linear, rank_correlation
from roxxel_format import Roxxel

from .runs import CONFIG, MODEL, said, write_project

if TYPE_CHECKING:
    from pathlib import Path

SWEEP = 'config = "first.toml"\nscale = 0.5\n'
GRID = f"{SWEEP}[grid]\nparts = 6\n"


def sweep_file(folder: Path, text: str = GRID) -> Path:
    """Write a project and the file of a sweep; return the file's path."""
    if not (folder / "first.toml").exists():
        write_project(folder)
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Train a sweep of seven blends."""
    return sweep(sweep_file(tmp_path_factory.mktemp("swept")))


@pytest.fixture(scope="module")
def swept(result: Sweep) -> Path:
    """Return the file of the sweep."""
    assert len(result.table.rows) == 7
    return result.config.file


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"{SWEEP}[drawn]\nnumbr = 3", "did you mean 'number'"),
        (f"{SWEEP}[[blends]]\nweights = {{ cod = 1 }}", "did you mean 'code'"),
        (f"{SWEEP}[[blends]]\nweights = {{ code = -1 }}", "blends.0.weights"),
        (f"{SWEEP}[[blends]]\nweights = {{ code = 0 }}", "are all 0"),
        (f"{SWEEP}[[blends]]\nweights = [{{ code = 1 }}]", "2 phases"),
        (
            f"{SWEEP}[[blends]]\nweights = {{ code = inf }}",
            "blends.0.weights.code must be a finite",
        ),
        (
            f"{SWEEP}least_rank = nan\n[grid]\nparts = 2",
            "least_rank must be a finite number, got nan",
        ),
        (
            f"{SWEEP}[grid]\nparts = 2\n[target]\nx = inf",
            "target.x must be a finite number of 0 or more",
        ),
        (SWEEP, "tries no blend"),
        ('config = "first.toml"\n[grid]\nparts = 2', "scale or tokens"),
        ('config = "none.toml"\nscale = 1\n[grid]\nparts = 2', "none.toml: no such"),
        ("scale = 0.5\n[grid]\nparts = 2", "has no config"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_sweep(sweep_file(tmp_path, text))

    assert str(error.value).startswith(str(tmp_path / "sweep.toml"))
    assert named in str(error.value)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    """Such as the file of the sweep itself, if its name has no suffix."""
    path = sweep_file(tmp_path).rename(tmp_path / "sweep")

    with pytest.raises(ConfigError, match=r"sweep is a file; .*save_path.*\.toml"):
        load_sweep(path)


def test_a_base_without_a_held_out_set_is_refused(tmp_path: Path) -> None:
    write_project(tmp_path, CONFIG.partition("[eval]")[0])

    with pytest.raises(ConfigError, match=r"write \[eval\]"):
        load_sweep(sweep_file(tmp_path))


def test_a_phase_of_epochs_is_refused(tmp_path: Path) -> None:
    write_project(tmp_path, CONFIG.replace("steps = 4\n", "epochs = 0.5\n"))

    with pytest.raises(ConfigError, match="give it tokens"):
        load_sweep(sweep_file(tmp_path))


def test_a_target_that_is_no_held_out_set_is_refused(tmp_path: Path) -> None:
    path = sweep_file(tmp_path, f"{GRID}[target]\nheldout = 1\n")

    with pytest.raises(ConfigError, match="did you mean 'held_out'"):
        runs_of(load_sweep(path))


def test_a_blend_that_cannot_be_trained_is_named(tmp_path: Path) -> None:
    many = CONFIG.replace("steps = 4\n", "steps = 400\n")
    write_project(tmp_path, many.replace("policy = 2", 'policy = "drop"'))
    blend = "[[blends]]\nweights = { self = 0, code = 1 }\n"

    with pytest.raises(ConfigError, match=r"the blend .*code 1.* cannot be trained"):
        runs_of(load_sweep(sweep_file(tmp_path, SWEEP + blend)))


@pytest.mark.parametrize(
    ("blends", "named"),
    [
        ("[drawn]\nnumber = 3\nconcentration = 1e-300", "drawn.concentration"),
        ("[grid]\nparts = 2\nleast = -1.0", "grid.least must be"),
    ],
)
def test_a_blend_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, blends: str, named: str
) -> None:
    path = sweep_file(tmp_path, SWEEP + blends)

    with pytest.raises(ConfigError, match=named):
        blends_of(load_sweep(path), ["code", "web"], {"code": 5, "web": 5})


def test_another_name_of_the_primary_is_refused(tmp_path: Path) -> None:
    path = sweep_file(tmp_path)
    base = tmp_path / "first.toml"
    text = base.read_text().replace("self =", "web =", 1)
    base.write_text(f'primary = "web"\n{text}')
    weights = "{ self = 0.2, web = 0.8 }"
    path.write_text(f"{SWEEP}[[blends]]\nweights = {weights}")

    with pytest.raises(ConfigError, match="names 'self'"):
        load_sweep(path)


def test_drawn_blends_are_a_function_of_the_file(tmp_path: Path) -> None:
    def drawn(number: int, more: str = "") -> list[tuple[tuple[float, ...], ...]]:
        text = f"{SWEEP}[drawn]\nnumber = {number}\n{more}"
        config = load_sweep(sweep_file(tmp_path, text))
        return blends_of(config, ["code", "self"], {"code": 100, "self": 300})

    assert drawn(8)[:5] == drawn(5)
    assert drawn(5, "seed = 1") != drawn(5)
    for blend in drawn(50):
        assert blend[0] == blend[1]
        assert round(sum(blend[0]), 10) == 1
    near = np.array(drawn(50, "concentration = 1000"))[:, 0, 0]
    assert abs(near - 0.25).max() < 0.06
    apart = drawn(5, "each_phase = true")
    assert all(first != second for first, second in apart)


def test_a_grid_has_every_blend_once(tmp_path: Path) -> None:
    config = load_sweep(sweep_file(tmp_path, f"{SWEEP}[grid]\nparts = 4\n"))
    names = ["a", "b", "c"]
    blends = blends_of(config, names, dict.fromkeys(names, 1))

    assert len({blend[0] for blend in blends}) == 15
    assert ((1.0, 0.0, 0.0),) * 2 in blends

    least = f"{SWEEP}[grid]\nparts = 4\nleast = 0.25\n"
    config = load_sweep(sweep_file(tmp_path, least))
    assert len(blends_of(config, names, dict.fromkeys(names, 1))) == 3


def test_a_renamed_source_has_the_keys_of_before(tmp_path: Path) -> None:
    path = sweep_file(tmp_path, f"{SWEEP}[drawn]\nnumber = 3\n")
    before = [run.key for run in runs_of(load_sweep(path)).runs]

    renamed = CONFIG.replace("code = ", "python = ")
    (tmp_path / "first.toml").write_text(renamed)
    assert [run.key for run in runs_of(load_sweep(path)).runs] == before

    for file in list(tmp_path.glob("code*")):
        file.rename(tmp_path / file.name.replace("code", "python"))
    moved = renamed.replace('"code.rox"', '"python.rox"')
    (tmp_path / "first.toml").write_text(moved)
    assert [run.key for run in runs_of(load_sweep(path)).runs] == before

    (tmp_path / "first.toml").write_text(moved.replace("seed = 3", "seed = 4"))
    assert not {run.key for run in runs_of(load_sweep(path)).runs} & {*before}


def test_an_edited_model_has_other_keys_and_its_comments_have_not(
    tmp_path: Path,
) -> None:
    path = sweep_file(tmp_path, f"{SWEEP}[drawn]\nnumber = 2\n")
    model = tmp_path / "tiny.py"
    text = f"from layers import width\n{model.read_text()}"
    (tmp_path / "layers.py").write_text("width = 4\n")

    def keys(code: str) -> list[str]:
        model.write_text(code)
        return [run.key for run in runs_of(load_sweep(path)).runs]

    before = keys(text)

    assert keys(f'"""A model."""\n\n# It is small.\n{text}') == before
    assert not {*keys(text.replace("- 1.0", "- 2.0"))} & {*before}
    (tmp_path / "layers.py").write_text("width = 8\n")
    assert not {*keys(text)} & {*before}


@pytest.mark.parametrize(
    ("changed", "named"),
    [("code.rox", "a source"), ("held_out.rox", "a held-out"), ("tiny.py", "the code")],
)
def test_what_changes_during_a_sweep_ends_it_before_the_next_run(
    tmp_path: Path, changed: str, named: str
) -> None:
    path = sweep_file(tmp_path, f"{SWEEP}[grid]\nparts = 1\n")

    def change(line: str) -> None:
        if not line.startswith("run 1 of 2"):
            return
        if changed.endswith(".py"):
            text = (tmp_path / changed).read_text()
            (tmp_path / changed).write_text(text.replace("- 1.0", "- 2.0"))
        else:
            grown = [np.arange(300) % 50]
            Roxxel(tmp_path / changed).write(grown, vocab_size=50, exist="replace")

    with pytest.raises(ConfigError, match=rf"{named}.* changed while the sweep ran"):
        sweep(path, say=change)


def test_runs_of_other_code_stay_and_are_named(swept: Path, tmp_path: Path) -> None:
    shutil.copytree(swept.parent, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tiny.py").write_text(MODEL.replace("- 1.0", "- 2.0"))
    config = load_sweep(tmp_path / swept.name)

    [note] = of_earlier_files(config, runs_of(config))

    assert f"{tmp_path / 'sweep' / 'runs'} holds 7 runs more" in note
    assert "delete" in note


def test_a_held_out_set_of_two_sources_has_a_loss_for_each(tmp_path: Path) -> None:
    sets = (
        'sources = { self = "held_out.rox", code = "code.rox" }\n'
        "phases = [{ steps = 4, batch_size = 2, seq_len = 8, weights = "
        "{ self = 0.75, code = 0.25 } }]\n"
    )
    write_project(tmp_path, f"{CONFIG.partition('[eval]')[0]}[eval]\n{sets}")
    runs = runs_of(load_sweep(sweep_file(tmp_path)))

    assert [leaf.label for leaf in runs.leaves] == ["held_out/self", "held_out/code"]
    assert runs.target == (0.75, 0.25)
    steps = [
        each.schedule.phases[0].steps for each in runs.runs[0].config.held_out.values()
    ]
    assert steps == [3, 1]


def simulated(number: int, noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return shares, losses by source, and the target, with its best at the target."""
    random = np.random.default_rng(0)
    best = np.array([0.4, 0.3, 0.2, 0.1])
    shares = random.dirichlet(np.full(4, 1.5), number)
    losses = 1 - 0.5 * np.log(shares + 0.02)
    return shares, losses + noise * random.normal(size=losses.shape), best


@pytest.mark.parametrize("name", LAWS)
def test_a_law_finds_the_best_blend(name: str) -> None:
    shares, losses, best = simulated(32, 0.01)

    fit = fit_law(name, LAWS[name], shares, losses, best)
    found = best_blend(lambda x: fit.predict(x) @ best, shares, shares[:3], 1)

    assert fit.rank > 0.8
    assert fit.error < fit.spread
    tolerance = 0.1 if name == "log-linear" else 0.2
    assert abs(found - best).max() < tolerance
    assert found.sum() == pytest.approx(1, abs=1e-3)
    assert (found >= shares.min(0) - 1e-4).all()
    assert (found <= shares.max(0) + 1e-4).all()


def test_a_law_of_noise_orders_nothing() -> None:
    shares, losses, best = simulated(24, 0.0)

    for seed in range(5):
        noise = np.random.default_rng(seed).normal(size=losses.shape)
        fit = fit_law("log-linear", log_linear, shares, noise, best)
        assert fit.rank < SweepConfig.least_rank


def memory(shares: Any, losses: Any) -> Any:
    """Return a law that knows the blends that it was fitted to, and no other."""
    known = {tuple(each): loss for each, loss in zip(shares, losses, strict=True)}
    return lambda x: np.array([known.get(tuple(each), 0.0) for each in x])


def test_the_error_of_a_law_is_that_on_blends_that_it_has_not_seen() -> None:
    shares, losses, best = simulated(24, 0.0)

    fit = fit_law("memory", memory, shares, losses, best)

    assert fit.error > 2 * fit.spread
    assert fit.predict(shares) == pytest.approx(losses)


def test_equal_values_share_their_rank() -> None:
    values = np.array([1.0, 1.0, 2.0, 3.0])

    assert rank_correlation(values, values) == 1
    assert rank_correlation(values, -values) == -1
    assert rank_correlation(values, np.ones(4)) == 0


def test_each_run_of_a_sweep_is_an_ordinary_run(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = swept.parent / "sweep" / "runs"
    listed = said(capsys, "ls", runs)

    assert listed.count("complete") == 7
    one = next(file for file in runs.iterdir() if file.is_dir())
    assert "row 0" in said(capsys, "show", one, "--step", 0)


def test_a_repeated_sweep_trains_nothing_and_writes_the_same_table(swept: Path) -> None:
    table = swept.parent / "sweep" / "sweep.csv"
    before = table.read_bytes()
    table.unlink()
    lines: list[str] = []

    sweep(swept, say=lines.append)

    assert lines[0] == "7 runs, of which 7 are finished"
    assert not any("run 1" in line for line in lines)
    assert table.read_bytes() == before


def test_a_run_whose_last_evaluation_failed_is_evaluated_by_the_next_sweep(
    tmp_path: Path,
) -> None:
    path = sweep_file(tmp_path, f"{SWEEP}[[blends]]\nweights = {{ code = 1 }}\n")
    (tmp_path / "tiny.py").write_text(f"{MODEL}{FAILS_ONCE}")
    base = tmp_path / "first.toml"
    every = 'eval_every = 1\neval_fn = "tiny:evaluate"'
    base.write_text(base.read_text().replace("eval_every = 3", every))
    with pytest.raises(OSError, match="no room"):
        sweep(path)

    (row,) = sweep(path).table.rows

    metrics = open_run(str(row.run.config.run_folder)).metrics
    evaluated = [each for each in metrics if each["kind"] == "eval"]
    assert [each["step"] for each in evaluated] == [1, 2, 3]
    assert row.losses == (evaluated[-1]["eval_loss/held_out"],)


FAILS_ONCE = """

from pathlib import Path

def evaluate(state):
    failed = Path(__file__).with_name("failed")
    if int(state.step[...]) == 3 and not failed.exists():
        failed.touch()
        raise OSError("no room for the samples")
    return {"value": 2.0}
"""


def test_the_table_has_a_line_for_each_source_of_each_run(swept: Path) -> None:
    with (swept.parent / "sweep" / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))

    assert len(rows) == 14
    assert {row["name"] for row in rows} == {"self", "code"}
    assert len({row["source"] for row in rows}) == 2
    by_run: dict[str, float] = {}
    for row in rows:
        by_run[row["run"]] = by_run.get(row["run"], 0.0) + float(row["weight_0"])
        assert row["weight_0"] == row["weight_1"]
        assert float(row["target"]) == float(row["eval_loss/held_out"])
    assert set(by_run.values()) == {1.0}


def test_train_loss_of_a_source_is_the_last_that_was_logged(tmp_path: Path) -> None:
    blend = "[[blends]]\nweights = [{ self = 1, code = 1 }, { self = 1 }]\n"
    file = sweep_file(tmp_path, SWEEP + blend)
    rows = MODEL.replace(
        "    return jnp.square(model(batch) - 1.0).mean()",
        "    rows = jnp.square(model(batch) - 1.0).mean((1, 2))\n"
        '    return rows.mean(), {"row_loss": rows}',
    )
    (tmp_path / "tiny.py").write_text(rows)

    found = sweep(file)

    [row] = found.table.rows
    assert all(row.tokens)
    assert None not in row.train_losses
    assert not any("train_loss" in note for note in found.notes)


def test_losses_that_no_source_has_are_explained(result: Sweep) -> None:
    assert any('does not return "row_loss"' in note for note in result.notes)


def test_below_the_stated_quality_nothing_is_recommended_or_written(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = swept.with_name("strict.toml"), swept.with_name("never.toml")
    file.write_text(f'save_path = "sweep"\nleast_rank = 1.1\n{GRID}')

    assert main(["sweep", str(file), "--write", str(out)]) == 1

    printed = capsys.readouterr()
    assert "best run: " in printed.out
    assert "rank correlation" in printed.out
    assert "least_rank is 1.1" in printed.out
    assert "recommends" not in printed.out
    assert printed.err.splitlines()[-1].endswith(f"{out} was not written")
    assert not out.exists()


def test_a_written_config_has_the_recommended_blend(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = swept.with_name("free.toml")
    file.write_text(f'save_path = "sweep"\nleast_rank = -1\n{GRID}')
    out = swept.parent / "new" / "best.toml"
    out.parent.mkdir(exist_ok=True)

    printed = said(capsys, "sweep", file, "--write", out)

    config = load_config(out)
    for phase in config.schedule.phases:
        shares = (phase.weights or {}).items()
        shown = ", ".join(f"{name} {share:.4g}" for name, share in shares)
        assert f": {shown}\n" in printed
    assert config.folder == swept.parent
    text = out.read_text()
    [predicted] = re.findall(r"predicted for a proxy: held_out ([0-9.]+)", printed)
    assert f"#   held_out: {predicted}\n" in text
    assert "# A run to learn from." in text
    assert "recommends" in printed
    page = (swept.parent / "sweep" / "sweep.html").read_text()
    assert "Runs, the best first" in page
    assert '<figure id="shares">' in page
    assert '<figure id="laws">' in page
    assert "tables do not" in page  # without JavaScript
    assert 'id="axes"' not in page

    out.write_text("seed = 1\n")
    assert main(["sweep", str(file), "--write", str(out)]) == 1
    assert "give another name" in capsys.readouterr().err


def test_without_scikit_learn_one_law_is_left_out(
    swept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)

    found = sweep(swept)

    assert [fit.name for fit in found.fits] == ["log-linear"]
    assert "sweep" in next(note for note in found.notes if "sklearn" in note)


def test_too_few_blends_fit_no_law(swept: Path) -> None:
    file = swept.with_name("few.toml")
    file.write_text(f'save_path = "few"\n{SWEEP}[grid]\nparts = 1\n')

    lines: list[str] = []
    found = sweep(file, say=lines.append)

    assert found.fits == ()
    assert "a law needs 5 blends" in found.notes[-1]
    training = next(n for n, line in enumerate(lines) if line.startswith("run 1"))
    assert "a law needs 5 blends" in "".join(lines[:training])


@pytest.mark.parametrize(
    ("weights", "blends", "is_said"),
    [
        ("{ self = 1, code = 1 }", "[grid]\nparts = 6", True),
        ("{ self = 2, code = 2 }", "[drawn]\nnumber = 6\neach_phase = true", False),
        ("{ self = 3, code = 1 }", "[grid]\nparts = 6", False),
    ],
)
def test_one_blend_in_place_of_several_is_said_before_a_run(
    tmp_path: Path, weights: str, blends: str, *, is_said: bool
) -> None:
    first = "weights = { self = 0.5, code = 0.5 }"
    text = CONFIG.replace(first, "weights = { self = 0.75, code = 0.25 }")
    write_project(
        tmp_path, text.replace("seq_len = 16", f"seq_len = 16\nweights = {weights}")
    )
    config = load_sweep(sweep_file(tmp_path, f"{SWEEP}{blends}\n"))

    notes = [*forewarnings(config, runs_of(config))]

    assert ["each_phase" in note for note in notes] == [True] * is_said


def test_parts_train_every_run_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sweep_file(tmp_path, f"{SWEEP}[grid]\nparts = 2\n")

    first = said(capsys, "sweep", path, "--part", "0/2")
    assert "2 of 3 runs are finished" in first
    assert not (tmp_path / "sweep" / "sweep.csv").exists()
    assert "3 of 3 runs" in said(capsys, "sweep", path, "--part", "1/2")
    assert "3 runs, of which 3" in said(capsys, "sweep", path)
    assert (tmp_path / "sweep" / "sweep.csv").exists()
