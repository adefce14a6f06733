"""The web app in a real browser: mouse, keyboard, screen reader, dark, phone; and no errors."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser.chromium import PROGRAM, Chromium
from support.pretrain_runs import store
from support.web_app import runs, serving

import clozelab

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no chromium on this machine")

TEXT = "The king was in the house."
ROOMS = ("cloze", "surprisal", "masks", "runs")
# What a room shows once its answers have come.
READY = {
    "cloze": "document.querySelectorAll('.guess').length > 0",
    "surprisal": "document.querySelectorAll('.verdict').length === 2",
    "masks": "document.querySelectorAll('.epoch').length === 6",
    "runs": "document.querySelector('main').textContent.includes('bert')",
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    folders = [runs() / "bert", runs() / "roberta", store("units")]
    with serving(folders, "--port", "0") as (url, _):
        yield url


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    opened = Chromium(tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


def enter(browser: Chromium, address: str, room: str, *, text: str | None = TEXT) -> Chromium:
    """A room as it is first seen."""
    browser.size(1100, 900)
    browser.emulate()
    browser.visit("about:blank")
    browser.visit(f"{address}#{room}")
    browser.wait("document.querySelector('h1') !== null")
    if text is not None:
        browser.ask("sessionStorage.clear(), localStorage.clear()")
        browser.ask(f"sessionStorage.setItem('clozelab text', {text!r})")
        browser.reload()
        browser.wait(f"document.querySelector('textarea')?.value === {text!r}")
    browser.wait(READY[room])
    return browser


@pytest.fixture
def cloze(browser: Chromium, address: str) -> Chromium:
    """The king's house: nothing hidden but its last word."""
    return enter(browser, address, "cloze")


def word(at: int) -> str:
    return f"document.querySelectorAll('.word')[{at}]"


def named(text: str) -> str:
    return f"[...document.querySelectorAll('button')].find((one) => one.textContent === {text!r})"


def hidden(browser: Chromium) -> list[str]:
    pressed = "[...document.querySelectorAll('.word[aria-pressed=\"true\"]')]"
    texts: list[str] = browser.ask(f"{pressed}.map((one) => one.textContent)")
    return texts


def headings(count: int) -> str:
    return f"document.querySelectorAll('.blank h3').length === {count}"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_logs_nothing_and_asks_its_own_server_alone(
    room: str, browser: Chromium, address: str
) -> None:
    enter(browser, address, room, text=None if room == "runs" else TEXT)
    assert browser.ask("document.querySelector('nav a[aria-current]').hash") == f"#{room}"
    assert browser.logged() == []
    addresses = [url for url in browser.requests() if not url.startswith(("data:", "about:"))]
    assert addresses and all(url.startswith(address) for url in addresses)


def test_the_rooms_are_links(cloze: Chromium) -> None:
    cloze.click("document.querySelector('nav a[href=\"#masks\"]')")
    cloze.wait("document.querySelector('h1')?.textContent === 'Masks'")
    assert cloze.ask("document.title") == "Masks – clozelab"
    assert cloze.ask("document.activeElement.id") == "room"
    assert cloze.ask("document.querySelector('textarea').value") == TEXT  # all rooms share it
    assert cloze.logged() == []


def test_a_click_hides_a_word_and_the_models_guesses_are_shown(cloze: Chromium) -> None:
    assert hidden(cloze) == ["."]
    cloze.click(word(6))
    cloze.click(word(2))
    assert hidden(cloze) == ["was"]
    cloze.wait("document.querySelector('.blank h3')?.textContent === 'was'")
    masked = TEXT.replace("was", "[MASK]")
    expected = clozelab.fill(runs() / "bert", masked, top=5, device="cpu", progress=False)
    guesses = cloze.ask(
        "[...document.querySelectorAll('button.guess b')].map((b) => b.textContent)"
    )
    best = [guess.token.replace("##", "·") for guess in expected.blanks[0]]
    assert guesses[:5] == best and len(guesses) == 5
    assert cloze.logged() == []


def test_a_guess_that_is_clicked_is_put_into_the_text(cloze: Chromium) -> None:
    cloze.click(word(6))
    cloze.click(word(2))
    cloze.wait("document.querySelector('.blank h3')?.textContent === 'was'")
    guess = "document.querySelectorAll('button.guess')[1]"
    text = cloze.ask(f"{guess}.querySelector('b').textContent").removeprefix("·")
    cloze.click(guess)
    cloze.wait("document.querySelector('.word.put') !== null")
    written = cloze.ask("document.querySelector('textarea').value")
    assert written.replace(" ", "") == TEXT.replace("was", text).replace(" ", "")
    assert hidden(cloze) == []
    assert text in cloze.ask("document.getElementById('said').textContent")
    cloze.wait("document.querySelector('.shown .note')?.textContent.startsWith('Hide a word')")


