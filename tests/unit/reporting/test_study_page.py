"""A study's page: verdicts from the cells, gaps where cells are missing, the same in Markdown."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from operator import mul
from pathlib import Path

import pytest
from support.study_folders import SCORES, TEXT, Scores, study

from clozelab.api import studies as looking
from clozelab.cli import main
from clozelab.errors import UserError
from clozelab.markdown import plain
from clozelab.reporting import palette
from clozelab.reporting.records import gather
from clozelab.reporting.study import page, write_page
from clozelab.reporting.study.claims import COLOURS
from clozelab.reporting.study.curves import mean_and_band
from clozelab.reporting.study.sections import command
from clozelab.runs.directory import Run
from clozelab.studies.records import packed_items, read
from clozelab.studies.scores import sampling_variance
from clozelab.studies.verdicts import judge, repeats

ACCURACY = "sst2.accuracy"
Rows = list[list[str]]


class Tables(HTMLParser):
    """The rows of each table, its head first."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[Rows] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        self.inside = tag in ("td", "th")

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.tables[-1][-1][-1] += data


def tables(folder: Path) -> list[Rows]:
    return Tables(page(read(folder)).html()).tables


def one_claim(*, better: str = "dynamic", on: str = f'"{ACCURACY}"', more: str = "") -> str:
    head = TEXT.split("[[claims]]")[0]
    claim = f'better = "{better}"\nthan = "static"\non = [{on}]\nsays = "Said."\n{more}'
    return f"{head}[[claims]]\n{claim}\n"


def scored(static: list[float], dynamic: list[float], measure: str = ACCURACY) -> Scores:
    sides = {"static": static, "dynamic": dynamic}
    return {name: [{measure: score} for score in values] for name, values in sides.items()}


def verdict(folder: Path, scores: Scores, *, text: str | None = None) -> str:
    seeds = max(map(len, scores.values()))
    record = read(study(folder, scores=scores, text=text or one_claim(), seeds=seeds))
    return judge(record)[0].verdict


def test_verdicts_follow_the_scores(tmp_path: Path) -> None:
    low, high = [80.0, 81.0, 80.5], [82.0, 83.1, 82.4]
    assert verdict(tmp_path / "a", scored(low, high)) == "confirmed"
    assert verdict(tmp_path / "b", scored(high, low)) == "refuted"
    assert verdict(tmp_path / "c", scored(low, [80.4, 80.6, 81.0])) == "undecided"
    allowed = one_claim(more="margin = 4.0")
    assert verdict(tmp_path / "d", scored(high, low), text=allowed) == "confirmed"


def test_of_a_loss_less_is_better(tmp_path: Path) -> None:
    loss, low, high = "held_out.masked_lm", [2.0, 2.1, 2.05], [3.0, 3.12, 3.03]
    text = one_claim(on=f'"{loss}"')
    assert verdict(tmp_path / "a", scored(high, low, loss), text=text) == "confirmed"
    assert verdict(tmp_path / "b", scored(low, high, loss), text=text) == "refuted"


