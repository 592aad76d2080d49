"""Two runs compared by their logs: the cause of a difference is named first."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from roxxel import Curriculum, Phase, Roxxel, Trainer, diff, open_run
from roxxel.cli import main
from roxxel.config import load_config, make_trainer
from roxxel_curriculum.run_log import METRICS, RunLog
from roxxel_train import RunFolderError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

MODEL = """
import jax.numpy as jnp
import optax
from flax import nnx


class Net(nnx.Module):
    def __init__(self, init, dtype):
        rngs = nnx.Rngs(init)
        self.embed = nnx.Embed(64, 4, dtype=jnp.dtype(dtype), rngs=rngs)

    def __call__(self, tokens):
        return self.embed.attend(self.embed(tokens)).astype(jnp.float32)


def make(rate=0.5, init=0, clip=1.0, dtype="float32"):
    model = Net(init, dtype)
    descend = optax.chain(
        optax.clip_by_global_norm(clip),
        optax.inject_hyperparams(optax.sgd)(learning_rate=rate),
    )
    return model, nnx.Optimizer(model, descend, wrt=nnx.Param), loss


def other():
    return make(rate=0.25)


def loss(model, batch):
    tokens, mask = batch["tokens"], batch["loss_mask"][:, 1:]
    each = optax.softmax_cross_entropy_with_integer_labels(
        model(tokens[:, :-1]), tokens[:, 1:]
    )
    weight = mask.sum()
    return {"loss": (each * mask).sum() / weight, "loss_weight": weight}
"""

CONFIG = """\
model = "tiny:make"
save_path = "run"

[sources]
self = "web.rox"
code = "code.rox"

[[phases]]
steps = 4
batch_size = 4
seq_len = 9
weights = { self = 0.5, code = 0.5 }

[[phases]]
steps = 4
batch_size = 4
seq_len = 17
weights = { self = 0.5, code = 0.5 }

[trainer]
fields = ["tokens", "loss_mask"]
checkpoint_every = 4
log_every = 1
"""


EDITED = 11
"""A document that `base` reads."""


def write_corpora(folder: Path, edit: int | None = None) -> None:
    """Write two corpora; `edit` is a document of the first with another token."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiny.py").write_text(MODEL)
    for name, seed in (("web", 0), ("code", 1), ("more", 2)):
        random = np.random.default_rng(seed)
        documents = [random.integers(1, 63, 40) for _ in range(30)]
        if edit is not None and name == "web":
            documents[edit][5] = 63
        Roxxel(folder / f"{name}.rox").write(documents, vocab_size=64, exist="replace")


def train(
    folder: Path, name: str, config: str = CONFIG, until: int | None = None
) -> Path:
    """Train the run of a config in a folder, or go on with it; return its folder."""
    file = folder / f"{name}.toml"
    file.write_text(config.replace('"run"', f'"{name}"'))
    make_trainer(load_config(file)).run(until=until)
    return folder / name


def changed(old: str, new: str, config: str = CONFIG) -> str:
    assert old in config
    return config.replace(old, new)


def with_args(values: str, config: str = CONFIG) -> str:
    return f"{config}\n[model_args]\n{values}\n"


def of_phase_1(old: str, new: str) -> str:
    start = CONFIG.rindex("[[phases]]")
    return CONFIG[:start] + changed(old, new, CONFIG[start:])


BLEND = "weights = { self = 0.5, code = 0.5 }"
OTHER_BLEND = "weights = { self = 0.75, code = 0.25 }"
CONFIGS = {
    "rate": (with_args("rate = 0.1"), "model_args.rate"),
    "init": (with_args("init = 3"), "model_args.init"),
    "clip": (with_args("clip = 0.01"), "model_args.clip"),
    "dtype": (with_args('dtype = "bfloat16"'), "model_args.dtype"),
    "model": (changed("tiny:make", "tiny:other"), "model"),
    "seed": (f"seed = 5\n{CONFIG}", "seed"),
    "overlap": (f"overlap = 1\n{CONFIG}", "overlap"),
    "longest": (f"longest = 33\n{CONFIG}", "longest"),
    "skips": (f"skips = [[2, 3]]\n{CONFIG}", "skips"),
    "source": (changed('"code.rox"', '"more.rox"'), "sources.code"),
    "steps": (CONFIG.replace("steps = 4", "steps = 3", 1), "phases[0].steps"),
    "batch": (of_phase_1("size = 4", "size = 2"), "phases[1].batch_size"),
    "length": (of_phase_1("len = 17", "len = 13"), "phases[1].seq_len"),
    "blend": (of_phase_1(BLEND, OTHER_BLEND), "phases[1].weights.self"),
    "without": (f"{CONFIG}\n[without]\nself = [1, 2, 3, 4, 5, 6]\n", "without.self"),
    "parts": (f"{CONFIG}grad_accum_steps = 2\n", "trainer.grad_accum_steps"),
    "proxy": (f"{CONFIG}\n[proxy]\nscale = 0.5\n", "proxy.scale"),
    "weights": (f'{CONFIG}init_from = "base@4"\n', "trainer.init_from"),
}
"""A config that differs in one key, and the key."""