def test_dragging_hides_a_span(cloze: Chromium) -> None:
    cloze.drag_to(word(1), word(4))
    assert hidden(cloze) == ["king", "was", "in", "the", "."]
    cloze.wait(headings(5))
    cloze.drag_to(word(4), word(2))  # from a hidden word: shown again
    assert hidden(cloze) == ["king", "."]


def test_the_keyboard_will_do(cloze: Chromium) -> None:
    cloze.ask(f"{word(0)}.focus()")
    cloze.strike("ArrowRight")
    assert cloze.ask("document.activeElement.textContent") == "king"
    cloze.strike(" ")
    assert hidden(cloze) == ["king", "."]
    cloze.strike("ArrowRight", shift=True)
    cloze.strike("ArrowRight", shift=True)
    assert hidden(cloze) == ["king", "was", "in", "."]
    cloze.strike("Escape")
    assert hidden(cloze) == []
    cloze.strike("ArrowLeft")
    cloze.strike("Enter")
    assert hidden(cloze) == ["was"]
    cloze.wait("document.querySelector('.blank h3')?.textContent.startsWith('was')")
    cloze.ask("document.querySelector('button.guess').focus()")
    cloze.strike("Enter")
    cloze.wait("document.querySelector('.word.put') !== null")
    assert cloze.logged() == []


def test_what_is_hidden_stays_hidden_where_the_text_is_edited(cloze: Chromium) -> None:
    cloze.click(word(1))
    assert hidden(cloze) == ["king", "."]
    cloze.write("document.querySelector('textarea')", "The king was in the old, old house.")
    cloze.wait("document.querySelectorAll('.word').length === 10")
    assert hidden(cloze) == ["king", "."]
    cloze.write("document.querySelector('textarea')", "A [MASK] house.")
    cloze.wait("document.querySelectorAll('.word').length === 4")
    assert "[MASK]" in hidden(cloze)


def test_where_no_word_is_left_there_is_no_guess(cloze: Chromium) -> None:
    cloze.write("document.querySelector('textarea')", "")
    cloze.wait("document.querySelectorAll('.word').length === 0")
    cloze.wait("document.querySelector('.shown .note')?.textContent.startsWith('Hide a word')")
    assert cloze.ask("document.querySelectorAll('.guess').length") == 0


def test_a_slider_goes_through_the_steps(cloze: Chromium) -> None:
    step_text = "document.querySelector('.panel output').textContent"
    chance = "document.querySelector('.guess').textContent"
    assert cloze.ask(step_text) == "step 3 of 3"
    cloze.click(word(6))
    cloze.click(word(5))
    cloze.wait("document.querySelector('.blank h3')?.textContent.startsWith('house')")
    last = cloze.ask(chance)
    cloze.ask("document.querySelector('.panel input[type=range]').focus()")
    cloze.strike("ArrowLeft")
    assert cloze.ask(step_text) == "step 2 of 3"
    slider = "document.querySelector('.panel input[type=range]')"
    assert cloze.ask(f"{slider}.getAttribute('aria-valuetext')") == "step 2 of 3"
    cloze.strike("Home")
    cloze.wait(f"{chance} !== {last!r}")
    assert cloze.ask(step_text) == "step 1 of 3"
    cloze.click(named("All steps"))
    cloze.wait("document.querySelectorAll('.panel tbody tr').length === 3")
    rows = "[...document.querySelectorAll('.panel tbody tr')]"
    assert cloze.ask(f"{rows}.map((row) => row.cells[0].textContent)") == ["1", "2", "3"]


def test_models_stand_side_by_side(cloze: Chromium) -> None:
    cloze.click(named("Add a model"))
    cloze.wait("document.querySelectorAll('.panel .guesses').length === 2")
    selects = "[...document.querySelectorAll('.panel select')]"
    names = cloze.ask(f"{selects}.map((one) => one.value)")
    assert names == [str(runs() / "bert"), str(runs() / "roberta")]
    lefts = (
        "[...document.querySelectorAll('.panel')].map((one) => one.getBoundingClientRect().left)"
    )
    left, right = cloze.ask(lefts)
    assert left + 300 < right
    cloze.click(named("Remove"))
    assert cloze.ask(f"{selects}.map((one) => one.value)") == [str(runs() / "roberta")]


