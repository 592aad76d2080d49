from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import example, given, settings
from hypothesis import strategies as st
from roxxel import Curriculum, Phase, Roxxel, Trainer
from roxxel.cli import main
from roxxel.report import read_facts, write_comparison, write_report
from roxxel_train import RunFolder

from .helpers import run_python
from .pages import (
    checked,
    drawn_of,
    facts_and_page,
    figure,
    numbers_of,
    train_row,
    write_checkpoint,
    write_description,
    write_run,
)

if TYPE_CHECKING:
    from pathlib import Path

TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise RuntimeError("<oom>")
RuntimeError: out of <memory>
"""


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    rows = [train_row(step) for step in range(1, 9)]
    rows.insert(
        4, {"kind": "eval", "step": 4, "time": rows[3]["time"], "eval_loss": 5.1}
    )
    rows.append({"kind": "eval", "step": 8, "time": rows[-1]["time"], "eval_loss": 4.1})
    run = write_run(tmp_path / "fine", rows)
    write_checkpoint(run, 4, 3.5)
    write_checkpoint(run, 8, 4.0)
    return run


def test_a_finished_run_is_one_page_with_its_numbers(finished: Path) -> None:
    facts, html = facts_and_page(finished)

    assert facts.headline == "complete, 8 of 8 steps, loss 4.0000"
    assert "in steps kept; " in html
    numbers = numbers_of(html)
    assert numbers["loss"]["loss of a step"] == {
        "x": list(range(1, 9)),
        "y": [6.0 - step / 4 for step in range(1, 9)],
    }
    assert numbers["loss"]["eval_loss (held out)"] == {"x": [4, 8], "y": [5.1, 4.1]}
    assert numbers["throughput"]["tokens/s"]["y"] == [32.0 + s for s in range(1, 9)]
    assert numbers["waiting"]["waiting"]["y"] == [s / 100 for s in range(1, 9)]
    assert numbers["tokens"]["code <x>"]["y"] == [4 * step for step in range(9)]
    assert numbers["train-grad_norm"]["grad_norm"]["y"] == [
        1.5 * s for s in range(1, 9)
    ]
    assert "128 (128)" in html
    assert re.search(r"in steps kept; .*waiting for data [\d.]+ %", html)
    assert "jax 9.8.7" in html
    assert "8 x TPU &lt;v4&gt; in 2 processes" in html
    assert "roxxel train &#x27;a b.toml&#x27;" in html.replace("<wbr/>", "")
    assert "<title>fine: complete" in html
    assert "code &lt;x&gt;" in html


def test_a_page_is_small_and_begins_with_model_and_devices(tmp_path: Path) -> None:
    made = json.dumps({"function": "llama", "args": {"preset": "small"}})
    run = write_run(tmp_path / "run", [train_row(1)])
    lines = (run / "metrics.jsonl").read_text().splitlines()
    start = {**json.loads(lines[0]), "made_by": made}
    (run / "metrics.jsonl").write_text("\n".join([json.dumps(start), *lines[1:]]))

    _, html = facts_and_page(run)

    assert len(html) < 1_500_000
    head = html.partition("</header>")[0]
    assert "<dt>Model</dt><dd>llama, small</dd>" in head
    assert "<dt>Devices</dt><dd>8 x TPU &lt;v4&gt; in 2 processes</dd>" in head
    assert "<dt>Command</dt><dd>roxxel train &#x27;a b.toml&#x27;</dd>" in head
    assert "<dt>Wait share</dt>" not in head  # the wall time has it


def test_a_wait_too_short_for_the_wall_time_is_said_alone(tmp_path: Path) -> None:
    rows = [train_row(step, wait_s=0.0001) for step in range(1, 5)]

    _, html = facts_and_page(write_run(tmp_path / "run", rows))

    head = html.partition("</header>")[0]
    assert "waiting for data" not in head
    assert "<dt>Wait share</dt><dd>0.02 % of the training time, for data</dd>" in head


def test_charts_that_find_causes_are_folded(tmp_path: Path) -> None:
    rows = [train_row(step, read_s=step / 10) for step in range(1, 5)]

    _, html = facts_and_page(write_run(tmp_path / "run", rows))

    shown, folded = html.split("<details><summary>More charts")
    assert 'id="train-grad_norm"' in shown
    assert 'id="train-read_s"' in folded.partition("</details>")[0]


def test_the_report_divides_the_wall_time_as_the_run_does(finished: Path) -> None:
    with (finished / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 9, "time": "soon", "step_s": 5.0}\n')
        file.write('{"kind": "other", "step": 9}\n{"kind": "train", "ste\n')

    found = read_facts(finished).goodput

    assert found == RunFolder(finished).goodput()
    assert found.steps > 0


def luminance(color: str) -> float:
    """Return the relative luminance of a colour (WCAG 2.2)."""

    def linear(value: float) -> float:
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(hue / 255) for hue in bytes.fromhex(color[1:]))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_line_stands_out_from_the_page(finished: Path, theme: str) -> None:
    """WCAG 2.2, 1.4.11: graphics have a contrast of 3 to what is beside them."""
    _, html = facts_and_page(finished)
    roots = re.findall(r":root \{(.*?)\}", html, re.DOTALL)
    names = dict(re.findall(r"--(\w+): (#\w{6})", roots[theme == "dark"]))

    for index in range(8):
        lights = [luminance(names[name]) + 0.05 for name in ("back", f"c{index}")]
        assert max(lights) / min(lights) >= 3


def test_mean_loss_that_is_the_loss_of_every_step_does_not_hide_it(
    tmp_path: Path,
) -> None:
    rows = [train_row(step, loss_mean=6.0 - step / 4) for step in range(1, 9)]

    _, html = facts_and_page(write_run(tmp_path / "run", rows))

    assert list(numbers_of(html)["loss"]) == ["loss of a step"]


@pytest.mark.parametrize(
    ("field", "title"),
    [
        (
            "read_s",
            "read_s: wait for reading tokens since the previous row, in seconds",
        ),
        ("model_flops_per_s", "model_flops_per_s: work of the model, in FLOP/s"),
        (
            "device_peak_bytes",
            "device_peak_bytes: peak memory of the fullest device, in bytes",
        ),
        ("my_metric", "my_metric"),
    ],
)
def test_chart_of_a_field_says_what_it_shows_and_its_unit(
    tmp_path: Path, field: str, title: str
) -> None:
    rows = [train_row(step, **{field: float(step)}) for step in range(1, 9)]

    _, html = facts_and_page(write_run(tmp_path / "run", rows))

    assert f"<figcaption>{title}</figcaption>" in html


def test_loss_and_share_of_each_source_are_drawn_in_its_colour(tmp_path: Path) -> None:
    planned = {"self": 12, "code <x>": 4}
    rows = [
        train_row(
            step,
            tokens_by_source={"self": 11 * step + step % 2, "code <x>": 5 * step},
            planned_tokens_by_source={n: x * step for n, x in planned.items()},
            rows_by_source={"self": 3 * step, "code <x>": step},
            digest=f"{step:016x}",
            **{"loss/self": 3.0 - step / 10, "loss/code <x>": 2.0 + step / 10},
        )
        for step in range(1, 9)
    ]

    facts, html = facts_and_page(write_run(tmp_path / "run", rows))

    checked(html)
    numbers = numbers_of(html)
    assert numbers["loss-by-source"]["code <x>"]["y"] == pytest.approx(
        [2.0 + step / 10 for step in range(1, 9)]
    )
    assert numbers["shares"]["self"]["y"] == pytest.approx([12 / 17, 10 / 15] * 4)
    assert numbers["shares"]["code <x> as planned"]["y"] == [0.25] * 8
    for key in ("loss-by-source", "shares", "tokens"):
        lines = drawn_of(html)["charts"][key]["lines"]
        of = {(line["of"], line["color"]) for line in lines}
        assert of == {("self", 0), ("code <x>", 1)}
    assert not any(name.startswith("loss/") for name in facts.other_fields)


def test_the_only_row_of_a_run_is_a_dot(tmp_path: Path) -> None:
    _, html = facts_and_page(write_run(tmp_path / "run", [train_row(1)]))

    [line] = drawn_of(html)["charts"]["train-grad_norm"]["lines"]
    assert line["dots"]


def test_source_that_is_not_read_yet_is_not_drawn(tmp_path: Path) -> None:
    rows = [train_row(s, tokens_by_source={"self": s, "later": 0}) for s in (1, 2)]

    _, html = facts_and_page(write_run(tmp_path / "run", rows))

    assert list(numbers_of(html)["tokens"]) == ["self"]


def test_run_of_one_source_has_no_charts_by_source(tmp_path: Path) -> None:
    rows = [
        train_row(s, tokens_by_source={"self": 9 * s}, **{"loss/self": 6.0 - s})
        for s in range(1, 5)
    ]

    _, html = facts_and_page(write_run(tmp_path / "run", rows))

    assert "shares" not in numbers_of(html)
    assert "loss-by-source" not in numbers_of(html)  # it is the chart of the loss


@pytest.fixture
def branch(finished: Path) -> Path:
    """Return a branch of step 5 of the run, in the second phase."""
    rows = [train_row(step) for step in range(6, 9)]
    run = write_run(finished.with_name("branch"), rows)
    phases = [
        {"start": 0, "batch_size": 2, "seq_len": 8},
        {"start": 4, "batch_size": 1, "seq_len": 16},
    ]
    record = json.loads((run / "run.json").read_text())
    tokens = {"self": 60, "code <x>": 20}
    record["data"] = {"step": 5, "phases": phases}
    record["branch_from"] = {
        "path": "runs/a",
        "run_id": "7f3a",
        "step": 5,
        "digest": "00ab",
        "tokens_by_source": tokens,
    }
    (run / "run.json").write_text(json.dumps(record))
    write_checkpoint(run, 8, 4.0)
    return run


def test_a_branch_counts_what_it_has_read_itself(branch: Path) -> None:
    facts, html = facts_and_page(branch)

    (phase,) = facts.phases
    assert (phase.index, phase.start) == (1, 5)
    assert phase.tokens == {"self": 36, "code <x>": 12}
    assert facts.shares["self"].steps == [6, 7, 8]
    assert numbers_of(html)["tokens"]["self"] == {
        "x": [5, 6, 7, 8],
        "y": [60, 72, 84, 96],
    }
    assert "128 (128), 48 of them in this branch" in html


def test_charts_of_a_branch_begin_at_its_first_step(branch: Path) -> None:
    _, html = facts_and_page(branch)

    drawn = drawn_of(html)
    assert drawn["clocks"] == [
        {"step": [5, 6, 7, 8], "tokens": [80, 96, 112, 128], "time": [0, 0.5, 1, 1.5]}
    ]
    assert [step for step, _ in drawn["phases"]] == [5]


@pytest.mark.parametrize("field", ["learning_rate", "loss_weight", "read_s"])
def test_axis_of_a_rate_begins_at_zero(tmp_path: Path, field: str) -> None:
    rows = [train_row(step, **{field: 100.0 + step}) for step in range(1, 9)]

    _, html = facts_and_page(write_run(tmp_path / "run", rows))

    assert drawn_of(html)["charts"][f"train-{field}"]["axis"] == "zero"


def test_perplexity_that_falls_far_has_a_logarithmic_axis(tmp_path: Path) -> None:
    rows = [train_row(step, perplexity=2.0 ** (9 - step)) for step in range(1, 9)]

    _, html = facts_and_page(write_run(tmp_path / "run", rows))

    title = "perplexity: e to the power of the mean loss (logarithmic)"
    assert f"<figcaption>{title}</figcaption>" in html
    assert drawn_of(html)["charts"]["train-perplexity"]["axis"] == "log"


def test_the_best_checkpoint_is_judged_by_the_held_out_loss(finished: Path) -> None:
    write_checkpoint(finished, 6, 5.0, loss_since_save=3.0, eval_loss=4.5)

    facts, html = facts_and_page(finished)

    assert (facts.best_metric, facts.best_step) == ("eval_loss", 6)
    assert "<td>6</td><td class=left>best eval_loss</td>" in html


def test_phases_and_checkpoints_stand_in_tables(finished: Path) -> None:
    facts, html = facts_and_page(finished)

    first, second = facts.phases
    assert (first.start, first.shape, second.start) == (0, "2 x 8", 4)
    assert first.tokens == {"self": 48, "code <x>": 16}
    assert second.tokens == {"self": 48, "code <x>": 16}
    assert second.shares == {"self": 0.75, "code <x>": 0.25}
    assert "phase 1: 2 x 16" in html
    assert [c.step for c in facts.checkpoints] == [4, 8]
    assert facts.best_step == 4
    assert "<td>4</td><td class=left>best loss</td>" in html
    assert "<td>8</td><td class=left>newest</td>" in html


def test_table_of_checkpoints_is_no_wider_than_a_phone(finished: Path) -> None:
    name = "eval_loss/" + "a-source-of-a-very-long-name-" * 4
    write_checkpoint(finished, 6, 5.0, **{name: 4.5, "eval_loss": 4.25})

    _, html = facts_and_page(finished)

    section = html.split("<h2>Checkpoints kept</h2>")[1].split("</section>")[0]
    assert '<table class="checkpoints">' in section
    assert f"<td class=left>loss 5, {name} 4.5, eval_loss 4.25</td></tr>" in section
    # Metrics are in the last column, which may break anywhere, so no name widens it.
    rule = ".checkpoints .left:last-child { overflow-wrap: anywhere; }"
    assert rule in html.split("</style>")[0]


def test_sources_of_a_phase_are_in_the_order_of_the_charts(finished: Path) -> None:
    meta = finished / "checkpoints" / "8" / "checkpoint.json"
    weights = '{"self": 3, "code <x>": 1}'
    assert weights in meta.read_text()
    sorted_weights = '{"code <x>": 1, "self": 3}'
    meta.write_text(meta.read_text().replace(weights, sorted_weights))

    _, html = facts_and_page(finished)

    table = html.split("<h2>What was read</h2>")[1]
    assert table.index(">self<") < table.index(">code &lt;x&gt;<")


def test_damaged_files_of_a_run_are_named(finished: Path) -> None:
    (finished / "run.json").write_text("{")
    (finished / "checkpoints" / "8" / "checkpoint.json").write_text("{")

    facts, html = facts_and_page(finished)

    assert [c.step for c in facts.checkpoints] == [4]
    assert facts.damaged == ("run.json", "checkpoints/8")
    assert "<li>run.json cannot be read</li>" in html
    assert "<li>checkpoints/8 cannot be read</li>" in html


def test_page_is_written_beside_other_files_and_to_a_folder_that_exists(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_the_user = finished / "report.html.tmp"
    of_the_user.write_text("mine")
    before = {path.name for path in finished.iterdir()}

    assert main(["report", str(finished)]) == 0
    assert main(["report", str(finished), "--out", str(finished / "no" / "a")]) == 1
    assert main(["report", str(finished), "--out", str(finished)]) == 1

    assert of_the_user.read_text() == "mine"
    assert {path.name for path in finished.iterdir()} == {*before, "report.html"}
    missing, folder = capsys.readouterr().err.splitlines()
    assert missing.startswith(f"roxxel: {finished / 'no' / 'a'}: its folder does not")
    assert folder.startswith(f"roxxel: {finished}: is a folder; name a file")


def test_system_s_refusal_names_the_file_first(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = finished / ("x" * 300)

    assert main(["report", str(finished), "--out", str(out)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"roxxel: {finished}")
    assert said.endswith(": File name too long\n")


def test_a_crashed_run_is_drawn_up_to_its_cut_line(tmp_path: Path) -> None:
    log = (
        "2026-11-21T12:00:01Z WARNING a <checkpoint> is damaged\n"
        f"2026-11-21T12:00:03Z ERROR the run ended with an error\n{TRACEBACK}"
    )
    end = {"kind": "end", "step": 3, "status": "ended with an error"}
    rows = [train_row(1), train_row(2, loss="nan"), train_row(3), end]
    run = write_run(tmp_path / "bad", rows, log, tail='{"kind": "train", "st')
    (run / "checkpoints" / "2").mkdir(parents=True)

    facts, html = facts_and_page(run)

    assert facts.status == "ended with an error"
    assert (facts.step, facts.total_steps, facts.starts) == (3, 8, 1)
    assert facts.num_damaged == 0
    assert facts.checkpoints == ()
    assert numbers_of(html)["loss"]["loss of a step"]["y"] == [5.75, None, 5.25]
    assert "a &lt;checkpoint&gt; is damaged" in html
    assert "RuntimeError: out of &lt;memory&gt;" in html
    assert "line 3, in &lt;module&gt;" in html


def test_a_run_that_is_going_on_says_so(finished: Path) -> None:
    import fcntl

    with (finished / "run.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        assert read_facts(finished).status == "running"


def test_a_run_that_was_stopped_says_so(tmp_path: Path) -> None:
    facts, _ = facts_and_page(write_run(tmp_path / "run", [train_row(1)]))

    assert facts.headline == "stopped, 1 of 8 steps, loss 5.7500"


def test_a_run_without_rows_is_a_page_too(tmp_path: Path) -> None:
    _, html = facts_and_page(write_run(tmp_path / "run", []))

    assert "The run has not written a training row yet." in html


@pytest.mark.parametrize("num_rows", [1, 2])
def test_a_run_whose_rows_name_no_phase_is_drawn(tmp_path: Path, num_rows: int) -> None:
    rows = [train_row(step) | {"phase": None} for step in (1, 5)[:num_rows]]

    _, html = facts_and_page(write_run(tmp_path / "run", rows))

    assert figure(html, "loss")


def test_lines_that_are_no_rows_are_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [train_row(1)], tail='\x00\n[]\n{"step": 3}\n')

    facts, html = facts_and_page(run)

    assert facts.num_damaged == 3
    assert "3 lines of metrics.jsonl cannot be read" in html


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=30), max_size=5))
def test_no_bytes_in_the_folder_keep_the_page_from_being_made(
    tmp_path_factory: pytest.TempPathFactory, junk: list[bytes]
) -> None:
    run = tmp_path_factory.mktemp("run")
    row = json.dumps(train_row(1)).encode()
    for name in ("metrics.jsonl", "system.log", "run.json"):
        (run / name).write_bytes(b"\n".join([row, *junk, row[:40]]))

    facts_and_page(run)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["self", "data", "phases"]), inner)
    ),
    max_leaves=4,
)


@settings(max_examples=60)
@given(st.data())
def test_no_values_of_a_run_s_files_keep_the_page_from_being_made(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run = tmp_path_factory.mktemp("run")
    rows = [train_row(1), train_row(5)]
    for row in rows:
        changed = data.draw(st.sets(st.sampled_from(sorted(row)), max_size=3))
        row.update({name: data.draw(anything) for name in sorted(changed)})
    (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    began = data.draw(anything | st.fixed_dictionaries({"seed": anything}))
    record = {"settings": began, "versions": data.draw(anything)}
    (run / "run.json").write_text(json.dumps(record))
    write_checkpoint(run, 4, 1.0)
    described = (run / "checkpoints" / "4" / "checkpoint.json").read_text()
    content = json.loads(described)["body"]
    phases = content["extra"]["data"]["phases"]
    for part, names in (
        (phases[0], sorted(phases[0])),
        (content, ["metrics", "extra"]),
    ):
        for name in data.draw(st.lists(st.sampled_from(names), max_size=1)):
            part[name] = data.draw(anything)
    write_description(run, **content)

    facts_and_page(run)


def test_text_of_an_evaluation_is_shown_and_is_no_html(tmp_path: Path) -> None:
    text = "</script><script>alert(1)</script>"
    rows = [train_row(1), {"kind": "eval", "step": 1, "time": "", "text": text}]

    _, html = facts_and_page(write_run(tmp_path / "run", rows))

    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in html
    assert "<script>alert" not in html


def test_a_source_s_name_cannot_end_the_script(tmp_path: Path) -> None:
    row = train_row(1, tokens_by_source={"</script>": 3})

    _, html = facts_and_page(write_run(tmp_path / "run", [row]))

    assert numbers_of(html)["tokens"] == {"</script>": {"x": [0, 1], "y": [0, 3.0]}}


@pytest.mark.parametrize("name", ["</script><b>", 'x" onclick="y', "%{x}<i>"])
def test_no_name_of_a_user_becomes_part_of_the_page(tmp_path: Path, name: str) -> None:
    rows = [train_row(step, **{name: float(step)}) for step in range(1, 4)]
    run = write_run(tmp_path / "a" / name.replace("/", ""), rows)
    (run / "config.toml").write_text(f"# {name}")
    out = tmp_path / "page.html"

    write_report(run, out)
    alone = checked(out.read_text())
    write_comparison([run, write_run(tmp_path / "plain", rows)], out)
    together = checked(out.read_text())

    for parsed in (alone, together):
        assert parsed.seen.count("script") == 3
        assert {"b", "i"}.isdisjoint(parsed.seen)
        assert not any(given.startswith("on") for given in parsed.given)


def test_page_may_load_nothing(finished: Path) -> None:
    _, html = facts_and_page(finished)

    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy.startswith("default-src 'none'; img-src data: blob:;")


def test_config_of_a_run_stands_on_its_page(finished: Path) -> None:
    log = finished / "metrics.jsonl"
    start, *rows = log.read_text().splitlines(keepends=True)
    start = json.dumps(json.loads(start) | {"config": 'name = "<x>"\n'})
    log.write_text(f"{start}\n{''.join(rows)}")

    _, html = facts_and_page(finished)

    assert "<pre>name = &quot;&lt;x&gt;&quot;\n</pre>" in html


def test_evaluations_phases_and_spikes_are_marked(finished: Path) -> None:
    _, html = facts_and_page(finished)

    drawn = drawn_of(html)
    assert drawn["evaluations"] == [4, 8]
    assert [(step, labels[-2]) for step, labels in drawn["phases"]] == [
        (0, "phase 0"),
        (4, "phase 1"),
    ]


def test_the_command_writes_the_page_into_the_folder(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(finished)]) == 0

    shown = capsys.readouterr().out
    assert f"{finished}: complete, 8 of 8 steps" in shown
    assert f"wrote {finished / 'report.html'}" in shown
    checked((finished / "report.html").read_text())


def test_the_command_needs_no_jax_and_writes_where_it_is_told(
    finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    program = (
        "import sys\n"
        "from roxxel.cli import main\n"
        f"assert main(['report', {str(finished)!r}, '--out', {str(out)!r}]) == 0\n"
        "assert not {'jax', 'matplotlib'} & set(sys.modules)\n"
    )

    done = run_python("-W", "error", "-c", program)

    assert (done.returncode, done.stderr) == (0, "")
    checked(out.read_text())
    assert not (finished / "report.html").exists()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere", "there is no such folder; give the folder of a run"),
        ("file", "is a file; give the folder of a run"),
        (
            "empty",
            "holds no run (run.json, metrics.jsonl and checkpoints/ are missing)",
        ),
    ],
)
def test_what_is_no_run_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, sentence: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()

    assert main(["report", str(tmp_path / name)]) == 1

    error = capsys.readouterr().err
    assert error.startswith(f"roxxel: {tmp_path / name}: {sentence}")
    assert error.count("\n") == 1


@pytest.mark.parametrize("number", [1, 2])
def test_page_is_not_written_into_a_file_of_another_type(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    out = tmp_path / "x.png"
    other = write_run(tmp_path / "other", [train_row(1)])
    runs = [str(finished), str(other)][:number]

    assert main(["report", *runs, "--out", str(out)]) == 1

    assert capsys.readouterr().err == (
        f"roxxel: {out}: the report is an HTML page; give --out a name that ends in "
        ".html\n"
    )
    assert not out.exists()


NUM_ROWS = 5000


@settings(max_examples=20)
@given(
    st.dictionaries(
        st.integers(0, NUM_ROWS - 1), st.none() | st.floats(-1e9, 1e9), max_size=300
    )
)
def test_a_long_line_keeps_its_ends_extremes_and_a_gap(
    tmp_path_factory: pytest.TempPathFactory, changed: dict[int, float | None]
) -> None:
    values = [changed.get(step, 1.0) for step in range(NUM_ROWS)]
    rows: list[dict[str, Any]] = [
        {"kind": "train", "step": step, "x": "nan" if value is None else value}
        for step, value in enumerate(values)
    ]
    run = write_run(tmp_path_factory.mktemp("a") / "run", rows)

    thin = read_facts(run).train["x"]

    assert len(thin.steps) <= 2000
    assert thin.values == [values[step] for step in thin.steps]
    assert thin.steps == sorted(set(thin.steps))
    assert {thin.steps[0], thin.steps[-1]} == {0, NUM_ROWS - 1}
    assert (None in thin.values) == (None in values)
    if None not in values:
        finite = [value for value in values if value is not None]
        assert min(thin.finite) == min(finite)
        assert max(thin.finite) == max(finite)


def test_areas_of_a_long_run_have_the_same_steps_whatever_the_counts(
    tmp_path: Path,
) -> None:
    """Counts that fall are damage, which must not keep the page from being made."""
    rows = [
        train_row(step, tokens_by_source={"self": step % 7, "code": step % 5})
        for step in range(NUM_ROWS)
    ]

    facts, _ = facts_and_page(write_run(tmp_path / "run", rows))

    first, second = facts.tokens_by_source.values()
    assert first.steps == second.steps
    assert len(first.steps) <= 2000


def test_a_long_clock_is_short_and_knows_where_a_phase_begins(tmp_path: Path) -> None:
    rows = [
        train_row(
            step,
            phase=int(step > 3333),
            tokens=16 * step if step <= 3333 else 16 * 3333 + 64 * (step - 3333),
        )
        for step in range(1, NUM_ROWS)
    ]

    clock = read_facts(write_run(tmp_path / "run", rows)).clock

    assert len(clock.steps) <= 2000
    for row in rows:
        tokens = np.interp(row["step"], clock.steps, clock.tokens)
        assert tokens == pytest.approx(row["tokens"])
    assert clock.seconds[-1] == 0.5 * (NUM_ROWS - 1)


def test_axes_that_the_rows_do_not_measure_cannot_be_chosen(tmp_path: Path) -> None:
    rows = [train_row(step, tokens=None, step_s=None) for step in (1, 2)]

    _, html = facts_and_page(write_run(tmp_path / "run", rows))

    assert 'value="tokens" disabled>' in html
    assert 'value="time" disabled>' in html


numbers = st.floats(-1e12, 1e12) | st.floats(1e-9, 1e-3)


@example([1.0, 5e-324], "my_loss")
@given(
    st.lists(numbers, min_size=2, max_size=9, unique=True),
    st.sampled_from(["x", "my_loss"]),
)
def test_only_values_in_reach_have_a_logarithmic_axis(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], field: str
) -> None:
    rows = [train_row(step, **{field: value}) for step, value in enumerate(values, 1)]
    run = write_run(tmp_path_factory.mktemp("a") / "run", rows)

    _, html = facts_and_page(run)
    chart = drawn_of(html)["charts"][f"train-{field}"]

    far = max(values) > 2.5 * min(values) > 0
    assert (chart["axis"] == "log") == (field == "my_loss" and far)


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [(999, "999"), (1500, "1.5 k"), (25_000_000, "25 M"), (10**13, "10 T")],
)
def test_a_number_of_tokens_is_short_and_exact(
    tmp_path: Path, tokens: int, shown: str
) -> None:
    _, html = facts_and_page(write_run(tmp_path / "run", [train_row(1, tokens=tokens)]))

    assert f"{shown} ({tokens:,})" in html


def test_a_phase_counts_what_it_has_read_and_not_what_the_one_before_has(
    tmp_path: Path,
) -> None:
    corpora = [Roxxel(tmp_path / f"{name}.rox") for name in ("web", "code")]
    for corpus in corpora:
        corpus.write([np.arange(400) % 50], vocab_size=50)
    model = nnx.Embed(50, 2, rngs=nnx.Rngs(0))
    Trainer(
        model,
        nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
        Curriculum(
            corpora[0],
            [Phase(7, 2, 8), Phase(7, 2, 8, {"code": 1})],
            {"code": corpora[1]},
        ),
        lambda model, batch: jnp.square(model(batch)).mean(),
        tmp_path / "run",
        log_every=5,
    ).run()

    first, second = read_facts(tmp_path / "run").phases

    assert first.tokens == {"self": 7 * 2 * 8, "code": 0}
    assert second.tokens == {"self": 0, "code": 7 * 2 * 8}
