"""What the web app answers: models, words, guesses, scores, masks; and to mistakes a sentence."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.corpora import digests
from support.pretrain_runs import store
from support.web_app import runs

import clozelab
from clozelab.errors import UserError
from clozelab.models import load as loading
from clozelab.runs.directory import PLAN
from clozelab.serving import models
from clozelab.serving.app import App, build
from clozelab.serving.fields import MOST_BYTES
from clozelab.serving.folders import Folders
from clozelab.serving.queues import MOST_WAITING, QueueFull, WorkQueue

TEXT = "The king was in the house of his mother."
OWN = "http://127.0.0.1:8765"


def client(*folders: Path | str, **options: Any) -> TestClient:
    app = App(Folders([str(folder) for folder in folders]), **options)
    wrapped = TestClient(build(app, host="127.0.0.1", token=None), base_url=OWN)
    wrapped.rooms = app  # type: ignore[attr-defined]
    return wrapped


@pytest.fixture(scope="module")
def app() -> TestClient:
    return client(runs(), store("units"))


def ask(app: TestClient, room: str, **fields: Any) -> Any:
    answer = app.post(f"/api/{room}", json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(app: TestClient, room: str, code: int = 400, **fields: Any) -> str:
    typed = {"Content-Type": "application/json"}
    answer = app.post(f"/api/{room}", content=json.dumps(fields), headers=typed)
    assert answer.status_code == code, answer.text
    sentence = answer.json()["error"]
    assert isinstance(sentence, str) and "bug in clozelab" not in sentence
    return sentence


def test_a_folder_of_runs_stands_for_all_of_them(app: TestClient) -> None:
    models = app.get("/api/models").json()
    assert [entry["name"] for entry in models] == [
        str(runs() / name) for name in ("bert", "roberta")
    ]
    assert all(entry["steps"] == [1, 2, 3] and entry["kind"] == "run" for entry in models)


def test_a_text_is_the_same_words_for_every_model(app: TestClient) -> None:
    text = " It's a [MASK], 我们住在这里 <mask>\n"
    answer = ask(app, "words", text=text)
    words = [word["text"] for word in answer["words"]]
    assert words == ["It", "'", "s", "a", "[MASK]", ",", "我们", "住", "在", "这里", "<mask>"]
    assert [word["text"] for word in answer["words"] if word["blank"]] == ["[MASK]", "<mask>"]
    whole = "".join(word["before"] + word["text"] for word in answer["words"]) + answer["after"]
    assert whole == text
    assert ask(app, "words", text=" ") == {"words": [], "after": " "}


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_guesses_are_those_of_fill(app: TestClient, name: str) -> None:
    run = runs() / name
    text = "The [MASK] was in the house."
    expected = clozelab.fill(run, text, top=3, device="cpu", progress=False).blanks[0]
    filled = ask(app, "fill", model=str(run), text=text, hidden=[1], top=3)
    (blank,) = filled["blanks"]
    assert filled["step"] == 3 and blank["word"] == 1 and blank["hidden"] is None
    chances = [guess["probability"] for guess in blank["guesses"]]
    assert chances == pytest.approx([guess.probability for guess in expected])
    texts = [guess["text"] for guess in blank["guesses"]]
    assert texts == [guess.token.removeprefix("##") for guess in expected]


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_word_is_hidden_whole_and_asked_about(app: TestClient, name: str) -> None:
    model = clozelab.load(runs() / name, progress=False)
    text = "The extraordinarily small house."
    pieces = model.reader().pieces([text])
    own = [n for n, (start, stop) in enumerate(pieces.spans.tolist()) if 4 <= start < 19]
    assert len(own) > 1
    filled = ask(app, "fill", model=str(runs() / name), text=text, hidden=[1], top=20)
    assert [blank["word"] for blank in filled["blanks"]] == [1] * len(own)
    stood = "".join(blank["hidden"]["text"] for blank in filled["blanks"])
    assert stood.lower() == "extraordinarily"
    masked = f"The {'[MASK]' * len(own)} small house."
    expected = clozelab.fill(model, masked, top=600, device="cpu", progress=False)
    for n, blank in zip(own, filled["blanks"], strict=True):
        number = int(pieces.columns["ids"][n])
        chances = {g.number: g.probability for g in expected.blanks[own.index(n)]}
        assert blank["hidden"]["probability"] == pytest.approx(chances[number])


def test_a_span_of_words_has_no_token_between_its_blanks(app: TestClient) -> None:
    run = runs() / "roberta"
    text = "It is a small old house."
    filled = ask(app, "fill", model=str(run), text=text, hidden=[4, 3], top=1)
    counts = [sum(blank["word"] == word for blank in filled["blanks"]) for word in (3, 4)]
    masked = f"It is a {'[MASK]' * sum(counts)} house."
    expected = clozelab.fill(run, masked, top=1, device="cpu", progress=False).blanks
    chances = [blank["guesses"][0]["probability"] for blank in filled["blanks"]]
    assert chances == pytest.approx([best.probability for (best,) in expected])


def test_steps_of_a_run_are_different_models(app: TestClient) -> None:
    request = {"model": str(runs() / "bert"), "text": TEXT, "hidden": [1], "top": 1}
    answers = [ask(app, "fill", step=step, **request) for step in (1, 2, 3, None)]
    assert [answer["step"] for answer in answers] == [1, 2, 3, 3]
    chances = [answer["blanks"][0]["hidden"]["probability"] for answer in answers]
    assert len({*chances}) == 3 and chances[2] == chances[3]


def test_scores_are_those_of_score(app: TestClient) -> None:
    run = runs() / "bert"
    expected = clozelab.score(run, text=[TEXT], device="cpu", progress=False)[0]
    answer = ask(app, "score", model=str(run), text=TEXT)
    (text,) = answer["texts"]
    assert text["log_likelihood"] == pytest.approx(expected.log_likelihood)
    for unit, pieces in (("tokens", expected.tokens), ("words", expected.words)):
        assert "".join(part["text"] for part in text[unit]) == TEXT
        surprisals = [part["surprisal"] for part in text[unit] if "surprisal" in part]
        assert surprisals == pytest.approx([piece.surprisal for piece in pieces])
        for part in text[unit]:
            if "level" in part:
                assert answer["levels"][part["level"]] <= part["surprisal"]
    pair = ask(app, "score", model=str(run), text=TEXT, other="The king were in the house.")
    assert len(pair["texts"]) == 2
    assert pair["texts"][0]["log_likelihood"] == pytest.approx(expected.log_likelihood)


def test_masks_are_those_of_mask(app: TestClient) -> None:
    expected = clozelab.mask("spanbert", TEXT, epoch=1, seed=3, progress=False)
    answer = ask(app, "masks", recipe="spanbert", text=TEXT, epochs=2, seed=3)
    hidden = expected.epochs[0].hidden
    tokens = answer["epochs"][1]["blocks"][0]
    at = [n for n, token in enumerate(tokens) if "decision" in token]
    assert at == hidden.positions.tolist() and answer["epochs"][1]["spans"] == len(hidden.spans)
    opens = [n for n, token in enumerate(tokens) if token.get("opens")]
    assert opens == hidden.spans[:, 0].tolist()
    more = ask(app, "masks", recipe="spanbert", text=TEXT, set=["masking.mask_rate=0.6"])
    assert (
        more["epochs"][0]["hidden"]
        > ask(app, "masks", recipe="spanbert", text=TEXT)["epochs"][0]["hidden"]
    )


def test_chinese_words_and_known_units_are_shown(app: TestClient) -> None:
    text, corpus = "北京是中国的首都，很多人住在这里。", store("units")
    answer = ask(app, "masks", recipe="roberta_wwm", text=text, corpus=corpus, epochs=1)
    tokens = answer["epochs"][0]["blocks"][0]
    inside = {token["text"] for token in tokens if token["gap"] == "·"}
    assert {"京", "国", "都"} <= inside and "是" not in inside
    units = ask(app, "masks", recipe="ernie", text=text, corpus=corpus)["units"]
    names = next(unit["texts"] for unit in units if unit["name"] == "names")
    assert "北‿京" in names
    alone = ask(app, "masks", recipe="ernie", text=text)["units"]
    assert all(unit["texts"] is None and "--corpus" in unit["remedy"] for unit in alone)


def test_recipes_are_those_with_names_and_those_of_the_runs(app: TestClient) -> None:
    answer = app.get("/api/recipes").json()
    names = [recipe["name"] for recipe in answer["recipes"]]
    assert "bert" in names and str(runs() / "bert") in names
    assert answer["corpora"] == [store("units")]
    assert ask(app, "masks", recipe=str(runs() / "bert"), text=TEXT)["name"] == "bert"


@pytest.mark.parametrize("room", ["words", "fill", "score", "masks"])
@pytest.mark.parametrize("text", [None, 3, ["a"], "x" * 5001, "half \ud800"])
def test_what_is_no_text_is_refused(app: TestClient, room: str, text: Any) -> None:
    more = {"model": str(runs() / "bert"), "hidden": [0], "recipe": "bert"}
    assert refused(app, room, text=text, **more)


@pytest.mark.parametrize(
    ("room", "fields", "says"),
    [
        ("fill", {"hidden": []}, "no word is masked"),
        ("fill", {"hidden": "1"}, "must be the numbers of words"),
        ("fill", {"hidden": [-1]}, "must be the numbers of words"),
        ("fill", {"hidden": [True]}, "must be the numbers of words"),
        ("fill", {"hidden": [99]}, "has 10 words"),
        ("fill", {"hidden": [1], "model": "../../etc"}, "not among the folders here"),
        ("fill", {"hidden": [1], "model": None}, "must be a name"),
        ("fill", {"hidden": [1], "step": 9}, "no checkpoint of step 9"),
        ("fill", {"hidden": [1], "step": "1"}, "must be a whole number"),
        ("fill", {"hidden": [1], "top": 10**9}, "from 0 to 20"),
        ("score", {"text": ""}, "has no token"),
        ("score", {"text": "x" * 1001}, "1,001 characters, but at most 1,000"),
        ("masks", {"recipe": "bret"}, "did you mean bert?"),
        ("masks", {"recipe": "/etc/passwd"}, "is unknown"),
        ("masks", {"recipe": "bert", "set": ["masking.mask_rat=1"]}, "mask_rate"),
        ("masks", {"recipe": "bert", "set": "x"}, "must be a list"),
        ("masks", {"recipe": "bert", "epochs": 1000}, "from 0 to 12"),
        ("masks", {"recipe": "bert", "epochs": 0}, "from 1 to 12"),
        ("masks", {"recipe": "bert", "corpus": "/etc"}, "not among the folders here"),
        ("masks", {"recipe": "bert", "text": " "}, "no token"),
    ],
)
def test_a_mistake_is_a_sentence(
    app: TestClient, room: str, fields: dict[str, Any], says: str
) -> None:
    whole = {"model": str(runs() / "bert"), "text": TEXT, **fields}
    assert says in refused(app, room, **whole)


def test_a_recipe_is_never_read_from_a_file(app: TestClient, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('extends = "bert"\n')
    assert clozelab.read(str(mine)).name
    assert "is unknown" in refused(app, "masks", recipe=str(mine), text=TEXT)


def test_too_long_a_text_for_the_model_is_a_sentence(app: TestClient) -> None:
    long, model = "," * 900, str(runs() / "bert")
    assert "the text has 900 tokens" in refused(app, "fill", model=model, text=long, hidden=[0])
    assert "the text: has 900 tokens" in refused(app, "score", model=model, text=long)


def test_requests_are_json_and_not_too_long(app: TestClient) -> None:
    long = app.post("/api/words", json={"text": "x" * 1_000_000})
    assert long.status_code == 413 and f"over {MOST_BYTES >> 10} KB" in long.json()["error"]
    typed = {"headers": {"Content-Type": "text/plain"}}
    assert app.post("/api/words", content='{"text": "a"}', **typed).status_code == 415
    for body in ("", "{", "[" * 50_000, '"text"', "[]", "nan", b"\xff"):
        answer = app.post("/api/words", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400 and answer.json()["error"], body


def test_a_model_is_opened_when_it_is_first_asked_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []

    def counted(place: str, load: Any = loading.load) -> Any:
        opened.append(place)
        return load(place)

    monkeypatch.setattr(loading, "load", counted)
    app = client(runs())
    app.get("/api/models")
    assert opened == []
    request = {"model": str(runs() / "bert"), "text": TEXT}
    for _ in range(3):
        ask(app, "fill", hidden=[1], **request)
        ask(app, "score", **request)
    assert opened == [str(runs() / "bert" / "checkpoints" / "step-00000003")]


def test_a_model_too_large_for_the_memory_is_a_sentence() -> None:
    app = client(runs(), memory=lambda: 1_000_000)
    sentence = refused(app, "fill", model=str(runs() / "bert"), text=TEXT, hidden=[1])
    assert "its weights are 0.0 GB" in sentence and "memory are free" in sentence


def test_the_size_of_a_model_counts_all_that_is_opened(tmp_path: Path) -> None:
    shutil.copytree(runs() / "bert", tmp_path / "tunings" / "seed-0")
    (tmp_path / "tunings" / PLAN).write_text("{}", encoding="utf-8")
    (tmp_path / "tunings" / "result.json").write_text('{"best": "seed-0"}', encoding="utf-8")
    clozelab.export(runs() / "bert", tmp_path / "hf", progress=False)
    shutil.copytree(tmp_path / "hf", tmp_path / "hf" / "generator")
    size = (tmp_path / "hf" / "model.safetensors").stat().st_size
    (newest,) = (tmp_path / "tunings").glob("seed-0/checkpoints/*3/model.safetensors")
    assert models._size(models._model_folder(tmp_path / "tunings")) == newest.stat().st_size > 0
    assert models._size(tmp_path / "hf") == 2 * size


def test_a_model_that_was_replaced_is_opened_anew(tmp_path: Path) -> None:
    def exported(step: int) -> None:
        shutil.rmtree(tmp_path / "hf", ignore_errors=True)
        checkpoint = runs() / "bert" / "checkpoints" / f"step-0000000{step}"
        clozelab.export(checkpoint, tmp_path / "hf", progress=False)

    exported(1)
    app = client(tmp_path)
    rooms: App = app.rooms  # type: ignore[attr-defined]
    request = {"model": str(tmp_path / "hf"), "text": TEXT, "hidden": [1]}
    first = ask(app, "fill", **request)
    (opened,) = rooms.models._open.values()
    assert ask(app, "fill", **request) == first and [*rooms.models._open.values()] == [opened]
    exported(3)
    second = ask(app, "fill", **request)
    assert second != first and second == ask(client(tmp_path), "fill", **request)


def test_where_memory_ends_the_model_unused_for_longest_is_closed() -> None:
    rooms: list[App] = []
    app = client(runs(), memory=lambda: 0 if len(rooms[0].models._open) > 1 else 1 << 40)
    rooms.append(app.rooms)  # type: ignore[attr-defined]
    for step in (1, 2, 1, 3):
        ask(app, "fill", model=str(runs() / "bert"), step=step, text=TEXT, hidden=[1])
    left = [place.name for place in rooms[0].models._open]
    assert left == ["step-00000001", "step-00000003"]


def test_a_folder_that_is_deleted_meanwhile_is_a_sentence(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(runs() / "bert", tmp_path / name)
    app = client(tmp_path)
    request = {"text": TEXT, "hidden": [1]}
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    ask(app, "fill", model=a, **request)
    shutil.rmtree(tmp_path / "a")
    assert "was removed" in refused(app, "fill", model=a, **request)
    assert [entry["name"] for entry in app.get("/api/models").json()] == [b]
    assert app.get("/api/runs").status_code == 200
    ask(app, "fill", model=b, **request)
    checkpoint = tmp_path / "b" / "checkpoints" / "step-00000002"
    (checkpoint / "model.safetensors").unlink()
    assert "is missing" in refused(app, "fill", model=b, step=2, **request)
    shutil.rmtree(tmp_path)
    assert app.get("/api/models").json() == [] and app.get("/api/runs").status_code == 200


def test_more_than_can_wait_is_turned_away() -> None:
    app, held, begun = client(runs()), threading.Event(), threading.Event()
    model = str(runs() / "bert")
    rooms: App = app.rooms  # type: ignore[attr-defined]

    def wait(_: Any) -> str:
        begun.set()
        held.wait(60)
        return "done"

    waiting = [rooms.models.ask(model, None, wait)]
    assert begun.wait(60)
    waiting += [rooms.models.ask(model, None, wait) for _ in range(MOST_WAITING)]
    sentence = refused(app, "fill", 503, model=model, text=TEXT, hidden=[1])
    assert f"{MOST_WAITING} requests are waiting" in sentence
    other = str(runs() / "roberta")
    ask(app, "fill", model=other, text=TEXT, hidden=[1])  # another model has a queue of its own
    held.set()
    assert [future.result(60) for future in waiting] == ["done"] * (MOST_WAITING + 1)
    ask(app, "fill", model=model, text=TEXT, hidden=[1])


def test_a_model_that_diverged_is_a_sentence() -> None:
    app, model = client(runs()), str(runs() / "bert")
    ask(app, "fill", model=model, text=TEXT, hidden=[1])
    rooms: App = app.rooms  # type: ignore[attr-defined]
    for opened in rooms.models._open.values():
        for weight in opened.module.parameters():
            weight.data.fill_(float("nan"))
    assert "gives NaN" in refused(app, "fill", model=model, text=TEXT, hidden=[1])
    assert "gives NaN" in refused(app, "score", model=model, text=TEXT)


def test_names_that_are_no_utf8_are_shown_and_refused(tmp_path: Path) -> None:
    shutil.copytree(runs() / "bert", tmp_path / os.fsdecode(b"a\xff"))
    app = client(tmp_path)
    (entry,) = app.get("/api/models").json()
    request = {"text": TEXT, "hidden": [1]}
    assert "rename it" in refused(app, "fill", model=entry["name"], **request)
    assert "not among" in refused(app, "fill", model="\udcff", **request)


def test_a_queue_goes_on_after_an_error_and_leaves_out_what_is_cancelled() -> None:
    queue, held, begun = WorkQueue("a", most=3), threading.Event(), threading.Event()
    first = queue.submit(lambda: begun.set() or held.wait(60))
    assert begun.wait(60)
    wrong, unwanted, last = (queue.submit(work) for work in (lambda: 1 / 0, lambda: 2, lambda: 3))
    with pytest.raises(QueueFull):
        queue.submit(lambda: 4)
    unwanted.cancel()
    held.set()
    assert first.result(60) and last.result(60) == 3 and unwanted.cancelled()
    with pytest.raises(ZeroDivisionError):
        wrong.result(60)


def test_nothing_is_written_into_the_folders(tmp_path: Path) -> None:
    shutil.copytree(runs() / "bert", tmp_path / "a")
    before = digests(tmp_path), sorted(tmp_path.rglob("*"))
    app = client(tmp_path / "a")
    ask(app, "fill", model=str(tmp_path / "a"), text=TEXT, hidden=[1])
    ask(app, "score", model=str(tmp_path / "a"), text=TEXT)
    ask(app, "masks", recipe=str(tmp_path / "a"), text=TEXT)
    app.get("/api/runs")
    assert (digests(tmp_path), sorted(tmp_path.rglob("*"))) == before


@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
def test_a_folder_that_is_no_run_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"does not exist|is not a run|is a file"):
        Folders([str(tmp_path / name)])


def test_a_fault_of_ours_is_told_and_the_server_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from clozelab.serving import cloze

    app = client()
    with monkeypatch.context() as broken:
        broken.setattr(cloze, "words_of", lambda text: 1 / 0)
        answer = app.post("/api/words", json={"text": "a"})
    assert answer.status_code == 500 and "bug in clozelab" in answer.json()["error"]
    ask(app, "words", text="a")
