"""Curves as data and as drawings: axes, what may share one, what is left out, and how large."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.study_folders import TEXT, study

from clozelab.config import recipe as recipes
from clozelab.reporting.charts import Chart, clock_data
from clozelab.reporting.figures import Line, smooth, thinned
from clozelab.reporting.page import page
from clozelab.reporting.records import FinetuneRecord, gather
from clozelab.reporting.run_curves import charts
from clozelab.reporting.static import script, text_of
from clozelab.reporting.study import page as study_page
from clozelab.runs.directory import Run
from clozelab.runs.record import Moment, RunRecord, read_run
from clozelab.studies.records import read as read_study

Make = Callable[..., RunRecord]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a run with so many lines in its log."""

    def make_record(
        name: str,
        recipe_name: str = "bert",
        *,
        steps: int = 40,
        every: int = 1,
        first: float = 0.5,
        overrides: tuple[str, ...] = (),
        **machine: Any,
    ) -> RunRecord:
        changes = [f"schedule.steps={steps}", "schedule.warmup=2", *overrides]
        recipe = recipes.read(recipe_name, size="tiny", overrides=changes)
        run = Run.create(tmp_path / name, recipe_toml=recipes.to_toml(recipe), machine=machine)
        for step in range(1, steps + 1, every):
            losses = {"masked_lm": {"loss": 9 - step / 10}, "next_sentence": {"loss": 0.7}}
            more = {"learning_rate": 1e-3, "norm": None if step == 3 else 2.0}
            spent = {"tokens": 100, "seconds": first if step == 1 else 0.5}
            run.append({"kind": "step", "step": step, **losses, **more, **spent})
        for step in (steps // 2, steps):
            losses = {"masked_lm": {"loss": 5.125}, "next_sentence": {"loss": 0.69}}
            run.append({"kind": "held_out", "step": step, **losses})
        seconds = first + 0.5 * (steps - 1)
        run.write_result({"steps": steps, "tokens": 100 * steps, "seconds": seconds})
        return read_run(run, name)

    return make_record


def test_a_clock_has_steps_tokens_and_seconds(make: Make) -> None:
    whole, thin = make("a", first=60.0), make("b", first=60.0, every=4)
    assert whole.clock[0] == Moment(1, 100, 60.0) and whole.clock[-1] == Moment(40, 4000, 79.5)
    assert thin.clock[-1].tokens == 4000 and thin.clock[-1].seconds == pytest.approx(79.5)
    # The first step compiles: a thinned log is stretched without it.
    assert thin.clock[0].seconds == 60.0 and thin.clock[1].seconds < 63
    assert thin.clock[5].seconds == pytest.approx(whole.clock[20].seconds, abs=2)


def test_learning_rate_norm_and_losses_are_read_whatever_their_names(
    make: Make, tmp_path: Path
) -> None:
    run = make("a")
    assert run.numbers["learning_rate"][-1] == (4000.0, 1e-3)
    assert len(run.numbers["norm"]) == 39  # of one step it was not finite
    log = tmp_path / "a" / "metrics.jsonl"
    log.write_text(log.read_text().replace('"learning_rate"', '"rate"'))  # as old records have it
    assert (
        read_run(Run(tmp_path / "a"), "a").numbers["learning_rate"] == run.numbers["learning_rate"]
    )


def test_runs_share_a_loss_axis_only_with_one_tokenizer_and_text(make: Make) -> None:
    def groups(*runs: RunRecord) -> list[list[str]]:
        loss_charts = [chart for chart in charts(runs) if chart.title.startswith("masked lm")]
        return [[line.name for line in chart.lines if not line.faint] for chart in loss_charts]

    first, same, other = (
        make(n, tokenizer_digest=d) for n, d in (("a", "x"), ("b", "x"), ("c", "y"))
    )
    assert " | 0.004 | " in page([first], [], title="x").markdown()  # 4,000 tokens, in millions
    assert groups(first, same, other) == [["a", "b"], ["c"]]
    old = [make("d", data=["books:1"]), make("e", data=["books:1"]), make("f", data=["wiki:1"])]
    assert groups(*old) == [["d", "e"], ["f"]]
    sizes = [make("g", data=["books:1"]),
             make("h", data=["books:1"], overrides=("tokenizer.vocabulary=999",))]  # fmt: skip
    assert groups(*sizes) == [["g"], ["h"]]
    notes = {chart.note for chart in charts(sizes) if chart.title.startswith("masked lm")}
    assert len(notes) == 2  # by which a reader tells them apart
    texts = [
        make(name, tokenizer_digest="x", data=data, fingerprint=prints)
        for name, data, prints in (
            ("i", ["in/med:1"], ["1"]),
            ("j", ["moved/med:1", "gen:0.1"], ["1", "2"]),  # held out is text of the first
            ("k", ["gen:1"], ["2"]),
        )
    ]
    assert groups(*texts) == [["i", "j"], ["k"]]
    notes = {chart.note for chart in charts(texts) if chart.title.startswith("masked lm")}
    assert [note.split(";")[0].rpartition(", ")[2] for note in sorted(notes, reverse=True)] == [
        *("text med", "text gen")
    ]
    assert "on different text, cannot be compared" in page(texts, [], title="x").markdown()
    rates = [chart for chart in charts([first, other]) if chart.title == "learning rate"]
    assert [len(chart.lines) for chart in rates] == [2]  # which all runs may share


@pytest.mark.parametrize("change", ["objectives.1.weight=0.0", "objectives.1.course=[[0.0, 0.0]]"])
def test_a_head_that_is_not_trained_is_left_out(change: str, make: Make) -> None:
    trained, not_trained = make("a", data=["x:1"]), make("b", data=["x:1"], overrides=(change,))
    assert not_trained.untrained == {"next_sentence"} and not trained.untrained
    (chart,) = [c for c in charts([trained, not_trained]) if c.title.startswith("next sentence")]
    assert {line.name for line in chart.lines} == {"a"}
    text = page([trained, not_trained], [], title="x").markdown()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("|")]
    at = rows[0].index("next sentence, held out |")
    assert [row[at] for row in rows[2:4]] == ["0.690 |", "– |"]
    alone = page([not_trained], [], title="x").html()
    assert "next sentence, held out" not in alone