def test_surprisal_is_coloured_and_a_pair_is_judged(browser: Chromium, address: str) -> None:
    enter(browser, address, "surprisal")
    run = runs() / "bert"
    scores = clozelab.score(run, text=[TEXT], device="cpu", progress=False)
    facts = browser.ask("document.querySelector('.verdict').textContent")
    assert facts.startswith(f"{scores[0].log_likelihood:.2f} nats".replace("-", "−"))
    tokens = "document.querySelectorAll('.surprise')[0].querySelectorAll('.token')"
    assert browser.ask(f"{tokens}.length") == len(scores[0].tokens)
    levels = browser.ask(f"[...{tokens}].map((one) => one.className)")
    assert levels == [f"token l{token.level}" for token in scores[0].tokens]
    colours = browser.ask(f"[...{tokens}].map((one) => getComputedStyle(one).backgroundColor)")
    assert all(colour != "rgba(0, 0, 0, 0)" for colour in colours)  # an untrained model: all are
    browser.click("document.querySelectorAll('input[type=checkbox]')[1]")
    numbers = browser.ask("[...document.querySelectorAll('.surprise')[0].querySelectorAll('.nats')]"
                          ".map((one) => one.textContent)")  # fmt: skip
    assert numbers == [f"{token.surprisal:.1f}" for token in scores[0].tokens]
    browser.click("document.querySelectorAll('input[type=checkbox]')[0]")
    assert browser.ask(f"{tokens}.length") == len(scores[0].words)

    pair = ["The house was old.", "The house were old."]
    for number, sentence in enumerate(pair):
        browser.write(f"document.querySelectorAll('input[type=text]')[{number}]", sentence)
    good, bad = clozelab.score(run, text=pair, device="cpu", progress=False)
    gap = good.log_likelihood - bad.log_likelihood
    better = f"The {'first' if gap > 0 else 'second'} is better, by {abs(gap):.2f} nats."
    browser.wait(f"document.querySelectorAll('.verdict')[1]?.textContent === {better!r}")
    browser.write("document.querySelector('textarea')", "word " * 500)
    browser.wait("document.querySelector('.problem').textContent !== ''")
    browser.click("document.querySelectorAll('input[type=checkbox]')[0]")
    assert browser.ask("document.querySelectorAll('.verdict').length") == 1  # that of the pair


def test_masks_of_two_recipes_stand_side_by_side(browser: Chromium, address: str) -> None:
    enter(browser, address, "masks")
    heads = "[...document.querySelectorAll('.epoch h3')].map((one) => one.textContent)"
    assert [head.split(":")[0] for head in browser.ask(heads)] == [
        *(f"epoch {n}, copy {n} of 10" for n in range(3)),
        *(f"epoch {n}" for n in range(3)),
    ]
    before = browser.ask("document.querySelectorAll('.hide').length")
    browser.write("document.querySelectorAll('.panel input')[0]", "masking.mask_rate=0.9")
    browser.wait(f"document.querySelectorAll('.hide').length > {before}")
    browser.write("document.querySelectorAll('.panel input')[0]", "masking.mask_rat=0.9")
    browser.wait("document.querySelector('.panel .problem').textContent.includes('mask_rate')")
    browser.ask("document.querySelector('.fields input[type=range]').focus()")
    browser.strike("End")
    browser.wait("document.querySelectorAll('.epoch').length === 8")
    assert browser.logged()[-1]["params"]["entry"]["text"].endswith("400 (Bad Request)")


def test_chinese_words_and_units_are_seen(browser: Chromium, address: str) -> None:
    enter(browser, address, "masks")
    browser.click(named("中文"))
    choose(browser, 0, store("units"))
    choose(browser, 1, "roberta_wwm")
    choose(browser, 2, "ernie")
    browser.wait("document.querySelectorAll('.masked .piece').length > 3")
    browser.wait("[...document.querySelectorAll('.note')].some((one) =>"
                 " one.textContent.startsWith('Known names: 北‿京'))")  # fmt: skip
    assert browser.logged() == []


def choose(browser: Chromium, at: int, value: str) -> None:
    select = f"document.querySelectorAll('select')[{at}]"
    browser.ask(f"({select}.value = {value!r}, {select}.dispatchEvent(new Event('change')))")


def test_text_is_never_read_as_html(browser: Chromium, address: str) -> None:
    text = "A <img src=x onerror=alert(1)> & <b>house</b>."
    for room in ("cloze", "surprisal", "masks"):
        enter(browser, address, room, text=text)
        assert browser.ask("document.querySelectorAll('main img, main b > *').length") == 0
        assert "<" in browser.ask("document.querySelector('main').textContent")
        assert browser.logged() == []