CODES = {
    "loss": ("each * mask", "1.1 * each * mask"),
    "init": ("nnx.Rngs(init)", "nnx.Rngs(init + 1)"),
    "clip": ("global_norm(clip)", "global_norm(clip / 100)"),
    "optimizer": ("(optax.sgd)(", "(optax.lion)("),
}
"""Changes of the model's code, which no log has."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with corpora and a run, `base`, of 8 steps."""
    folder = tmp_path_factory.mktemp("diff")
    write_corpora(folder)
    train(folder, "base")
    return folder


QUICK = {"rate", "seed", "blend", "without", "weights"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.long)
        for name in CONFIGS
    ],
)
def test_a_key_of_the_config_is_named_first(folder: Path, name: str) -> None:
    config, key = CONFIGS[name]

    found = diff(folder / "base", train(folder, name, config))

    first = found.differences[0]
    assert (first.kind, first.step, first.what) == ("config", 0, key), str(found)
    assert not found.is_equal
    assert not found.not_compared


@pytest.mark.parametrize("name", CODES)
def test_other_code_differs_in_the_numbers_alone(
    folder: Path, tmp_path: Path, name: str
) -> None:
    write_corpora(tmp_path)
    (tmp_path / "tiny.py").write_text(changed(*CODES[name], MODEL))

    found = diff(folder / "base", train(tmp_path, "other"))

    assert {each.kind for each in found.differences} == {"numbers"}, str(found)
    assert [each.what for each in found.differences] == ["loss", "state_digest"]
    assert "the data of the first 8 steps, by 8 digests" in found.shared


def test_keys_without_effect_leave_runs_equal(folder: Path) -> None:
    shutil.copy(folder / "code.rox", folder / "copy.rox")
    config = changed("log_every = 1", "log_every = 2\nskip_spikes = {}")
    config = changed('"code.rox"', '"copy.rox"', config)
    tables = '[mesh]\npreset = "fsdp"\n\n[policies]\ncode = "repeat"\n\n'
    config += f'\n{tables}[eval.web]\npath = "more.rox"\nsteps = 1\n'
    config += "batch_size = 4\nseq_len = 9\n"

    found = diff(folder / "base", train(folder, "rarely", config))

    assert found.is_equal, str(found)
    keys = {"trainer.skip_spikes", "mesh.preset", "policies.code"}
    assert {each.what for each in found.differences} == keys
    aside = [each.what for each in found.aside if not each.what.startswith("eval.")]
    assert aside == ["sources.code", "trainer.log_every"]
    assert len(found.aside) > 2
    assert "losses in the log: 5, up to its step 8" in found.shared