@pytest.mark.parametrize(("soft", "untrained"), [(5.0, set()), (0.0, {"masked_lm"})])
def test_a_teachers_distribution_trains_the_head_of_masked_lm(
    soft: float, untrained: set[str], make: Make
) -> None:
    changes = ("objectives.0.weight=0.0", f"objectives.1.soft={soft}")
    assert make("a", "distilbert", overrides=changes).untrained == untrained


def test_a_study_may_train_a_head_in_no_variant(tmp_path: Path) -> None:
    text = TEXT.replace('recipe = "bert"', 'recipe = "bert"\nset = ["objectives.1.weight=0.0"]')
    folder = study(tmp_path / "s", text=text)
    for log in folder.rglob("metrics.jsonl"):
        log.write_text(
            log.read_text().replace(
                '"masked_lm": ', '"next_sentence": {"loss": 0.7}, "masked_lm": '
            )
        )
    html = study_page(read_study(folder)).html()
    assert "masked lm: loss on held-out text" in html and "next sentence: loss" not in html


def test_the_data_say_what_the_records_say(make: Make) -> None:
    run = make("a")
    loss = charts([run])[0]
    clocks: list[Any] = []
    held_out, training = loss.data(clocks)["lines"]
    assert held_out["x"] == [2000, 4000] and held_out["y"] == [5.125, 5.125]
    # A point for each moment of the clock, whose places need not be said again.
    assert "x" not in training and len(training["y"]) == len(clock_data(clocks[0])["tokens"]) == 40
    assert training["noisy"] and training["faint"] and clocks == [run.clock]
    assert training["y"][-1] == 5.0