@pytest.mark.parametrize("room", ROOMS)
def test_everything_that_can_be_used_has_a_name(room: str, browser: Chromium, address: str) -> None:
    enter(browser, address, room, text=None if room == "runs" else TEXT)
    nodes = browser.do("Accessibility.getFullAXTree")["nodes"]
    used = ("button", "textbox", "slider", "combobox", "checkbox", "link", "spinbutton")
    usable = [node for node in nodes if not node["ignored"] and node["role"]["value"] in used]
    assert {"link", "button"} <= {node["role"]["value"] for node in usable}
    for node in usable:
        assert node.get("name", {}).get("value"), node
    roles = {node["role"]["value"] for node in nodes}
    assert {"main", "navigation", "heading", "banner"} <= roles


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_scrolls_sideways(room: str, browser: Chromium, address: str) -> None:
    enter(browser, address, room, text=None if room == "runs" else TEXT)
    for width in (320, 375, 1100):
        browser.size(width, 700)
        wide, window = browser.ask("[document.documentElement.scrollWidth, window.innerWidth]")
        assert wide <= window, width


def lightness(browser: Chromium) -> tuple[int, int]:
    style = "getComputedStyle(document.body)"
    colours = (browser.ask(f"{style}.{name}") for name in ("backgroundColor", "color"))
    paper, ink = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
    return paper, ink


def test_light_and_dark_follow_the_system_or_the_button(cloze: Chromium) -> None:
    paper, ink = lightness(cloze)
    assert paper > 700 and ink < 200
    cloze.emulate(scheme="dark")
    paper, ink = lightness(cloze)
    assert paper < 120 and ink > 600
    cloze.click("document.getElementById('theme')")  # light, whatever the system says
    assert lightness(cloze)[0] > 700
    cloze.emulate()
    cloze.click("document.getElementById('theme')")
    assert lightness(cloze)[0] < 120
    cloze.reload()
    cloze.wait(READY["cloze"])
    assert lightness(cloze)[0] < 120  # it is remembered
    cloze.ask("localStorage.clear()")


def test_a_run_that_is_removed_is_told_and_the_page_goes_on(
    browser: Chromium, tmp_path: Path
) -> None:
    shutil.copytree(runs() / "bert", tmp_path / "a")
    shutil.copytree(runs() / "bert", tmp_path / "b")
    with serving([tmp_path], "--port", "0") as (url, _):
        enter(browser, url, "cloze")
        shutil.rmtree(tmp_path / "a")
        browser.click(word(1))
        browser.wait("document.querySelector('.panel .problem').textContent.includes('removed')")
        choose(browser, 0, str(tmp_path / "b"))
        browser.wait(headings(2))


def test_a_model_of_one_step_has_no_table_of_steps(browser: Chromium, tmp_path: Path) -> None:
    shutil.copytree(runs() / "bert", tmp_path / "a")
    (tmp_path / "a" / "checkpoints" / "step-00000003").rename(tmp_path / "b")
    with serving([tmp_path], "--port", "0") as (url, _):
        enter(browser, url, "cloze")
        browser.click(named("All steps"))
        browser.wait("document.querySelectorAll('.panel tbody tr').length === 2")
        choose(browser, 0, str(tmp_path / "b"))
        browser.wait("document.querySelectorAll('.panel table').length === 0")
        assert browser.ask(f"{named('All steps')}.hidden")


@pytest.mark.slow
def test_from_afar_the_token_of_the_address_opens_the_page(browser: Chromium) -> None:
    with serving([runs()], "--port", "0", "--host", "0.0.0.0") as (url, _):
        local_url = re.sub(r"//[^:]+:", "//127.0.0.1:", url)
        browser.visit(local_url.partition("?")[0])
        assert "asks for its token" in browser.ask("document.body.textContent")
        browser.visit("about:blank")
        browser.visit(local_url)
        browser.wait(READY["cloze"])
        assert browser.ask("location.search") == ""
        assert browser.ask("document.cookie") == ""  # which no script reads
        assert browser.logged() == []


@pytest.mark.slow
def test_a_server_that_has_ended_is_a_sentence(browser: Chromium) -> None:
    with serving([runs()], "--port", "0") as (url, _):
        enter(browser, url, "cloze")
    browser.click(word(1))
    gone = "document.querySelector('.panel .problem').textContent.includes('does not answer')"
    browser.wait(gone)


@pytest.mark.slow
def test_checkpoints_that_come_and_go_are_followed(browser: Chromium, tmp_path: Path) -> None:
    shutil.copytree(runs() / "bert", tmp_path / "a")
    checkpoints = tmp_path / "a" / "checkpoints"
    with serving([tmp_path / "a"], "--port", "0") as (url, _):
        enter(browser, url, "cloze")
        (checkpoints / "step-00000003").rename(checkpoints / "step-00000007")
        shutil.rmtree(checkpoints / "step-00000001")
        browser.click(word(1))
        last_step = "document.querySelector('.panel output').textContent === 'step 7 of 7'"
        browser.wait(last_step)
        slider = "document.querySelector('.panel input[type=range]')"
        assert browser.ask(f"[{slider}.value, {slider}.max]") == ["1", "1"]
