"""The page of `roxxel report` in a real browser: no error, and the charts respond."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from roxxel.report import write_comparison, write_report
from roxxel.report._parts import Cloud, Drawn, Scatter, document

from .tools.browser import Page, find_browser, opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.long

NAME = "code <b>x</b>"
"""Name of a source; its characters must not become markup in a chart either."""

STEPS, PHASE_START = 400, 300


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    browser = find_browser()
    if browser is None:
        pytest.skip(
            "no Chromium is on the PATH; .ci/run installs one where it can, or set "
            "ROXXEL_BROWSER to the path of one"
        )
    with opened(browser, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "<i>run"
    folder.mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    tokens = 0
    for step in range(1, STEPS + 1):
        tokens += 16 if step <= PHASE_START else 64
        rows.append(
            {
                "kind": "train",
                "step": step,
                "phase": int(step > PHASE_START),
                "loss": 9.0 if step == 200 else 2 + 4 / step + step % 7 / 50,
                "loss_mean": 2 + 4 / step,
                "loss/web": 2 + 3 / step,
                f"loss/{NAME}": 2 + 5 / step,
                "tokens": tokens,
                "tokens_by_source": {"web": 3 * tokens // 4, NAME: tokens // 4},
                "step_s": 3.0,
                "tokens_per_s": 30.0 + step % 5,
                "grad_norm": 1.0 + step % 3,
                "learning_rate": 1e-5 * step,
            }
        )
        if not step % 100:
            rows.append({"kind": "eval", "step": step, "eval_loss": 3 - step / 400})
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(lines)
    return folder


@pytest.fixture(params=[390, 1280])
def opened_page(tab: Page, run: Path, request: pytest.FixtureRequest) -> Page:
    """Return the tab with the page of the run, in a narrow and a wide window."""
    write_report(run, run.parents[0] / "page.html")
    tab.errors.clear()
    tab.open(run.parents[0] / "page.html", request.param)
    tab.wait("document.querySelectorAll('.plot .legend').length >= 2")
    return tab


def test_label_of_a_phase_is_under_no_button_of_its_chart(opened_page: Page) -> None:
    covered = opened_page.run(
        "[...document.querySelectorAll('.plot')].flatMap(plot => {"
        "const bar = plot.querySelector('.modebar-group')?.getBoundingClientRect();"
        "return [...plot.querySelectorAll('.annotation-text')].filter(text => {"
        "const box = text.getBoundingClientRect();"
        "return bar && box.right > bar.left && box.top < bar.bottom;"
        "}).map(text => text.textContent); })"
    )

    assert opened_page.run("document.querySelectorAll('.annotation-text').length") > 1
    assert covered == []


def box_of(tab: Page, selector: str) -> tuple[float, float, float, float]:
    """Return left, top, width and height of an element in the window."""
    found = tab.run(
        f"(() => {{ const box = document.querySelector({json.dumps(selector)})"
        ".getBoundingClientRect();"
        "return [box.left, box.top, box.width, box.height]; })()"
    )
    left, top, width, height = found
    return left, top, width, height


def middle(tab: Page, selector: str) -> tuple[float, float]:
    left, top, width, height = box_of(tab, selector)
    return left + width / 2, top + height / 2


def drawn(tab: Page, expression: str) -> list[Any]:
    """Return a value of every drawn chart, by an expression about its `box`."""
    return tab.run(
        "[...document.querySelectorAll('.js-plotly-plot')]"
        f".filter((box) => box.data).map((box) => {expression})"
    )


LOSS = "#loss .nsewdrag"


def test_page_fits_its_window_without_an_error(opened_page: Page) -> None:
    tab = opened_page
    width = tab.run("innerWidth")

    columns = tab.run(
        "getComputedStyle(document.querySelector('.charts'))"
        ".gridTemplateColumns.split(' ').length"
    )

    assert columns == (1 if width < 600 else 2)
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.run("document.querySelectorAll('h1 i, figure b, figure i').length") == 0
    # Plotly cannot validate a legend; an attribute that has no effect here is none.
    faults = drawn(
        tab,
        "(Plotly.validate(box.data, (({legend, ...rest}) => rest)(box.layout)) ?? [])"
        ".filter(({code}) => code !== 'unused').map(({msg}) => msg)",
    )
    assert not any(faults)
    assert tab.errors == []


def test_pointer_shows_the_values_of_all_charts_in_view(opened_page: Page) -> None:
    tab = opened_page

    tab.mouse("mouseMoved", *middle(tab, LOSS))

    tab.wait("document.querySelectorAll('.hoverlayer .legend').length >= 2")
    shown = drawn(tab, "box.querySelector('.hoverlayer')?.textContent ?? ''")
    steps = {text.split("loss")[0].split("web")[0] for text in shown if "step" in text}
    assert len(steps) >= 1
    assert all(text.startswith("step ") for text in steps)
    tab.mouse("mouseMoved", 1, 1)
    tab.wait("document.querySelectorAll('.hoverlayer .legend').length == 0")
    assert tab.errors == []


def test_zoom_of_one_chart_is_the_zoom_of_all(opened_page: Page) -> None:
    tab = opened_page
    left, top, width, height = box_of(tab, LOSS)
    at = top + height / 2

    tab.drag((left + 0.25 * width, at), (left + 0.5 * width, at))

    tab.wait("!document.getElementById('whole').hidden")
    ranges = drawn(tab, "box.layout.xaxis.range.map(Math.round)")
    assert len(ranges) >= 2
    assert all(found == ranges[0] for found in ranges)
    assert ranges[0] == pytest.approx([STEPS / 4, STEPS / 2], abs=6)
    # The other charts show the values of this part.
    heights = drawn(tab, "box.closest('figure').id + ' ' + box.layout.yaxis.range")
    by_source = next(text for text in heights if text.startswith("loss-by-source"))
    low, high = (10 ** float(end) for end in by_source.split()[1].split(","))
    assert 2.0 < low < high < 2.1
    tab.click(*middle(tab, "#whole"))
    tab.wait("document.getElementById('whole').hidden")
    ranges = drawn(tab, "box.layout.xaxis.range.map(Math.round)")
    assert all(found == [0, STEPS] for found in ranges)
    assert tab.errors == []


def test_a_hidden_source_is_hidden_in_every_chart(opened_page: Page) -> None:
    tab = opened_page
    tab.run("document.getElementById('loss-by-source').scrollIntoView()")
    tab.wait("document.querySelectorAll('#loss-by-source .legendtoggle').length >= 2")

    tab.click(*middle(tab, "#loss-by-source .traces:nth-of-type(1) .legendtoggle"))

    seen = "box.data.filter((t) => t.meta === 'web').map((t) => t.visible)"
    tab.wait(
        "document.querySelector('#loss-by-source .plot').data"
        ".some((t) => t.meta === 'web' && t.visible === 'legendonly')"
    )
    tab.run("document.getElementById('tokens').scrollIntoView()")
    tab.wait("document.querySelector('#tokens .plot').data")
    visible = [each for chart in drawn(tab, seen) for each in chart]
    assert visible == ["legendonly"] * 3
    names = drawn(tab, "box.querySelector('.legend')?.textContent ?? ''")
    assert any(NAME in text for text in names)
    assert tab.errors == []


def test_axis_changes_from_steps_to_tokens_and_time(opened_page: Page) -> None:
    tab = opened_page
    last = "box.data[0].x.at(-1)"

    for axis, title, end in (
        ("tokens", "tokens", 16 * PHASE_START + 64 * (STEPS - PHASE_START)),
        ("time", "training time in minutes", 3 * STEPS / 60),
        ("step", "step", STEPS),
    ):
        tab.click(*middle(tab, f"#axes input[value={axis}]"))
        tab.wait(
            "document.querySelector('#loss .plot').layout.xaxis.title.text === "
            f"{json.dumps(title)}"
        )
        assert set(drawn(tab, last)) == {end}
        # Where the second phase begins, on this axis.
        [mark] = drawn(tab, "box.layout.shapes.map((shape) => shape.x0)")[0]
        assert mark == {"tokens": 16 * PHASE_START, "time": 15}.get(axis, PHASE_START)
    assert tab.errors == []


def test_charts_follow_the_theme(opened_page: Page) -> None:
    tab = opened_page
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    color = "document.querySelector('#loss .plot').data[0].line.color"
    light_color = tab.run(color)

    tab.call("Emulation.setEmulatedMedia", features=[dark])
    tab.wait(f"{color} !== {json.dumps(light_color)}")

    assert tab.run(color) == "#6ea8fe"
    tab.call("Emulation.setEmulatedMedia", features=[])
    assert tab.errors == []


def test_a_phone_shows_values_zooms_and_hides_by_taps(
    tab: Page, run: Path, tmp_path: Path
) -> None:
    write_report(run, tmp_path / "page.html")
    tab.errors.clear()
    tab.open(tmp_path / "page.html", 390, is_phone=True)
    tab.wait("document.querySelectorAll('.plot .legend').length >= 2")

    tab.tap(*middle(tab, LOSS))
    tab.wait("document.querySelectorAll('.hoverlayer .legend').length >= 2")
    tab.tap(*middle(tab, "#loss .modebar-btn"))
    tab.wait("!document.getElementById('whole').hidden")
    tab.tap(*middle(tab, "#loss .legendtoggle"))
    tab.wait("document.querySelector('#loss .plot').data[0].visible === 'legendonly'")

    ranges = drawn(tab, "box.layout.xaxis.range.map(Math.round)")
    assert all(found == ranges[0] != [0, STEPS] for found in ranges)
    assert tab.errors == []


@pytest.mark.parametrize("width", [390, 1280])
def test_runs_are_compared_over_their_own_tokens(
    tab: Page, run: Path, tmp_path: Path, width: int
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    text = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (other / "metrics.jsonl").write_text("".join(text[:100]))
    write_comparison([run, other], tmp_path / "page.html")
    tab.errors.clear()

    tab.open(tmp_path / "page.html", width)
    tab.wait("document.querySelector('#loss .plot .legend')")
    tab.click(*middle(tab, "#axes input[value=tokens]"))
    tab.wait("document.querySelector('#loss .plot').layout.xaxis.title.text=='tokens'")

    ends = tab.run(
        "document.querySelector('#loss .plot').data.map((trace) => trace.x.at(-1))"
    )
    assert ends == [16 * PHASE_START + 64 * (STEPS - PHASE_START), 16 * 100]
    assert tab.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_points_over_an_axis_of_their_own_are_drawn(
    tab: Page, tmp_path: Path, scheme: str
) -> None:
    clouds = [
        Cloud(name, [0.25, 0.5, 1.0], [2.5, 2.25, 2.0 + color], ["a", NAME, "c"], color)
        for color, name in enumerate(("web", NAME))
    ]
    page = Drawn(
        scatters=[
            Scatter("shares", "Loss", ("share", "target"), clouds, is_share=True),
            Scatter("laws", "Laws", ("loss", "said"), clouds, has_diagonal=True),
        ]
    )
    (tmp_path / "page.html").write_text(document("Sweep", [page.html], page))
    tab.errors.clear()
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    tab.call("Emulation.setEmulatedMedia", features=media)
    try:
        tab.open(tmp_path / "page.html", 1280)
        tab.wait("document.querySelectorAll('.scatterlayer .points path').length >= 12")
        legend = tab.run("document.querySelector('.legend').textContent")
        assert NAME in legend
        assert drawn(tab, "box.layout.shapes.length") == [0, 1]
        color = "box.layout.font.color"
        quiet = "getComputedStyle(document.documentElement).getPropertyValue('--quiet')"
        assert drawn(tab, color) == [tab.run(quiet).strip()] * 2
        assert tab.errors == []
    finally:
        tab.call("Emulation.setEmulatedMedia", features=[])
