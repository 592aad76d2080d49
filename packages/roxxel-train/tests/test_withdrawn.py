"""A run does not learn withdrawn documents, and reads the same batches as before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest
from flax import nnx
from roxxel_curriculum import Curriculum, CurriculumError, Phase
from roxxel_format import Roxxel
from roxxel_train import RunFolder

from .helpers import VOCABULARY, by_mask, masked_loss, mesh_of, pair, rows, trainer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.first

MARK = VOCABULARY - 1
"""The only token of the documents that the tests withdraw."""

FIELDS = ("tokens", "loss_mask")
PHASES = (Phase(6, 8, 17), Phase(4, 4, 33))


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> tuple[Roxxel, list[int]]:
    """Return a corpus, and the documents that consist of the mark alone."""
    random = np.random.default_rng(0)
    corpus = Roxxel(tmp_path_factory.mktemp("web") / "web_*.rox")
    documents = [random.integers(0, MARK, 20) for _ in range(200)]
    marked = random.choice(200, 60, replace=False).tolist()
    for number in marked:
        documents[number][:] = MARK
    corpus.write(documents, vocab_size=VOCABULARY, separator=None)
    return corpus, marked


def by_hand(model: Any, tokens: Any) -> Any:
    return masked_loss(model, tokens, tokens != MARK)


def started(folder: Path, data: Curriculum, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "curriculum": data,
        "log_every": 1,
        "loss_fn": by_mask,
        "fields": FIELDS,
    }
    return trainer(folder, **(defaults | options))


def assert_close(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Compare rows of metrics; two programs may round a loss differently."""
    for one, other in zip(ours, theirs, strict=True):
        floats = {name for name, value in one.items() if isinstance(value, float)}
        assert one.keys() == other.keys()
        assert {n: one[n] for n in one.keys() - floats} == {
            n: other[n] for n in one.keys() - floats
        }
        for name in floats:
            assert one[name] == pytest.approx(other[name], rel=1e-4)


def weights(of: Any) -> list[Any]:
    return [np.asarray(x) for x in jax.tree.leaves(nnx.state(of.model, nnx.Param))]


def test_a_withdrawn_document_gives_no_gradient(
    web: tuple[Roxxel, list[int]], tmp_path: Path
) -> None:
    """The weights are those of a model trained on data that was masked by hand."""
    corpus, marked = web
    options: dict[str, Any] = {"grad_accum_steps": 2, "mesh": mesh_of(2)}
    without = Curriculum(corpus, PHASES, without={"self": marked})
    run = started(tmp_path / "a", without, **options)
    hand = started(
        tmp_path / "b",
        Curriculum(corpus, PHASES),
        loss_fn=by_hand,
        fields=("tokens",),
        **options,
    )

    run.run()
    hand.run()

    for one, other in zip(weights(run), weights(hand), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)
    assert_close(rows(tmp_path / "a"), rows(tmp_path / "b"))


def test_documents_withdrawn_in_the_middle_are_learned_before_and_not_after(
    web: tuple[Roxxel, list[int]], tmp_path: Path
) -> None:
    corpus, marked = web

    def trips(state: Any) -> None:
        if int(state.step[...]) == 4:
            raise RuntimeError("it tripped")

    before, after = (
        Curriculum(corpus, PHASES, without={"self": ids}) for ids in ([], marked)
    )
    folder = tmp_path / "run"
    for name, edit in (("run", after), ("hand", before)):
        with pytest.raises(RuntimeError, match="it tripped"):
            started(tmp_path / name, before, eval_fn=trips, eval_every=1).run()
        loss = by_mask if name == "run" else by_hand
        fields = FIELDS if name == "run" else ("tokens",)
        resumed = started(
            tmp_path / name, edit, loss_fn=loss, fields=fields, pair=pair(seed=5)
        )
        assert resumed.run().start_step == 4

    assert_close(rows(folder), rows(tmp_path / "hand"))
    log = (folder / "run" / "system.log").read_text()
    assert "step 4: 60 documents of self withdrawn: loss_mask is 0" in log
    state = RunFolder(folder / "run").data().state
    assert [entry["step"] for entry in state["without"]] == [4]
    # A start with the same curriculum has the same past, and nothing to train.
    assert started(folder, after).run().complete
    again = started(folder, after)
    assert again.sampler.masked_steps("self", marked[0]) == (range(4, 10),)
    assert again.sampler.batch(3)["loss_mask"].all()
    assert not again.sampler.batch(4)["loss_mask"].all()
    longer = (PHASES[0], Phase(6, 4, 33))
    started(folder, Curriculum(corpus, longer, without={"self": []})).run()
    log = (folder / "run" / "system.log").read_text()
    assert "step 10: all documents of self are learned again from here on" in log


def test_a_batch_without_the_mask_is_refused(
    web: tuple[Roxxel, list[int]], tmp_path: Path
) -> None:
    data = Curriculum(web[0], PHASES, without={"self": [3]})

    with pytest.raises(CurriculumError, match=r"fields = \['tokens', 'loss_mask'\]"):
        started(tmp_path, data, fields=("tokens",))


def test_a_loss_that_ignores_the_mask_is_refused(
    web: tuple[Roxxel, list[int]], tmp_path: Path
) -> None:
    def deaf(model: Any, batch: Any) -> Any:
        _ = batch["loss_mask"][:, 1:].astype(float)
        return by_hand(model, batch["tokens"])

    data = Curriculum(web[0], PHASES, without={"self": [3]})
    with pytest.raises(ValueError, match="the loss does not use the field 'loss_mask'"):
        started(tmp_path, data, loss_fn=deaf, grad_accum_steps=2)

    # Without withdrawn documents, a loss need not use every field.
    started(tmp_path, Curriculum(web[0], PHASES), loss_fn=deaf, grad_accum_steps=2)