def test_equal_runs_are_equal_wherever_their_corpora_lie(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpora(tmp_path)
    runs = folder / "base", train(tmp_path, "other")

    assert main(["diff", *map(str, runs)]) == 0

    said = capsys.readouterr().out
    assert "equal in the 8 steps that both have" in said
    assert "differ" not in said
    assert main(["diff", "--json", *map(str, runs)]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == []


def first_read(run: Path, token: int) -> int:
    places = open_run(run).sampler().where("self", token, token + 1)
    return next(each.step for each in places)


def test_an_edited_document_is_named_with_its_step_and_row(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpora(tmp_path, edit=EDITED)
    runs = folder / "base", train(tmp_path, "other")

    first = diff(*runs).differences[0]

    token = EDITED * 40 + 5
    assert first.kind == "data"
    assert first.step == first_read(runs[0], token)
    assert first.values == (f"token {token}, document {EDITED}",) * 2
    assert main(["diff", *map(str, runs)]) == 3
    assert capsys.readouterr().out.splitlines()[1].startswith("data ")


def test_a_corpus_edited_in_place_is_named_though_its_old_tokens_are_gone(
    tmp_path: Path,
) -> None:
    write_corpora(tmp_path)
    one = train(tmp_path, "one")
    step = first_read(one, EDITED * 40 + 5)
    write_corpora(tmp_path, edit=EDITED)

    first = diff(one, train(tmp_path, "other")).differences[0]

    assert (first.kind, first.step) == ("data", step)
    assert "holds other data" in first.reasons[0]
    assert "the corpora are not those of the run" in first.reasons[-1]


def test_a_resume_with_another_config_is_named_where_it_begins(folder: Path) -> None:
    train(folder, "resumed", until=4)
    run = train(folder, "resumed", with_args("clip = 0.01"))

    found = diff(folder / "base", run)

    first, second, *_ = found.differences
    assert (first.kind, first.step, first.what) == ("config", 4, "model_args.clip")
    assert (second.kind, second.step, second.what) == ("numbers", 5, "loss")
    assert "losses in the log: 5, up to its step 5" in found.shared


def test_a_resume_with_another_future_parts_where_the_future_begins(
    folder: Path,
) -> None:
    train(folder, "future", until=2)
    run = train(folder, "future", of_phase_1(BLEND, OTHER_BLEND))

    found = diff(folder / "base", run)

    assert found.step == 4
    assert found.differences[0].kind == "config"
    assert found.differences[0].step == 2
    assert "weights" in found.differences[0].what


def test_steps_that_a_start_gave_up_are_those_of_the_result(folder: Path) -> None:
    lost = train(folder, "lost", until=6)
    shutil.rmtree(lost / "checkpoints" / "6")
    train(folder, "lost")
    other = train(folder, "other", until=6)
    shutil.rmtree(other / "checkpoints" / "6")
    train(folder, "other", with_args("clip = 0.01"))

    assert diff(folder / "base", lost).is_equal
    first = diff(lost, other).differences[0]
    assert (first.kind, first.step, first.what) == ("config", 4, "model_args.clip")


def test_a_corpus_that_has_grown_is_a_difference_of_the_data(tmp_path: Path) -> None:
    write_corpora(tmp_path)
    config = changed('"web.rox"', '"grown_*.rox"')
    documents = np.random.default_rng(3).integers(1, 63, (39, 40))
    corpus = Roxxel(tmp_path / "grown_*.rox")
    corpus.write(documents[:30], vocab_size=64)
    one = train(tmp_path, "one", config)
    corpus.write(documents[30:], vocab_size=64, exist="append")

    first = diff(one, train(tmp_path, "other", config)).differences[0]

    assert first.kind == "data"
    assert "source 'self' holds other data: 1,560 tokens" in first.reasons[0]
    assert all("document" in each for each in first.values)


def test_weights_of_one_name_may_be_two(folder: Path) -> None:
    config = f'{CONFIG}init_from = "parent@4"\n'
    train(folder, "parent")
    one = train(folder, "one", config)
    shutil.rmtree(folder / "parent")
    train(folder, "parent", with_args("init = 5"))

    first = diff(one, train(folder, "two", config)).differences[0]

    assert (first.kind, first.what) == ("config", "trainer.init_from")
    assert all("step 4 of" in each for each in first.values)


def test_a_branch_shares_the_past_of_its_parent(folder: Path) -> None:
    branch = f'{CONFIG}branch_from = "base@4"\n'
    same = train(folder, "same", branch)
    other = train(folder, "branch", with_args("clip = 0.01", branch))

    found = diff(folder / "base", same)
    assert found.is_equal
    assert not found.differences
    assert f"is a branch of {folder / 'base'}@4" in found.shared[0]
    for run in (folder / "base", same):
        found = diff(run, other)
        first = found.differences[0]
        assert (first.kind, first.step, first.what) == ("config", 4, "model_args.clip")
        assert found.step == 5


def test_programs_are_compared_as_far_as_their_logs_tell(
    folder: Path, tmp_path: Path
) -> None:
    made: dict[str, Any] = {}
    exec(MODEL, made)  # noqa: S102 - the text above
    for name, rate in (("one", 0.5), ("two", 0.1)):
        model, optimizer, loss = made["make"](rate)
        web, code = (Roxxel(folder / f"{x}.rox") for x in ("web", "code"))
        blend = {"self": 0.5, "code": 0.5}
        phases = [Phase(4, 4, 9, blend), Phase(4, 4, 17, blend)]
        trainer = Trainer(
            model,
            optimizer,
            Curriculum(web, phases, {"code": code}),
            loss,
            tmp_path / name,
            fields=FIELDS,
            log_every=1,
        )
        for until in (3, 5, None):
            trainer.run(until)

    found = diff(tmp_path / "one", tmp_path / "two")

    assert [each.kind for each in found.differences] == [
        "update",
        "numbers",
        "numbers",
    ]
    assert found.differences[0].what == "learning_rate"
    [missing] = found.not_compared
    assert all(str(tmp_path / x) in missing for x in ("one", "two"))
    assert diff(folder / "base", tmp_path / "one").is_equal


FIELDS = ("tokens", "loss_mask")
BLENDS = {"self": 1, "code": 1}
PHASES = [Phase(4, 4, 9, BLENDS), Phase(4, 4, 17, BLENDS)]
LOOPS: dict[str, tuple[dict[str, Any], str]] = {
    "blend": ({"phases": [PHASES[0], Phase(4, 4, 17, {"self": 1})]}, "weights"),
    "batch": ({"phases": [PHASES[0], Phase(4, 2, 17, BLENDS)]}, "batch_size"),
    "length": ({"phases": [PHASES[0], Phase(4, 4, 13, BLENDS)]}, "seq_len"),
    "longest": ({"longest": 33}, "longest"),
    "overlap": ({"overlap": 1}, "overlap"),
    "skips": ({"skips": [(3, 2)]}, "before step 3"),
    "source": ({"code": "more"}, "source 'code' holds other data"),
}
"""What another loop declares, and how the plans name it."""


def record(
    folder: Path,
    run: Path,
    phases: Sequence[Phase] = PHASES,
    code: str = "code",
    web: str = "web.rox",
    seed: int = 0,
    losses: Sequence[float] = (3.0,) * 8,
    **options: Any,
) -> Path:
    """Write the log of a loop that is not ours."""
    corpus, mix = Roxxel(folder / web), Roxxel(folder / f"{code}.rox")
    curriculum = Curriculum(corpus, phases, {"code": mix}, **options)
    sampler = curriculum.sampler(seed, fields=FIELDS)
    with RunLog(run, sampler) as log:
        for step, loss in enumerate(losses):
            log.record(step, sampler.batch(step)["tokens"], loss=loss)
    return run


@pytest.mark.parametrize("name", LOOPS)
def test_a_plan_says_why_the_data_of_a_loop_differ(
    folder: Path, tmp_path: Path, name: str
) -> None:
    options, said = LOOPS[name]
    one = record(folder, tmp_path / "one")

    found = diff(one, record(folder, tmp_path / "other", **options))

    first = found.differences[0]
    assert first.kind == "data", str(found)
    assert said in "; ".join(first.reasons), str(found)
    pair = [open_run(x).sampler() for x in (one, tmp_path / "other")]
    same = [np.array_equal(*(x.batch(n) for x in pair)) for n in range(8)]
    assert first.step == same.index(False)


def test_the_seed_of_a_loop_is_named_first(folder: Path, tmp_path: Path) -> None:
    one = record(folder, tmp_path / "one")

    first = diff(one, record(folder, tmp_path / "other", seed=3)).differences[0]

    assert (first.kind, first.what, first.values) == ("config", "seed", ("0", "3"))


def test_nan_is_equal_to_nan_and_to_no_number(folder: Path, tmp_path: Path) -> None:
    nan = [3.0] * 4 + [float("nan")] * 4
    one, two = (record(folder, tmp_path / x, losses=nan) for x in ("one", "two"))
    three = record(folder, tmp_path / "three")

    assert diff(one, two).is_equal
    assert diff(one, three).differences[0].step == 4


def rewritten(run: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Change the rows of a log, or leave out those for which `change` returns None."""
    rows = map(json.loads, (run / METRICS).read_text().splitlines())
    kept = (change(row) for row in rows)
    text = "".join(f"{json.dumps(row)}\n" for row in kept if row is not None)
    (run / METRICS).write_text(text)
    return run


def test_the_step_is_found_between_sparse_rows_and_without_digests(
    folder: Path, tmp_path: Path
) -> None:
    runs = (
        record(folder, tmp_path / "one"),
        record(folder, tmp_path / "other", skips=[(3, 2)]),
    )
    for kept in ((1, 6), ()):
        for run in runs:
            rewritten(
                run,
                lambda row, kept=kept: {
                    name: x
                    for name, x in row.items()
                    if name != "digest" or row["step"] in kept
                },
            )
        first = diff(*runs).differences[0]
        assert (first.kind, first.step) == ("data", 3)


def first_difference(one: Path, other: Path) -> tuple[int, int] | None:
    """Return the first step and row that two runs were fed differently, by reading."""
    a, b = (open_run(run).sampler(FIELDS) for run in (one, other))
    for step in range(8):
        x, y = a.batch(step), b.batch(step)
        shared = min(len(x["tokens"]), len(y["tokens"]))
        if x["tokens"].shape[1] != y["tokens"].shape[1]:
            return step, 0
        differ = np.zeros(shared, bool)
        for name in FIELDS:
            differ |= (x[name][:shared] != y[name][:shared]).any(axis=1)
        if differ.any() or len(x["tokens"]) != len(y["tokens"]):
            return step, int(np.flatnonzero([*differ, True])[0])
    return None


def test_masks_that_differ_where_tokens_do_are_named_too(
    folder: Path, tmp_path: Path
) -> None:
    write_corpora(tmp_path, edit=EDITED)
    one = record(folder, tmp_path / "one")
    other = record(tmp_path, tmp_path / "other", without={"self": [13]})

    data = [each.what for each in diff(one, other).differences if each.kind == "data"]

    assert first_difference(one, other) == (7, 1)
    assert data[0].startswith("other tokens in row 3")
    assert data[1].startswith("other loss_mask in row 1")


def test_another_column_of_masks_is_a_difference_of_the_data(tmp_path: Path) -> None:
    runs: list[Path] = []
    for name, masked in (("a", 0), ("b", 480)):
        write_corpora(tmp_path / name)
        corpus = Roxxel(tmp_path / name / "masked_*.rox")
        corpus.write(Roxxel(tmp_path / name / "web.rox").documents, vocab_size=64)
        corpus.write_column("loss_mask", np.arange(1200) >= masked)
        log = tmp_path / name / "run"
        runs.append(record(tmp_path / name, log, web="masked_*.rox"))

    first = diff(*runs).differences[0]

    step, row = first_difference(*runs) or (None, None)
    assert (first.kind, first.step) == ("data", step)
    assert first.what.startswith(f"other loss_mask in row {row} ")


OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "phases": st.sampled_from(
        [
            PHASES,
            [PHASES[0], Phase(4, 2, 17, BLENDS)],
            [Phase(5, 4, 9, BLENDS), Phase(3, 4, 13, {"self": 3, "code": 1})],
        ]
    ),
    "seed": st.sampled_from([0, 0, 1]),
    "code": st.sampled_from(["code", "code", "more"]),
    "skips": st.sampled_from([[], [(2, 1)], [(5, 3)]]),
    "overlap": st.sampled_from([0, 0, 1]),
    "without": st.sampled_from(
        [None, {"self": [1, 2, 3, 11, 13]}, {"self": ["tokens:[100,900)"]}]
    ),
}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    options=st.fixed_dictionaries(OPTIONS),
    change=st.fixed_dictionaries({}, optional=OPTIONS),
    digests=st.sampled_from([range(9), (1, 6), ()]),
)
@example({}, {"without": {"self": ["tokens:[100,900)"]}}, (1, 6))
def test_the_first_other_row_is_that_of_all_batches_read(
    folder: Path,
    tmp_path: Path,
    options: dict[str, Any],
    change: dict[str, Any],
    digests: Sequence[int],
) -> None:
    def thinned(row: dict[str, Any]) -> dict[str, Any]:
        kept = row["step"] in digests
        return row if kept else {n: x for n, x in row.items() if n != "digest"}

    runs: list[Path] = []
    for name, given_options in (("a", options), ("b", options | change)):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        runs.append(record(folder, tmp_path / name, **given_options))
        rewritten(runs[-1], thinned)

    data = [each for each in diff(*runs).differences if each.kind == "data"]

    found = [(x.step, int(x.what.split("row ")[1].split()[0])) for x in data]
    assert min(found, default=None) == first_difference(*runs)


def test_places_are_named_where_the_corpora_are_gone(tmp_path: Path) -> None:
    write_corpora(tmp_path)
    one = record(tmp_path, tmp_path / "one")
    other = record(tmp_path, tmp_path / "other", seed=1)
    for file in tmp_path.glob("*.rox*"):
        file.unlink()

    data = diff(one, other).differences[1]

    assert (data.kind, data.step, data.what) == ("data", 0, "row 0")
    assert all("tokens [" in each and "document" not in each for each in data.values)


def test_a_forged_digest_is_a_difference_that_the_corpora_do_not_explain(
    folder: Path, tmp_path: Path
) -> None:
    def forged(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "digest": "0" * 16} if row["step"] == 5 else row

    one = record(folder, tmp_path / "one")
    other = rewritten(record(folder, tmp_path / "other"), forged)

    first = diff(one, other).differences[0]

    assert (first.kind, first.step) == ("data", 4)
    assert "roxxel verify --data" in first.reasons[-1]


def test_skipped_updates_and_rates_are_named_before_the_losses(
    folder: Path, tmp_path: Path
) -> None:
    def skips(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "skipped": 1, "loss": 2.0} if row.get("step") == 6 else row

    one = record(folder, tmp_path / "one")
    other = rewritten(record(folder, tmp_path / "other"), skips)

    found = diff(one, other)

    assert [(each.kind, each.what) for each in found.differences] == [
        ("update", "skipped"),
        ("numbers", "loss"),
    ]
    assert found.step == 5


def test_other_devices_are_named_beside_the_numbers(
    folder: Path, tmp_path: Path
) -> None:
    def moved(row: dict[str, Any]) -> dict[str, Any]:
        if row["kind"] == "start":
            return {**row, "devices": {"H200": 1}}
        return {**row, "loss": row["loss"] + 1e-7} if "loss" in row else row

    copy = shutil.copytree(folder / "base", tmp_path / "copy")

    found = diff(folder / "base", rewritten(copy, moved))

    assert found.differences[0].kind == "numbers"
    assert any("devices.H200: None and 1" in each for each in found.explanations)


def test_what_cannot_be_compared_is_said_or_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def bare(row: dict[str, Any]) -> dict[str, Any] | None:
        return {"kind": row["kind"], "step": row["step"]} if "step" in row else row

    one = record(folder, tmp_path / "one")
    none = record(folder, tmp_path / "none", losses=())
    silent = rewritten(record(folder, tmp_path / "silent"), bare)

    with pytest.raises(RunFolderError, match="have trained no step in common"):
        diff(one, none)
    with pytest.raises(RunFolderError, match="nothing in their logs can be compared"):
        diff(one, silent)
    assert main(["diff", str(one), str(tmp_path / "nowhere")]) == 1
    assert "there is no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("spoilt", ["steps", "state", "sources"])
def test_a_log_that_contradicts_itself_is_compared_by_its_rows(
    folder: Path, tmp_path: Path, spoilt: str
) -> None:
    def change(row: dict[str, Any]) -> dict[str, Any]:
        if row["kind"] != "start":
            return row
        state = row["data"]["state"]
        others = {
            "steps": short,
            "state": {**state, "seed": 9},
            "sources": {**state, "sources": 7},
        }
        return {**row, "data": {**row["data"], "state": others[spoilt]}}

    one = record(folder, tmp_path / "one")
    short = open_run(one).sampler().state(6)
    other = rewritten(record(folder, tmp_path / "other"), change)
    rewritten(other, lambda row: {n: x for n, x in row.items() if n != "digest"})

    found = diff(one, other)

    assert "losses in the log: 8, up to its step 8" in found.shared
    assert found.not_compared[-1].startswith("data from step 0 on: ")
    assert not [each for each in found.differences if each.kind == "data"]
