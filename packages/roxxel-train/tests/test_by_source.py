"""Loss, tokens and rows of each source, against a recomputation by hand."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel
from roxxel_train import Logger, RunFolder, RunMismatchError

from .helpers import (
    VOCABULARY,
    corpus,
    loss_fn,
    mesh_of,
    nothing_of,
    pair,
    rows,
    trainer,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from roxxel_train import ModelState

PHASES = (
    Phase(7, 16, 9, {"self": 0.7, "code": 0.3}),
    Phase(5, 8, 17, {"self": 1}),
    Phase(6, 8, 17, {"self": 0.5, "code": 0.5}),
)


def curriculum(
    folder: Path, phases: Sequence[Phase] = PHASES, primary: str = "self"
) -> Curriculum:
    random = np.random.default_rng(1)
    code = Roxxel(folder / "code_*.rox")
    code.write(
        (random.integers(0, VOCABULARY, 40) for _ in range(90)),
        vocab_size=VOCABULARY,
        exist="replace",
    )
    web = Roxxel(folder / "web_*.rox")
    web.write(
        (random.integers(0, VOCABULARY, 40) for _ in range(90)),
        vocab_size=VOCABULARY,
        exist="replace",
    )
    named = [
        replace(phase, weights={primary if n == "self" else n: x for n, x in weights})
        for phase in phases
        if (weights := (phase.weights or {}).items())
    ]
    return Curriculum(web, named, {"code": code}, primary=primary)


def by_position(model: Any, batch: Any) -> Any:
    """Return losses that depend only on the batch, so NumPy can recompute them."""
    values, mask = batch[:, 1:] * 1.0, batch[:, :-1] % 3 > 0
    weight = mask.sum(-1)
    total = (values * mask).sum()
    return {
        "loss": total / mask.sum() + nothing_of(model),
        "loss_weight": mask.sum(),
        "row_loss": (values * mask).sum(-1) / weight,
        "row_weight": weight,
    }


def expected(data: Curriculum, start: int, stop: int) -> dict[str, float]:
    """Recompute the losses by source of the steps `[start, stop)`."""
    sampler = data.sampler(0)
    sums: dict[str, list[float]] = {}
    for step in range(start, stop):
        for row, tokens in enumerate(sampler.batch(step)):
            source = sampler.locate(step, row).source
            total = sums.setdefault(source, [0.0, 0.0])
            for before, token in itertools.pairwise(tokens):
                if before % 3:
                    total[0] += int(token)
                    total[1] += 1
    return {f"loss/{name}": loss / n for name, (loss, n) in sums.items() if n}


def losses(row: dict[str, Any]) -> dict[str, float]:
    return {name: x for name, x in row.items() if name.startswith("loss/")}


def test_losses_of_sources_are_those_that_a_person_computes(tmp_path: Path) -> None:
    data = curriculum(tmp_path)

    trainer(
        tmp_path,
        curriculum=data,
        loss_fn=by_position,
        log_every=3,
        grad_accum_steps=4,
        mesh=mesh_of(2),
    ).run()

    before = 0
    for row in rows(tmp_path):
        wanted = expected(data, before, row["step"])
        assert losses(row) == pytest.approx(wanted, rel=1e-6)
        before = row["step"]
    assert before == 18
    assert "loss/code" not in rows(tmp_path)[5]  # steps 9 to 11: only `self`


def test_row_without_a_weight_counts_its_tokens(tmp_path: Path) -> None:
    def unweighted(model: Any, batch: Any) -> Any:
        row_loss = batch[:, 0] * 1.0
        return row_loss.mean() + nothing_of(model), {"row_loss": row_loss}

    data = curriculum(tmp_path)
    trainer(tmp_path, curriculum=data, loss_fn=unweighted, log_every=18).run()

    sampler = data.sampler(0)
    sums = {name: np.zeros(2) for name in sampler.source_names}
    for step in range(12, 18):
        for source, tokens in zip(
            sampler.windows(step).source, sampler.batch(step), strict=True
        ):
            name = sampler.source_names[int(source)]
            sums[name] += len(tokens) * np.asarray([tokens[0], 1.0])
    assert losses(rows(tmp_path)[-1]) == pytest.approx(
        {f"loss/{name}": total / weight for name, (total, weight) in sums.items()}
    )


def test_a_row_over_two_lengths_counts_tokens(tmp_path: Path) -> None:
    """An edit ends a phase where no row of the log was due."""

    def of_length(model: Any, batch: Any) -> Any:
        rows, columns = batch.shape
        row_loss = jnp.full(rows, float(columns))
        return row_loss.mean() + nothing_of(model), {"row_loss": row_loss}

    options: dict[str, Any] = {"loss_fn": of_length, "log_every": 9}
    trainer(tmp_path, [Phase(9, 4, 9)], **options).run(until=5)
    trainer(tmp_path, [Phase(5, 4, 9), Phase(4, 2, 17)], **options).run()

    first, last = rows(tmp_path)
    assert (first["step"], last["step"]) == (1, 9)
    tokens = 4 * 4 * 9, 4 * 2 * 17
    mean = (tokens[0] * 9 + tokens[1] * 17) / sum(tokens)
    assert last["loss/self"] == pytest.approx(mean, rel=1e-6)


def test_fully_masked_row_does_not_spoil_the_loss_of_its_source(
    tmp_path: Path,
) -> None:
    def masked(model: Any, batch: Any) -> Any:
        weight = jnp.arange(len(batch)) % 2
        row_loss = jnp.full(len(batch), 3.0) / weight
        return loss_fn(model, batch), {"row_loss": row_loss, "row_weight": weight}

    trainer(tmp_path, [Phase(2, 4, 9)], loss_fn=masked).run()

    assert {row["loss/self"] for row in rows(tmp_path)} == {3.0}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with a row every 4 steps."""
    folder = tmp_path_factory.mktemp("unbroken")
    data = curriculum(folder)
    trainer(folder, curriculum=data, loss_fn=by_position, log_every=4).run()
    return folder