def test_nothing_in_the_data_can_end_them(make: Make) -> None:
    record = make("a")
    evil = [Line("</script><b>", [(1.0, 2.0), (2.0, float("nan"))], 0, clock=record.clock)]
    chart = Chart("<!--", evil, "x", "y", base="tokens", marks={"</script>": 1.0})
    from clozelab.reporting.document import Page, Section

    text = Page("t", "o", [Section("s", [chart])]).html()
    (data,) = re.findall(r'id="charts">(.*?)</script>', text)
    read = json.loads(data)["charts"][0]
    assert read["title"] == "<!--" and read["lines"][0]["y"] == [2, None]
    assert "<b>" not in text.replace("<body>", "")


def test_many_points_are_thinned_alike() -> None:
    clock = [Moment(n, 100 * n, 0.1 * n) for n in range(1, 2001)]
    line = Line("a", [(100.0 * n, 1 / n) for n in range(1, 2001)], 0, clock=clock, noisy=True)
    chart_data = Chart("t", [line], "x", "y", base="tokens").data(clocks := [])
    some = clock_data(clocks[0])
    assert (
        "x" not in chart_data["lines"][0]
        and len(chart_data["lines"][0]["y"]) == len(some["steps"]) <= 241
    )
    assert some["steps"][-1] == 2000 and chart_data["lines"][0]["y"][-1] == 0.0005
    assert thinned([1, 2, 3], 2) == [1, 3] and thinned([], 2) == []
    drawn = Chart("t", [line], "x", "y").drawn
    assert len(drawn.split('points="')[1].split('"')[0].split()) <= 101


def test_smoothing_counts_the_first_values_no_more_than_others() -> None:
    points = [(float(n), 5.0) for n in range(10)]
    assert [y for _, y in smooth(points)] == pytest.approx([5.0] * 10)
    middle = smooth([(0.0, 0.0), (1.0, 1.0)])[1][1]
    assert middle == pytest.approx(0.1 / 0.19) and smooth([]) == []


def test_scores_have_the_line_of_a_constant_answer() -> None:
    spread = {"best": 90.0, "median": 85.0, "mean": 85.0, "runs": 1}
    cell = {"name": "", "settings": {}, "selected": spread, "scores": {"accuracy": spread}}
    cell |= {"seeds": {"0": {"accuracy": 85.0}}}
    order = {"data": {"task": "sst2", "train": None, "dev": None}, "model": "runs/a"}
    order |= {"fresh": False, "tuning": {"learning_rate": 1e-5}}
    record = FinetuneRecord("t", order, {}, [cell], {"": {0: 1.0}}, {"accuracy": 50.9})
    old = FinetuneRecord("t", order, {}, [cell], {"": {0: 1.0}})
    from clozelab.reporting.document import Page, Section
    from clozelab.reporting.page import scores

    text, before = (Page("t", "", [Section("s", [*scores([r])])]).html() for r in (record, old))
    assert text.count('<line class="chance"') == 1 and "dashed: a constant answer" in text
    assert '<td class="n" data-value="50.9">50.9</td>' in text
    assert 'class="chance"' not in before and "constant" not in before


def test_probes_have_it_too(make: Make, tmp_path: Path) -> None:
    run = make("a", probe_constants={"sst2 accuracy": 50.9})
    Run(run.folder).append({"kind": "probe", "step": 40, "sst2": {"accuracy": 70.0, "layer": 1.0}})
    (read,), _ = gather([run.folder])
    (chart,) = [
        probe_chart for probe_chart in charts([read]) if probe_chart.title.startswith("probe")
    ]
    assert chart.marks == {"a constant answer": 50.9} and "a constant answer" in chart.drawn
    assert chart.data([])["marks"] == [{"y": 50.9, "name": "a constant answer"}]


def test_the_scripts_of_a_page_are_small_and_whole() -> None:
    code = script("figures.js")
    assert len(code.encode()) < 16_500 < len(text_of("figures.js").encode())
    texts = re.findall(r'"[^"\n]*"|`[^`]*`', text_of("figures.js"))
    inlined = [text for text in texts if text in code]
    assert len(inlined) >= len(texts) - 6  # but for those in comments
    assert "//" not in code.replace("http://", "")