def test_one_seed_is_never_enough(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", scores=scored([10.0], [90.0]), text=one_claim())
    record = read(folder)
    assert [judgement.verdict for judgement in judge(record)] == ["undecided"]
    study_page = page(record)
    assert "one seed cannot separate an effect from chance" in study_page.lead
    rows = {row[0]: row for row in tables(folder)[0]}
    assert rows["dynamic"][1:3] == ["1 of 3", "90.0"]  # and no interval


def test_a_difference_without_an_interval_is_of_the_seeds_that_both_have(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", scores=scored([80.0, 90.0, 91.0], [82.5]), text=one_claim())
    differences = {row[0]: row for row in tables(folder)[1]}
    assert differences["dynamic"][2] == "+2.50"


def test_runs_that_came_out_the_same_prove_nothing(tmp_path: Path) -> None:
    same, allowed = [80.0, 81.0, 80.5], one_claim(more="margin = 0.5")
    assert verdict(tmp_path / "s", scored(same, same), text=allowed) == "not tested"
    assert "every seed has the same result" in page(read(tmp_path / "s")).lead
    moved = [value + 0.1 for value in same]  # seeds that agree by chance prove nothing either
    assert verdict(tmp_path / "t", scored(same, moved), text=allowed) == "undecided"


def test_measures_are_judged_alone_and_by_their_mean(tmp_path: Path) -> None:
    record = read(study(tmp_path / "s"))
    judged = judge(record)[0]
    assert [finding.verdict for finding in judged.measures] == ["undecided", "undecided"]
    (mean,) = judged.decisive
    assert mean.advantage is not None and mean.advantage.value == pytest.approx((1.4 + 0.5) / 6)
    chances = [finding.advantage.p() for finding in judged.measures if finding.advantage]
    p_values = [finding.p for finding in judged.measures]
    assert p_values == pytest.approx([2 * min(chances), max(2 * min(chances), max(chances))])


def test_a_seed_without_one_of_the_measures_is_left_out_of_their_mean(tmp_path: Path) -> None:
    static: list[dict[str, float]] = [dict(row) for row in SCORES["static"] if row]
    del static[2]["mnli.accuracy"]
    folder = study(tmp_path / "s", scores={**SCORES, "static": static})
    assert tables(folder)[0][1][4].endswith(" (2 of 3)")
    record = read(folder)
    judged = judge(record)[0]
    both = (*judged.measures, *judged.decisive)
    assert [finding.advantage.seeds for finding in both if finding.advantage] == [3, 5, 5]


def test_points_and_nats_are_not_averaged(tmp_path: Path) -> None:
    record = read(study(tmp_path / "s"))
    judged = judge(record)[1]
    assert [finding.unit for finding in judged.decisive] == ["points", "nats"]
    assert judged.verdict == "confirmed"
    worse = [{**(row or {}), "held_out.masked_lm": 2.0 + 0.01 * n}
             for n, row in enumerate(SCORES["single"])]  # fmt: skip
    record = read(study(tmp_path / "t", scores={**SCORES, "single": worse}))
    judged = judge(record)[1]
    assert [finding.verdict for finding in judged.decisive] == ["confirmed", "refuted"]
    assert judged.verdict == "undecided"


def test_differences_too_small_to_count_are_equal(tmp_path: Path) -> None:
    ours, theirs = [80.0, 80.1, 80.2, 80.1], [80.1, 80.0, 80.1, 80.2]
    text, equal = one_claim(more="delta = 1.0"), one_claim(more='kind = "equal"\ndelta = 1.0')
    folder = study(tmp_path / "a", scores=scored(theirs, ours), text=text, seeds=4)
    (judged,) = judge(read(folder))
    assert judged.verdict == "equal" and judged.p_equal is not None and judged.p_equal < 0.05
    assert "= equal within 1.00 points" in page(read(folder)).markdown()
    assert verdict(tmp_path / "b", scored(theirs, ours), text=equal) == "confirmed"
    apart = [value + 3 for value in ours]
    assert verdict(tmp_path / "c", scored(theirs, apart), text=equal) == "refuted"
    assert verdict(tmp_path / "d", scored(theirs, apart), text=text) == "confirmed"
    wide = [70.0, 90.0, 75.0, 85.0]
    assert verdict(tmp_path / "e", scored(theirs, wide), text=equal) == "undecided"


def test_a_level_such_as_chance_is_compared_with(tmp_path: Path) -> None:
    near = one_claim(more='kind = "equal"\ndelta = 2.0\nlevel = 80.0').replace(
        'than = "static"', ""
    )
    assert verdict(tmp_path / "a", scored([1.0], [80.1, 80.0, 79.8]), text=near) == "confirmed"
    assert verdict(tmp_path / "b", scored([1.0], [90.1, 90.0, 89.8]), text=near) == "refuted"
    assert "dynamic against 80" in page(read(tmp_path / "b")).markdown()


def test_a_share_of_the_other_is_compared_with(tmp_path: Path) -> None:
    scores = scored([80.0, 80.2, 79.9], [78.4, 78.3, 78.6])
    assert verdict(tmp_path / "a", scores) == "refuted"
    ratio_claim = one_claim(more="ratio = 0.97")
    assert verdict(tmp_path / "b", scores, text=ratio_claim) == "confirmed"
    assert "above 0.97 × static by" in page(read(tmp_path / "b")).lead


def test_items_are_compared_with_their_share_of_the_other_s(tmp_path: Path) -> None:
    """Every item of one side is half of the other's: seeds alone differ."""
    ours, text = [32.0, 32.25, 32.5], one_claim(more="ratio = 0.5")
    record = read(study(tmp_path / "s", scores=scored([64.0] * 3, ours), text=text))
    rows = {("static", seed): [2.0 * n for n in range(65)] for seed in range(3)}
    rows |= {("dynamic", seed): [n + seed / 4 for n in range(65)] for seed in range(3)}
    items = {cell: {"items": {ACCURACY: packed_items(row)}} for cell, row in rows.items()}
    advantage = judge(replace(record, measured=items))[0].decisive[0].advantage
    assert advantage is not None and advantage.value == pytest.approx(0.25)
    assert advantage.error == pytest.approx(0.25 / math.sqrt(3))


def test_without_recorded_items_two_models_are_taken_to_half_agree(tmp_path: Path) -> None:
    record = read(study(tmp_path / "s", scores=scored([60.0] * 3, [64.0] * 3), text=one_claim()))
    record = replace(record, plan={**record.plan, "items": {"sst2": 98}})
    advantage = judge(record)[0].decisive[0].advantage
    variances = [sampling_variance(ACCURACY, score, {"sst2": 98}) for score in (60.0, 64.0)]
    assert advantage is not None and advantage.error**2 == pytest.approx(sum(variances) / 2)
    # Of half of the other's score the error is half, too.
    halved = study(
        tmp_path / "h", scores=scored([60.0] * 3, [64.0] * 3), text=one_claim(more="ratio = 0.5")
    )
    record = replace(read(halved), plan={**record.plan, "items": {"sst2": 98}})
    advantage = judge(record)[0].decisive[0].advantage
    both = variances[1] + variances[0] / 4
    assert advantage is not None and advantage.error**2 == pytest.approx(both / 2)


def test_runs_on_the_plateau_are_not_compared(tmp_path: Path) -> None:
    low, high = [80.0, 81.0, 80.5], [82.0, 83.1, 82.4]
    folder = study(tmp_path / "s", scores=scored(low, high), text=one_claim())
    assert judge(read(folder))[0].verdict == "confirmed"  # both end at a loss of about 3
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    for level, expected in ((3.6, "confirmed"), (3.3, "not tested")):
        plan["plateau"] = {"static": level, "dynamic": 9.0}
        (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        assert judge(read(folder))[0].verdict == expected
    assert "3 of 3 runs of static ended on the unigram plateau" in page(read(folder)).lead


def test_one_run_of_five_on_the_plateau_is_left_out_of_the_comparison(tmp_path: Path) -> None:
    scores = scored([80.0, 81.0, 80.5, 80.2, 10.0], [82.0, 83.1, 82.4, 82.6, 82.3])
    stuck = {**(scores["static"][4] or {}), "held_out.masked_lm": 5.0}
    scores = {**scores, "static": [*scores["static"][:4], stuck]}
    folder = study(tmp_path / "s", scores=scores, text=one_claim(), seeds=5)
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    plan["plateau"] = {"static": 4.0, "dynamic": 4.0}
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    (judged,) = judge(read(folder))
    (finding,) = judged.decisive
    assert judged.verdict == "confirmed" and finding.advantage is not None
    assert finding.advantage.seeds == 9 and finding.advantage.value == pytest.approx(2.055)


def test_claims_are_corrected_for_one_another(tmp_path: Path) -> None:
    alone = scored([80.0, 80.6, 81.0, 80.2], [81.0, 81.6, 81.2, 81.7])
    assert verdict(tmp_path / "a", alone) == "confirmed"
    more = one_claim() + "".join(
        f'[[claims]]\nbetter = "{a}"\nthan = "{b}"\non = ["held_out.masked_lm"]\nsays = "{n}."\n'
        for n, (a, b) in enumerate([("static", "dynamic"), ("dynamic", "static")] * 3)
    )
    losses = {"static": [3.0, 3.1, 3.05, 2.9], "dynamic": [3.02, 2.96, 3.1, 2.99]}
    both = {
        name: [
            {**row, "held_out.masked_lm": loss}
            for row, loss in zip(rows, losses[name], strict=True)
        ]
        for name, rows in alone.items()
    }
    judged = judge(read(study(tmp_path / "b", scores=both, text=more, seeds=4)))
    assert judged[0].p is not None and judged[0].p > 0.05
    assert {judgement.verdict for judgement in judged} == {"undecided"}
    late = more.replace('says = "Said."', 'says = "Said."\nexploratory = true')
    (first, *_) = judge(read(study(tmp_path / "c", scores=both, text=late, seeds=4)))
    assert first.verdict == "confirmed"  # a family of its own
    assert "stated after results were seen" in page(read(tmp_path / "c")).markdown()


def test_every_printed_verdict_agrees_with_its_own_p(tmp_path: Path) -> None:
    for number, scores in enumerate([SCORES, {**SCORES, "single": SCORES["dynamic"]}]):
        for table in tables(study(tmp_path / str(number), scores=scores)):
            head = table[0]
            if "p" not in head or "verdict" not in head:
                continue
            for row in table[1:]:
                p, verdict_text = row[head.index("p")], row[head.index("verdict")]
                decided = verdict_text.split()[1] in ("confirmed", "refuted")
                assert decided == (p != "–" and (p.startswith("<") or float(p) <= 0.05)), row


def test_the_same_variant_twice_stands_beside_the_claims(tmp_path: Path) -> None:
    twice = one_claim().replace(
        "[[claims]]",
        '[[variants]]\nname = "static-again"\nsays = "A/A"\nagain = "static"\n[[claims]]',
    )
    scores = {
        **scored([80.0, 81.0], [82.0, 83.1]),
        "static-again": [{ACCURACY: 80.4}, {ACCURACY: 80.7}],
    }
    record = read(study(tmp_path / "s", scores=scores, text=twice, seeds=2))
    text = page(record).markdown()
    assert (
        "The same variant twice (A/A)" in text
        and "| static-again − static | sst2 accuracy |" in text
    )
    assert record.study.variants[-1].again == "static"


def test_the_runs_of_an_aa_pair_are_never_paired_by_seed(tmp_path: Path) -> None:
    twice = one_claim().replace(
        "[[claims]]",
        '[[variants]]\nname = "static-again"\nsays = "A/A"\nagain = "static"\n[[claims]]',
    )
    seeds = [80.0 + seed for seed in range(12)]  # every variant goes up with the seed
    scores = {
        **scored(seeds, [value + 1.0 + 0.1 * n for n, value in enumerate(seeds)]),
        "single": [{ACCURACY: value} for value in seeds],
        "static-again": [{ACCURACY: value + 0.5 - 0.1 * n} for n, value in enumerate(seeds)],
    }
    record = read(study(tmp_path / "s", scores=scores, text=twice, seeds=12))
    (claim,), (pair, *_) = judge(record), repeats(record)
    assert claim.decisive[0].advantage is not None and claim.decisive[0].advantage.paired
    assert pair.decisive[0].advantage is not None and not pair.decisive[0].advantage.paired


def test_a_lower_deviation_is_better_not_above(tmp_path: Path) -> None:
    spread = f"spread.{ACCURACY}"
    text = one_claim().replace(f'on = ["{ACCURACY}"]', f'on = ["{spread}"]')
    text = text.replace("measures = [", f'tunings = 2\nmeasures = ["{spread}", ')
    scores = {
        name: [{spread: value} for value in values]
        for name, values in {"static": [5.0, 5.2, 4.9], "dynamic": [1.0, 1.1, 0.9]}.items()
    }
    record = read(study(tmp_path / "s", scores=scores, text=text))
    text = page(record).markdown()
    assert judge(record)[0].verdict == "confirmed"
    assert "dynamic is better than static by 4.03 points on deviation over tunings" in text
    assert "Lower is an advantage on deviation over tunings of sst2 accuracy." in text


def test_without_any_variance_nothing_is_decided(tmp_path: Path) -> None:
    text = one_claim().replace(f'on = ["{ACCURACY}"]', 'on = ["log.spikes"]')
    text = text.replace("measures = [", 'measures = ["log.spikes", ')
    scores = {
        name: [{"log.spikes": value}] * 3 for name, value in (("static", 1.0), ("dynamic", 0.0))
    }
    (judged,) = judge(read(study(tmp_path / "s", scores=scores, text=text)))
    assert judged.verdict == "undecided" and "shows no error" in judged.decisive[0].why


def test_p_values_are_corrected_for_the_claims_of_a_family(tmp_path: Path) -> None:
    late = TEXT.replace('says = "Made up, to be refuted."', 'says = "Late."\nexploratory = true')
    text = page(read(study(tmp_path / "s", text=late))).markdown()
    assert "corrected for 2 claims, and separately for 1 exploratory claim, by" in text
    folder = study(tmp_path / "t")
    assert "corrected for 3 claims by" in page(read(folder)).markdown()
    # A claim that was not tested has no p-value, and does not count.
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    (folder / "plan.json").write_text(json.dumps({**plan, "plateau": {"dynamic": 3.3}}))
    assert "corrected for 1 claim by" in page(read(folder)).markdown()
    everywhere = {"plateau": dict.fromkeys(("static", "dynamic", "single"), 3.3)}
    (folder / "plan.json").write_text(json.dumps({**plan, **everywhere}))
    assert "corrected for" not in page(read(folder)).markdown().split("### ")[1]


def test_the_page_answers_its_question_first(tmp_path: Path) -> None:
    study_page = page(read(study(tmp_path / "s")))
    assert study_page.lead.startswith(
        "Do fresh masks in every epoch help over ten fixed copies? Of 3"
    )
    assert study_page.lead.endswith("at this scale: 2 confirmed and 1 refuted.")
    assert "9 of 9 cells are done" in study_page.opening and "Table 1" in study_page.opening
    text = study_page.html()
    assert text.index("Of 3 claims") < text.index("<h2>")


def test_our_numbers_stand_beside_the_papers(tmp_path: Path) -> None:
    means, gaps = tables(study(tmp_path / "s"))[:2]
    head = ["variant", "seeds", "sst2 accuracy", "paper", "mnli accuracy", "paper"]
    assert means[0] == gaps[0] == [*head, "held-out masked-LM loss"]
    half = 4.302653 * math.sqrt(0.21 / 3)
    assert means[1][:4] == ["static", "3 of 3", f"88.0 ± {half:.1f}", "92.5"]
    assert means[3][3] == "–" and gaps[1][2] == "–"
    assert gaps[2][2].startswith("+0.47 ± ") and gaps[2][3] == "+0.4" and gaps[2][5] == "−0.3"
    assert gaps[2][6].startswith("−0.023 ± ")


def test_missing_cells_leave_gaps(tmp_path: Path) -> None:
    part = {**SCORES, "dynamic": [*SCORES["dynamic"][:2], None], "single": [None, None, None]}
    failed = {("single", 1): "diverged at step 12\nlower | the rate"}
    folder = study(tmp_path / "s", scores=part, failed=failed, begun=[("dynamic", 2)])
    study_page = page(read(folder))
    assert "5 of 9 cells are done, 1 failed" in study_page.opening and "so far" in study_page.lead
    means, gaps = tables(folder)[:2]
    assert [row[1] for row in means[1:]] == ["3 of 3", "2 of 3", "0 of 3"]
    assert {*means[3][2:]} == {*gaps[3][2:]} == {"–"}
    assert "1 of 1 runs of single diverged" in study_page.markdown()
    assert "| single | 1 | diverged at step 12 lower \\| the rate |" in study_page.markdown()
    assert study_page.html().count('class="faint') == 1


def test_what_the_first_variant_cannot_be_measured_by_has_no_difference(tmp_path: Path) -> None:
    first, *others = SCORES
    lacking = [
        {k: v for k, v in (row or {}).items() if k != "sst2.accuracy"} for row in SCORES[first]
    ]
    folder = study(tmp_path / "s", scores={**SCORES, first: lacking})
    means, gaps = tables(folder)[:2]
    assert "sst2 accuracy" in means[0] and "sst2 accuracy" not in gaps[0]
    assert len(means) == len(gaps) == 1 + len([first, *others])


def test_a_loss_under_the_base_s_masks_says_so(tmp_path: Path) -> None:
    folder, note = study(tmp_path / "s"), "is under the same masks"
    assert note not in page(read(folder)).markdown()
    for own in (False, True):
        measured_record = {"scores": {}, "base_masks": own}
        (folder / "cells/single/seed-1/measured.json").write_text(json.dumps(measured_record))
        assert (note in page(read(folder)).markdown()) == own


def test_a_study_that_has_just_begun_has_a_page(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", scores={})
    write_page(folder)
    text = (folder / "page.md").read_text(encoding="utf-8")
    assert "No cell is done yet." in text and "0 of 9 cells" in text
    assert "nan" not in text.lower() and (folder / "page.html").exists()


def test_a_score_that_is_no_number_was_not_measured(tmp_path: Path) -> None:
    runaway = {**SCORES["dynamic"][0], "held_out.masked_lm": math.nan}  # type: ignore[dict-item]
    folder = study(tmp_path / "s", scores={**SCORES, "dynamic": [runaway]})
    assert read(folder).scores("dynamic", "held_out.masked_lm") == {}


def test_markdown_says_the_same(tmp_path: Path) -> None:
    folder = study(tmp_path / "s")
    write_page(folder)
    text = (folder / "page.md").read_text(encoding="utf-8")
    html_tables = Tables((folder / "page.html").read_text(encoding="utf-8")).tables
    cells = [cell for table in html_tables for row in table for cell in row]
    assert "one copy <b>for ever</b>" in cells and "<b>" not in text
    assert all(plain(cell) in text for cell in cells)


def test_names_are_never_markup(tmp_path: Path) -> None:
    text = page(read(study(tmp_path / "s"))).html()
    assert "<b>for ever" not in text and "&lt;b&gt;for ever" in text


def test_costs_are_told_and_shared_runs_counted_once(tmp_path: Path) -> None:
    folder = study(tmp_path / "s")
    result = Run(folder).result()
    assert result is not None
    for cell in result["cells"]:
        cell["tuning_seconds"] = 30.0
        cell["pretrained_by"] = "static" if cell["variant"] == "dynamic" else cell["variant"]
    result["cells"][0]["tokens"] = 4_040_000
    Run(folder).write_result(result)
    text = page(read(folder)).markdown()
    assert "| dynamic | 3 | 4.4 | 40 | 4 | 2.4 | 1.52 | 0.5 |" in text
    minutes = (2 * (90 + 91 + 92) + 9 * 30) / 60
    assert f"In all {minutes:.1f} minutes; shared pretraining counts once." in text
    assert "equal tokens: they differ by at most 1.0 %" in text


def test_a_budget_of_steps_is_told_as_equal_steps(tmp_path: Path) -> None:
    folder = study(tmp_path / "s")
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    (folder / "plan.json").write_text(json.dumps({**plan, "equal": "steps"}), encoding="utf-8")
    text = page(read(folder)).markdown()
    assert "with equal steps." in text and "equal steps: they differ by at most 0.0 %" in text


def test_the_page_says_how_to_do_it_again(tmp_path: Path) -> None:
    folder = study(tmp_path / "s")
    arguments = shlex.split(command(read(folder)))
    assert arguments[:3] == ["clozelab", "study", str(folder / "study.toml")]
    assert "--data corpus:1 --size tiny --budget 30m --seeds 3" in " ".join(arguments)
    assert ["commit", "abc"] in tables(folder)[-1]


def test_the_page_says_what_all_variants_share(tmp_path: Path) -> None:
    folder = study(tmp_path / "s")
    assert "The base is the recipe bert without changes." in page(read(folder)).markdown()
    file = folder / "study.toml"
    text = file.read_text(encoding="utf-8")
    base = 'recipe = "bert"\nset = ["masking.mask_rate=0.3"]'
    base += '\nfinetune = ["epochs=2", "learning_rate=1e-4"]'
    file.write_text(text.replace('recipe = "bert"', base, 1), encoding="utf-8")
    markdown = page(read(folder)).markdown()
    assert "The base is the recipe bert with masking.mask_rate=0.3." in markdown
    assert "follows the usual protocol with epochs=2 and learning_rate=1e-4." in markdown


def test_a_band_reaches_as_far_as_every_curve() -> None:
    mean, band = mean_and_band([[(1, 4.0), (2, 3.0), (4, 2.0)], [(1, 6.0), (3, 4.0)]])
    assert mean == [(1, 5.0), (2, 4.0), (3, 3.25)]
    assert band == [(1, 4.0, 6.0), (2, 3.0, 5.0), (3, 2.5, 4.0)]
    assert mean_and_band([[(1, 4.0), (2, 3.0)]])[0] == [(1, 4.0), (2, 3.0)]


def test_curves_have_bands_of_several_seeds_only(tmp_path: Path) -> None:
    several = page(read(study(tmp_path / "s"))).html()
    first = {name: scores[:1] for name, scores in SCORES.items()}
    single_seed = page(read(study(tmp_path / "t", scores=first))).html()
    assert several.count("<polygon") == 3 and single_seed.count("<polygon") == 0
    assert several.count("<polyline") == single_seed.count("<polyline") == 3


def test_what_a_claim_allows_is_drawn_beside_zero(tmp_path: Path) -> None:
    allowed = one_claim(more="margin = 9.0")
    text = page(read(study(tmp_path / "s", text=allowed))).html()
    places = re.findall('class="mark" x1="([^"]*)"', text)
    assert len(places) == 2 and all(0 < float(position) < 640 for position in places)
    assert "the margin is −9.00" in text


def test_the_command_knows_a_study_when_it_sees_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    study(tmp_path / "s")
    assert main(["report", "s", "--out", "p.html"]) == 0
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "<h1>Static against dynamic masking</h1>" in text and "refresh" not in text
    assert main(["report", "s", "s", "--out", "q.html"]) == 2
    assert "name only this study" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(UserError, match="has no run"):
        gather([tmp_path])  # a study among other folders is not taken for a run


def test_a_page_is_followed_until_the_cells_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, place = tmp_path / "s", tmp_path / "p.html"
    study(folder, scores={**SCORES, "single": SCORES["single"][:2]})
    seen: list[str] = []

    def later(seconds: float) -> None:
        seen.append(place.read_text(encoding="utf-8"))
        if len(seen) == 2:
            result = Run(folder).result()
            assert result is not None
            result["cells"].append({"variant": "single", "seed": 2, "failed": "gave up"})
            Run(folder).write_result(result)

    monkeypatch.setattr(looking.time, "sleep", later)
    assert main(["report", str(folder), "--out", str(place), "--follow"]) == 0
    assert len(seen) == 2 and all('http-equiv="refresh" content="5"' in text for text in seen)
    last = place.read_text(encoding="utf-8")
    assert "refresh" not in last and "gave up" in last


def test_an_interrupt_leaves_a_page_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "p.html"
    study(tmp_path / "s", scores={})

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(looking.time, "sleep", interrupt)
    assert main(["report", str(tmp_path / "s"), "--out", str(place), "--follow"]) == 0
    assert "refresh" not in place.read_text(encoding="utf-8")


def colours(dark: bool) -> dict[str, tuple[float, ...]]:
    """The page's named colours as light of three kinds."""
    channels = {
        name: [int(code[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        for name, code in (palette.DARK if dark else palette.LIGHT).items()
    }
    return {
        name: tuple(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb)
        for name, rgb in channels.items()
    }


def luminance(light: tuple[float, ...]) -> float:
    return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_and_lines_stand_out_from_the_paper(dark: bool) -> None:
    levels = {name: luminance(colour) for name, colour in colours(dark).items()}

    def contrast(name: str) -> float:
        a, b = sorted((levels[name], levels["paper"]))
        return (b + 0.05) / (a + 0.05)

    assert contrast("ink") > 7 and contrast("soft") > 4.5
    assert all(contrast(f"s{number}") > 3 for number in range(8))


# What the eye makes of red, green and blue light without one kind of cone (Machado et al. 2009).
SIGHTS = {
    "full": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protan": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deutan": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
}


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_verdicts_and_lines_differ_for_every_sight(dark: bool, sight: str) -> None:
    theme = colours(dark)
    seen = {
        name: [max(0.0, sum(map(mul, row, light))) ** (1 / 2.2) for row in SIGHTS[sight]]
        for name, light in theme.items()
    }
    groups = [(0, 1, 2, 3), (4, 5, 6, 7), COLOURS.values()]  # the second are dashed
    assert all(
        math.dist(seen[f"s{a}"], seen[f"s{b}"]) > 0.18
        for group in groups
        for a, b in combinations(group, 2)
    )