def test_resumed_run_has_the_rows_of_an_unbroken_run(
    tmp_path: Path, unbroken: Path
) -> None:
    trips = True

    def trip(state: ModelState) -> None:
        nonlocal trips
        if trips and int(state.step[...]) == 11:
            trips = False
            raise RuntimeError("it tripped")

    options: dict[str, Any] = {
        "loss_fn": by_position,
        "eval_fn": trip,
        "eval_every": 1,
        "log_every": 4,
        "checkpoint_every": 5,
    }
    data = curriculum(tmp_path)
    with pytest.raises(RuntimeError, match="it tripped"):
        trainer(tmp_path / "a", curriculum=data, **options).run()
    trainer(tmp_path / "a", curriculum=data, mesh=mesh_of(8), **options).run()

    ours = [(row["step"], losses(row), row["digest"]) for row in rows(tmp_path / "a")]
    assert ours == [(row["step"], losses(row), row["digest"]) for row in rows(unbroken)]


def renamed(row: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """Return a row in which the primary has another name."""
    text = json.dumps({n: x for n, x in row.items() if n != "time"})
    return json.loads(text.replace(f'{old}"', f'{new}"'))


def test_rows_and_lines_show_the_name_of_the_primary(tmp_path: Path) -> None:
    shown: list[dict[str, Any]] = []
    log = Logger(tmp_path / "web" / "run", [shown.append], terminal=False)
    one = trainer(
        tmp_path / "web",
        curriculum=curriculum(tmp_path, primary="web"),
        loss_fn=by_position,
        logger=log,
    )
    one.run()
    other = trainer(
        tmp_path / "self", curriculum=curriculum(tmp_path), loss_fn=by_position
    )
    other.run()

    ours, theirs = rows(tmp_path / "web"), rows(tmp_path / "self")
    sunk = [row for row in shown if row["kind"] == "train"]
    assert [*map(losses, ours)] == [*map(losses, sunk)]
    assert [renamed(row, "web", "self") for row in ours] == [
        renamed(row, "self", "self") for row in theirs
    ]
    lines = (tmp_path / "web" / "run" / "system.log").read_text()
    assert "web 70%, code 30%" in lines
    assert "self" not in lines
    for name in ("web", "self"):
        folder = RunFolder(tmp_path / name / "run")
        assert (folder.primary, [*folder.data().sources]) == (name, [name, "code"])


def test_a_run_keeps_the_name_of_its_primary(tmp_path: Path) -> None:
    trainer(tmp_path, curriculum=curriculum(tmp_path), loss_fn=by_position).run()

    words = "the primary is named 'web' instead of 'self'"
    with pytest.raises(RunMismatchError, match=words):
        trainer(tmp_path, curriculum=curriculum(tmp_path, primary="web")).run()


def test_source_that_an_edit_adds_has_a_loss_from_then_on(tmp_path: Path) -> None:
    data = curriculum(tmp_path)
    first = Curriculum(data.primary_streamer, [Phase(8, 16, 9)])
    trainer(tmp_path, curriculum=first, loss_fn=by_position, log_every=4).run()
    grown = Curriculum(
        data.primary_streamer,
        [Phase(8, 16, 9), Phase(4, 16, 9, {"self": 0.5, "more": 0.5})],
        {"more": corpus(tmp_path)},
    )
    trainer(tmp_path, curriculum=grown, loss_fn=by_position, log_every=4).run()

    last = rows(tmp_path)[-1]
    assert losses(last) == pytest.approx(expected(grown, 8, 12))
    assert last["rows_by_source"] == {"self": 8 * 16 + 32, "more": 32}


def test_rows_of_sources_are_counted_without_row_loss(tmp_path: Path) -> None:
    data = curriculum(tmp_path)
    trainer(tmp_path, curriculum=data, log_every=3).run()

    sampler = data.sampler(0)
    counted = dict.fromkeys(sampler.source_names, 0)
    by_step = {row["step"]: row for row in rows(tmp_path)}
    for step in range(18):
        for source in sampler.windows(step).source:
            counted[sampler.source_names[int(source)]] += 1
        if row := by_step.get(step + 1):
            assert row["rows_by_source"] == counted
            assert not losses(row)


def test_without_row_loss_the_parameters_are_the_same(tmp_path: Path) -> None:
    def with_rows(model: Any, batch: Any) -> Any:
        nll = optax.softmax_cross_entropy_with_integer_labels(
            model(batch[:, :-1]), batch[:, 1:]
        )
        return nll.mean(), {"row_loss": nll.mean(-1)}

    phases = [Phase(4, 4, 9)]
    trainer(tmp_path / "a", phases, loss_fn=with_rows).run()
    trainer(tmp_path / "b", phases).run()

    pairs = zip(rows(tmp_path / "a"), rows(tmp_path / "b"), strict=True)
    for ours, theirs in pairs:
        assert math.isclose(ours["loss"], theirs["loss"], rel_tol=1e-5)
        assert "loss/self" in ours
        assert ours["digest"] == theirs["digest"]


@pytest.mark.parametrize(
    ("aux", "words"),
    [
        ({"row_loss": jnp.zeros(3)}, r"'row_loss' of shape \(3,\) for a batch of 4"),
        ({"row_loss": jnp.zeros(())}, r"return one value for each row"),
        ({"row_weight": jnp.zeros(4)}, "'row_weight' without 'row_loss'"),
        ({"row_loss": jnp.zeros(4), "loss/web": 1.0}, "metric named 'loss/web'"),
    ],
)
def test_wrong_values_of_rows_fail_at_construction(
    tmp_path: Path, aux: dict[str, Any], words: str
) -> None:
    def wrong(model: Any, batch: Any) -> Any:
        return loss_fn(model, batch), aux

    data = Curriculum(corpus(tmp_path), [Phase(2, 4, 9)], primary="web")
    with pytest.raises(TypeError, match=words):
        trainer(tmp_path, curriculum=data, loss_fn=wrong, pair=pair())
