"""The figures of a page in a real browser: mouse, keyboard, labels, and without a script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser.chromium import PROGRAM, Chromium

from clozelab.config import recipe as recipes
from clozelab.reporting import palette
from clozelab.reporting.page import page
from clozelab.reporting.records import gather
from clozelab.runs.directory import Run

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no chromium on this machine")

STEPS, TOKENS, SECONDS = 100, 10_000, 3.0
EVIL = "</script><img src=x onerror=alert(1)>"
LOSS, RATE = 0, 2  # the figures: the loss of two runs, that of a third, the learning rate, …


def make_run(folder: Path, name: str, *, recipe: str, loss: float, data: str) -> Path:
    """A run whose training loss swings by one about a falling line."""
    changes = [f"schedule.steps={STEPS}", "schedule.warmup=10"]
    full_recipe = recipes.read(recipe, size="tiny", overrides=changes)
    place = folder / name
    machine = {"seed": 0, "data": [data]}
    run = Run.create(place, recipe_toml=recipes.to_toml(full_recipe), machine=machine)
    for step in range(1, STEPS + 1):
        now = {"loss": loss + 5 / step + (step % 2 - 0.5)}
        more = {"learning_rate": 1e-3 * step / STEPS, "norm": 1.0 + step % 3}
        more |= {"tokens": TOKENS, "seconds": SECONDS, "tokens_a_second": TOKENS / SECONDS}
        run.append({"kind": "step", "step": step, "masked_lm": now, **more})
        if step % 10 == 0:
            run.append({"kind": "held_out", "step": step, "masked_lm": {"loss": loss + 5 / step}})
    result = {"steps": STEPS, "tokens": STEPS * TOKENS, "seconds": STEPS * SECONDS}
    run.write_result(result)
    return place


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    opened = Chromium(tmp_path_factory.mktemp("chromium"))
    opened.do("Accessibility.enable")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    places = [
        make_run(folder, "low", recipe="roberta", loss=2.0, data="books:1"),
        make_run(folder, "high", recipe="roberta", loss=3.0, data="books:1"),
        make_run(folder, "other", recipe="roberta", loss=2.5, data="wiki:1"),
    ]
    file = folder / "page.html"
    runs, _ = gather(places)
    runs[1] = replace(runs[1], name=EVIL)
    file.write_text(page(runs, [], title="Runs").html(), encoding="utf-8")
    return file


@pytest.fixture
def page_shown(browser: Chromium, place: Path) -> Iterator[Chromium]:
    browser.size(1200, 800)
    browser.emulate()
    browser.open(place)
    browser.ask("sessionStorage.clear()")
    browser.open(place)
    yield browser
    assert browser.logged() == [] and {*browser.requests()} == {place.as_uri()}


def figure(number: int, inside: str = "") -> str:
    return f"document.querySelectorAll('figure')[{number}]" + (
        f".querySelector('{inside}')" if inside else ""
    )


def across(browser: Chromium, number: int = LOSS) -> list[str]:
    """The ticks of the horizontal axis and its label."""
    texts = browser.ask(
        f"[...{figure(number)}.querySelectorAll('.plot > svg > .tick')]"
        ".filter((one) => one.getAttribute('text-anchor') === 'middle').map((o) => o.textContent)"
    )
    return [str(text) for text in texts if text not in ("loss", "norm", "learning rate")]


def numbers(texts: list[str]) -> list[float]:
    sizes = {"k": 1e3, "M": 1e6}
    matches = [re.fullmatch(r"([\d.]+)([kM]?)", text) for text in texts]
    return [float(match[1]) * sizes.get(match[2], 1) for match in matches if match]


def tip(browser: Chromium, number: int = LOSS) -> str:
    return str(browser.ask(f"{figure(number, '.tip')}.innerText"))


def paths(browser: Chromium, kind: str, number: int = LOSS) -> Any:
    return browser.ask(
        f"[...{figure(number)}.querySelectorAll('path.{kind}')].map((o) => o.getAttribute('d'))"
    )


def choose(browser: Chromium, number: int, inside: str, value: str, event: str) -> None:
    one_figure = figure(number, inside)
    browser.ask(f"{one_figure}.value = '{value}', {one_figure}.dispatchEvent(new Event('{event}'))")


def test_the_mouse_shows_the_values_there(page_shown: Chromium) -> None:
    assert page_shown.ask(f"{figure(LOSS, '.tip')}.hidden") is True
    page_shown.hover(figure(LOSS, ".plot > svg"), 0.99)
    text = tip(page_shown)
    assert text.startswith("1M tokens") and "low\n2.05" in text and "3.05" in text
    assert EVIL in text and page_shown.ask("document.querySelector('figure img')") is None
    page_shown.hover(figure(LOSS, "figcaption"))
    assert page_shown.ask(f"{figure(LOSS, '.tip')}.hidden") is True


def test_dragging_zooms_and_there_is_a_way_back(page_shown: Chromium) -> None:
    all_of_it = across(page_shown)
    button = figure(LOSS, ".tools button")
    assert page_shown.ask(f"{button}.hidden") is True
    page_shown.drag(figure(LOSS, ".plot > svg"), 0.5, 0.75)
    part = numbers(across(page_shown))
    assert min(part) > 0.4e6 and max(part) < 0.8e6
    levels = page_shown.ask(
        f"[...{figure(LOSS)}.querySelectorAll('.tick[text-anchor=end]')].map((o) => +o.textContent)"
    )
    assert min(levels) > 1.9 and max(levels) < 3.4  # the curves fill the height again
    assert numbers(across(page_shown, 1))[-1] == 1e6  # another figure stays
    page_shown.click(button)
    assert across(page_shown) == all_of_it and page_shown.ask(f"{button}.hidden") is True


def test_the_keyboard_reads_and_zooms(page_shown: Chromium) -> None:
    page_shown.ask(f"{figure(LOSS, '.plot > svg')}.focus()")
    output_text = f"{figure(LOSS, 'output')}.textContent"
    for key, moment, value in (("Home", "100k", 2.5), ("ArrowRight", "200k", 2.25),
                               ("End", "1M", 2.05)):  # fmt: skip
        page_shown.press(key)
        text = str(page_shown.ask(output_text))
        assert text.startswith(f"{moment} tokens: ") and f"low {value}" in text.split(": ", 1)[
            1
        ].split(", ")
    live = page_shown.ask(
        f"{figure(LOSS, 'output')}.matches('[aria-live=polite]:not([aria-hidden])')"
    )
    assert live  # so that a screen reader says it
    page_shown.press("ArrowLeft")
    page_shown.press("+")
    part = numbers(across(page_shown))
    assert min(part) > 0.5e6 and part[-1] <= 1e6
    page_shown.press("Escape")
    assert numbers(across(page_shown))[0] == 0


def test_screen_readers_are_told_of_everything(page_shown: Chromium) -> None:
    named = page_shown.named()
    figures = [name for role, name in named if role == "application"]
    assert len(figures) == 5
    assert figures[LOSS].startswith("masked lm: loss on held-out text, in nats, ")
    assert "low from 2.5 to 2.05" in figures[LOSS] and "Arrow keys read values" in figures[LOSS]
    roles = [role for role, _ in named]
    assert roles.count("combobox") == 5 and roles.count("slider") == 4
    controls = ("button", "combobox", "slider")
    assert all(name for role, name in named if role in controls)


def test_axes_are_tokens_steps_or_time_and_figures_agree(page_shown: Chromium) -> None:
    assert across(page_shown)[-1] == "tokens seen"
    choose(page_shown, LOSS, "select", "seconds", "change")
    assert [across(page_shown, at)[-1] for at in (LOSS, RATE)] == ["training time, minutes"] * 2
    assert numbers(across(page_shown, RATE))[-1] == STEPS * SECONDS / 60
    choose(page_shown, RATE, "select", "steps", "change")
    assert across(page_shown)[-1] == "steps" and numbers(across(page_shown))[-1] == STEPS
    page_shown.reload()  # as a page does that is followed
    page_shown.wait("document.querySelector('figure select')?.value === 'steps'")


def test_log_axes(page_shown: Chromium) -> None:
    for side, button in enumerate((2, 3)):
        button_script = f"{figure(LOSS)}.querySelectorAll('.tools button')[{button - 1}]"
        before = paths(page_shown, "line")
        assert page_shown.ask(f"{button_script}.getAttribute('aria-pressed')") == "false"
        page_shown.click(button_script)
        assert page_shown.ask(f"{button_script}.getAttribute('aria-pressed')") == "true"
        assert paths(page_shown, "line") != before and "NaN" not in "".join(
            paths(page_shown, "line")
        )
        if side == 0:
            assert numbers(across(page_shown))[0] >= TOKENS


def test_smoothing_is_the_readers_choice(page_shown: Chromium) -> None:
    def swing() -> float:
        """How far the training loss goes up and down from point to point, in pixels."""
        heights = [
            float(y) for y in re.findall(r"[\d.]+ (-?[\d.]+)", paths(page_shown, "faint")[0])
        ]
        steps = [abs(b - a) for a, b in zip(heights, heights[1:], strict=False)][20:]
        return sum(steps) / len(steps)

    smooth = swing()
    choose(page_shown, LOSS, "input", "0", "input")
    assert swing() > 5 * smooth
    assert page_shown.ask(f"{figure(1, 'input')}.value") == "0"


def test_a_name_of_the_legend_hides_its_line(page_shown: Chromium) -> None:
    first = f"{figure(LOSS)}.querySelectorAll('.legend button')[0]"
    assert len(paths(page_shown, "line")) == 2
    page_shown.click(first)
    assert len(paths(page_shown, "line")) == 1
    assert page_shown.ask(f"{first}.getAttribute('aria-pressed')") == "false"
    page_shown.ask(f"{first}.focus()")
    page_shown.press("Enter")
    page_shown.ask(f"{first}.click()")
    assert len(paths(page_shown, "line")) == 2


def test_runs_with_different_texts_or_tokenizers_share_no_loss_axis(page_shown: Chromium) -> None:
    names = [
        page_shown.ask(
            f"[...{figure(at)}.querySelectorAll('.legend button')].map((o) => o.innerText)"
        )
        for at in (LOSS, 1, RATE)
    ]
    assert [len(line_names) for line_names in names] == [2, 1, 3] and names[1] == ["other"]
    notes = [page_shown.ask(f"{figure(at, '.note')}.innerText") for at in (LOSS, 1)]
    texts = ["text books", "text wiki"]  # the runs do not record their tokenizer
    assert notes == [f"vocabulary of 50,265, {text}; faint: in training" for text in texts]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_reader(scheme: str, page_shown: Chromium) -> None:
    page_shown.emulate(scheme=scheme)
    colours = palette.DARK if scheme == "dark" else palette.LIGHT
    stroke = page_shown.ask(f"getComputedStyle({figure(LOSS, 'path.line')}).stroke")
    red, green, blue = (int(colours["s0"][at : at + 2], 16) for at in (1, 3, 5))
    assert stroke == f"rgb({red}, {green}, {blue})"


def test_a_telephone_shows_all_of_it(page_shown: Chromium, place: Path) -> None:
    page_shown.size(360, 740)
    page_shown.open(place)
    assert page_shown.ask("document.documentElement.scrollWidth <= window.innerWidth")
    widths = page_shown.ask(
        "[...document.querySelectorAll('.plot > svg')].map((o) => o.clientWidth)"
    )
    assert all(300 <= width <= 360 for width in widths)
    for share in (0.2, 0.6, 0.99):
        page_shown.hover(figure(LOSS, ".plot > svg"), share)
        box = page_shown.ask(f"(({{left, right}}) => [left, right])({figure(LOSS, '.tip')}"
                        ".getBoundingClientRect())")  # fmt: skip
        assert box[0] >= 0 and box[1] <= 360


def test_a_finger_reads_and_zooms(page_shown: Chromium, place: Path) -> None:
    page_shown.size(360, 740)
    page_shown.do("Emulation.setTouchEmulationEnabled", enabled=True)
    page_shown.open(place)
    canvas = figure(LOSS, ".plot > svg")
    page_shown.ask(f"{canvas}.scrollIntoView({{block: 'center'}})")
    left, right, middle = page_shown.ask(
        f"(({{left, right, top, bottom}}) => [left, right, (top + bottom) / 2])"
        f"({canvas}.getBoundingClientRect())"
    )

    def touch(*shares: float) -> None:
        places = [{"x": left + share * (right - left), "y": middle} for share in shares]
        page_shown.do("Input.dispatchTouchEvent", type="touchStart", touchPoints=places[:1])
        for way in places[1:]:
            page_shown.do("Input.dispatchTouchEvent", type="touchMove", touchPoints=[way])
        page_shown.do("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    touch(0.9)
    page_shown.wait(f"!{figure(LOSS, '.tip')}.hidden")  # and stays when the finger is gone
    assert "low" in tip(page_shown)
    touch(0.5, 0.55, 0.65, 0.8)
    page_shown.wait(f"!{figure(LOSS, '.tools button')}.hidden")
    assert min(numbers(across(page_shown))) > 0.3e6
    page_shown.do("Emulation.setTouchEmulationEnabled", enabled=False)


def test_nothing_of_a_figure_is_outside_of_it_and_wide_windows_are_used(
    page_shown: Chromium,
) -> None:
    page_shown.size(1600, 900)
    page_shown.wait(f"{figure(LOSS, '.plot > svg')}.clientWidth > 600")
    outside = page_shown.ask("""
        [...document.querySelectorAll('.plot > svg')].flatMap((svg) => {
          const all = svg.getBoundingClientRect();
          return [...svg.querySelectorAll('text, .dot')].filter((one) => {
            const box = one.getBoundingClientRect();
            return box.left < all.left - 2 || box.right > all.right + 2
              || box.top < all.top - 2 || box.bottom > all.bottom + 2;
          }).map((one) => one.outerHTML);
        })
    """)
    assert outside == []
    tops = page_shown.ask("[...document.querySelectorAll('figure')].map((o) => o.offsetTop)")
    assert tops[0] == tops[1]  # side by side


def test_without_a_script_the_figures_are_there(page_shown: Chromium, place: Path) -> None:
    page_shown.do("Emulation.setScriptExecutionDisabled", value=True)
    page_shown.open(place)
    page_shown.do("Emulation.setScriptExecutionDisabled", value=False)
    assert page_shown.ask("document.querySelectorAll('.plot').length") == 0
    assert page_shown.ask("document.querySelectorAll('figure > svg polyline').length") == 3 * 5
    assert page_shown.ask("document.querySelectorAll('figcaption h3').length") == 5
