"""The tasks that go by name: what kind each is, where its files usually lie, how it is sent in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from clozelab.finetuning.examples import Document, Sentences
from clozelab.finetuning.files.documents import documents
from clozelab.finetuning.files.gap import gap
from clozelab.finetuning.files.sentences import sentences
from clozelab.finetuning.files.tables import table

Setting = str | int | float | bool | tuple[str, ...]

_NLI = ("contradiction", "entailment", "neutral")
_TWO = ("0", "1")
_ENTAILS = ("entailment", "not_entailment")
_NEWS = (
    *("story", "culture", "entertainment", "sports", "finance", "house", "car", "edu", "tech"),
    *("military", "travel", "world", "stock", "agriculture", "game"),
)


class File(NamedTuple):
    """A file that a split may lie in."""

    name: str
    columns: Mapping[str, str] = {}  # those that do not go by their usual names, or numbers
    note: str = ""  # what whoever reads it should know


@dataclass(frozen=True)
class Named:
    """A task by name; `settings` are the fields of its kind of task."""

    name: str
    title: str
    kind: str
    folders: tuple[str, ...]
    splits: Mapping[str, tuple[File, ...]]  # the first of these that is there
    settings: Mapping[str, Setting] = field(default_factory=dict)
    submission: Mapping[str, str] = field(default_factory=dict)  # split → name of the file to send
    undecided: tuple[str, ...] = ()
    skips: bool = False  # whether the published files have rows cut short
    level: str = ""  # of RACE
    note: str = ""
    protocol: str = ""  # what protocols know it by; empty: by its name
    scores: tuple[str, ...] = ()  # where they are not those of the metrics
    spelled: Callable[[Any], str] | None = None  # a prediction in its submission
    read: Callable[[Path, str], list[Any]] | None = None  # of a file and a split, if its own way


def _files(*names: str, columns: Mapping[str, str] | None = None) -> tuple[File, ...]:
    return tuple(File(name, columns or {}) for name in names)


_TRAIN_DEV_TEST = {split: _files(f"{split}.tsv") for split in ("train", "dev", "test")}


def _glue(
    name: str,
    title: str,
    folder: str,
    *,
    labels: tuple[str, ...] = _TWO,
    metrics: tuple[str, ...] = ("accuracy",),
    pair: bool = True,
    splits: Mapping[str, tuple[File, ...]] = _TRAIN_DEV_TEST,
    skips: bool = False,
) -> Named:
    settings: dict[str, Setting] = {"labels": labels, "pair": pair, "metrics": metrics}
    if "f1" in metrics:
        settings["positive"] = "1"
    folders, sent = (folder, name), {"test": f"{folder}.tsv"}
    return Named(name, title, "classify", folders, splits, settings, sent, skips=skips)


def _race(name: str, title: str, level: str = "") -> Named:
    splits = {split: _files(split, f"{split}.jsonl") for split in ("train", "dev", "test")}
    sent = {"test": f"{name}.tsv"}
    folders = ("RACE", "race")
    return Named(
        name,
        title,
        "choose",
        folders,
        splits,
        {"choices": 4},
        sent,
        level=level,
        protocol="race",
        spelled=lambda picked: chr(ord("A") + picked.label),
    )


def _squad(name: str, title: str, version: str, *, impossible: bool) -> Named:
    splits = {split: _files(f"{split}-v{version}.json") for split in ("train", "dev", "test")}
    folders = ("squad", "SQuAD", name, f"squad{version}")
    sent = {"dev": "predictions.json", "test": "predictions.json"}
    return Named(name, title, "answer", folders, splits, {"impossible": impossible}, sent)


def _tags(*types: str) -> tuple[str, ...]:
    return ("O", *(f"{place}-{kind}" for kind in types for place in "BI"))


def _chinese(
    name: str, title: str, *, labels: tuple[str, ...], pair: bool, numbered: Mapping[str, str]
) -> Named:
    """A task of CLUE: its own JSON lines, or columns without a header."""
    splits = {
        split: (
            File(f"{split}.txt", numbered),
            File(f"{split}.tsv", numbered),
            File(f"{split}.json", {"label": "label_desc"} if name == "tnews" else {}),
        )
        for split in ("train", "dev", "test")
    }
    return Named(
        name, title, "classify", (name, name.upper()), splits, {"labels": labels, "pair": pair}
    )


def _litbank(path: Path, split: str) -> list[Document]:
    """A file of all documents, or a folder with a file for each."""
    files = sorted(path.glob("*.conll*")) if path.is_dir() else [path]
    every = [document for file in files for document in documents(file)]
    return [one for n, one in enumerate(every) if (n % 10 == 9) == (split == "dev")]


def _senteval(name: str, title: str, file: str) -> Named:
    """Two classes of sentences in one file, sorted by class."""

    def read(path: Path, split: str) -> list[Sentences]:
        every = sentences(path)
        return [one for n, one in enumerate(every) if (n % 10 == 9) == (split == "dev")]

    return Named(
        name,
        title,
        "classify",
        ("senteval", "SentEval"),
        {split: _files(file) for split in ("train", "dev")},
        {"labels": _TWO},
        note=f"{file} has no official split: every tenth sentence is dev",
        read=read,
    )


def _sick(name: str, title: str, kind: str, column: str, settings: dict[str, Setting]) -> Named:
    files = {"train": "SICK_train.tsv", "dev": "SICK_trial.tsv", "test": "SICK_test_annotated.tsv"}
    splits = {
        split: _files(file, columns={"label": column, "id": "pair_ID"})
        for split, file in files.items()
    }
    return Named(name, title, kind, ("sts", "SICK", "sick"), splits, {"pair": True, **settings})


def _sts(year: int) -> Named:
    """One year of SemEval's similarity of texts, which has no training set."""

    def read(path: Path, split: str) -> list[Sentences]:
        rows = [row for row in table(path).rows if row.values["year"] == str(year)]
        return [
            Sentences(f"{v['file']} {n}", v["sentence1"], v["sentence2"], float(v["score"]))
            for n, v in enumerate(row.values for row in rows)
        ]

    return Named(
        f"sts{year % 100}",
        f"STS {year}: how near are two sentences, from 0 to 5",
        "regress",
        ("sts", "STS"),
        {"test": _files("sts12-16.test.tsv")},
        {"pair": True, "metrics": ("spearman",)},
        read=read,
    )


# Tasks of the papers that protocols know, though no layout of their files is known here.
ELSEWHERE = {"xnli": "classify", "ontonotes": "coreference"}

NAMED: dict[str, Named] = {
    "cola": _glue(
        "cola",
        "CoLA: is a sentence acceptable",
        "CoLA",
        pair=False,
        metrics=("matthews",),
        splits={  # these have no header line, the test set has one
            "train": _files("train.tsv", columns={"label": "1", "first": "3"}),
            "dev": _files("dev.tsv", columns={"label": "1", "first": "3"}),
            "test": _files("test.tsv"),
        },
    ),
    "sst2": _glue("sst2", "SST-2: is a review good or bad", "SST-2", pair=False),
    "mrpc": _glue(
        "mrpc",
        "MRPC: do two sentences mean the same",
        "MRPC",
        metrics=("accuracy", "f1"),
        splits={**_TRAIN_DEV_TEST, "test": _files("msr_paraphrase_test.txt", "test.tsv")},
    ),
    "stsb": Named(
        "stsb",
        "STS-B: how near are two sentences, from 0 to 5",
        "regress",
        ("STS-B", "stsb"),
        _TRAIN_DEV_TEST,
        {"pair": True, "metrics": ("pearson", "spearman")},
        {"test": "STS-B.tsv"},
        spelled=lambda number: f"{min(max(number.value, 0.0), 5.0):.3f}",  # its scale
    ),
    "qqp": _glue(
        "qqp",
        "QQP: do two questions ask the same",
        "QQP",
        metrics=("accuracy", "f1"),
        skips=True,  # GLUE's train.tsv has a few rows cut short, which its readers drop
    ),
    "mnli": Named(
        "mnli",
        "MNLI: does the second sentence follow from the first",
        "classify",
        ("MNLI", "mnli"),
        {
            "train": _files("train.tsv", columns={"label": "gold_label"}),
            "dev": _files("dev_matched.tsv", columns={"label": "gold_label"}),
            "dev_mismatched": _files("dev_mismatched.tsv", columns={"label": "gold_label"}),
            "test": _files("test_matched.tsv"),
            "test_mismatched": _files("test_mismatched.tsv"),
        },
        {"labels": _NLI, "pair": True, "metrics": ("accuracy",)},
        {"test": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
        undecided=("-",),
    ),
    "qnli": _glue("qnli", "QNLI: does a sentence answer a question", "QNLI", labels=_ENTAILS),
    "rte": _glue("rte", "RTE: does a sentence follow from another", "RTE", labels=_ENTAILS),
    "wnli": _glue("wnli", "WNLI: who is meant by a pronoun", "WNLI"),
    "ax": Named(
        "ax",
        "GLUE's diagnostic set, for models of MNLI",
        "classify",
        ("diagnostic", "AX", "ax"),
        {"test": _files("diagnostic.tsv", "AX.tsv")},
        {"labels": _NLI, "pair": True, "metrics": ("accuracy",)},
        {"test": "AX.tsv"},
        protocol="mnli",
    ),
    "squad1": _squad("squad1", "SQuAD 1.1: find the answer", "1.1", impossible=False),
    "squad2": _squad("squad2", "SQuAD 2.0: find the answer, if any", "2.0", impossible=True),
    "cmrc2018": Named(
        "cmrc2018",
        "CMRC 2018: find the answer, in Chinese",
        "answer",
        ("cmrc2018", "CMRC2018", "cmrc2018/squad-style-data"),
        {split: _files(f"cmrc2018_{split}.json") for split in ("train", "dev", "trial", "test")},
        {"language": "chinese"},
        {"dev": "predictions.json"},
    ),
    "drcd": Named(
        "drcd",
        "DRCD: find the answer, in traditional Chinese",
        "answer",
        ("drcd", "DRCD"),
        {
            "train": _files("DRCD_training.json", "DRCD_train.json"),
            "dev": _files("DRCD_dev.json"),
            "test": _files("DRCD_test.json"),
        },
        {"language": "chinese"},
        {"dev": "predictions.json", "test": "predictions.json"},
    ),
    "swag": Named(
        "swag",
        "SWAG: how does it go on",
        "choose",
        ("swag", "SWAG", "swagaf/data"),
        {
            "train": _files("train.csv"),
            "dev": _files("val.csv", "dev.csv"),
            "test": _files("test.csv"),
        },
        {"choices": 4},
        {"test": "swag.tsv"},
    ),
    "hellaswag": Named(
        "hellaswag",
        "HellaSwag: how does it go on",
        "choose",
        ("hellaswag", "HellaSwag"),
        {
            "train": _files("train.jsonl", "hellaswag_train.jsonl"),
            "dev": _files("dev.jsonl", "val.jsonl", "hellaswag_val.jsonl"),
            "test": _files("test.jsonl", "hellaswag_test.jsonl"),
        },
        {"choices": 4},
        {"test": "hellaswag.tsv"},
    ),
    "race": _race("race", "RACE: reading comprehension of school examinations"),
    "race_middle": _race("race_middle", "RACE, middle schools alone", "middle"),
    "race_high": _race("race_high", "RACE, high schools alone", "high"),
    "wnut17": Named(
        "wnut17",
        "WNUT 2017: rare and new names",
        "tag",
        ("wnut17", "WNUT17"),
        {
            "train": _files("wnut17train.conll", "train.conll"),
            "dev": _files("emerging.dev.conll", "dev.conll"),
            "test": _files("emerging.test.annotated", "test.conll"),
        },
        {"tags": _tags("corporation", "creative-work", "group", "location", "person", "product")},
    ),
    "conll2003": Named(
        "conll2003",
        "CoNLL-2003: names",
        "tag",
        ("conll2003", "conll03", "CoNLL2003"),
        {
            "train": _files("eng.train", "train.txt", "train.conll"),
            "dev": _files("eng.testa", "valid.txt", "dev.txt", "dev.conll"),
            "test": _files("eng.testb", "test.txt", "test.conll"),
        },
        {"tags": _tags("LOC", "MISC", "ORG", "PER")},
    ),
    "peopledaily": Named(
        "peopledaily",
        "People's Daily (as MSRA): names, in Chinese",
        "tag",
        ("peopledaily_ner", "peopledaily", "msra_ner"),
        {split: _files(f"{split}.txt", f"{split}.tsv") for split in ("train", "dev", "test")},
        {"tags": _tags("LOC", "ORG", "PER")},
    ),
    "litbank": Named(
        "litbank",
        "LitBank: coreference in novels",
        "coreference",
        ("litbank", "LitBank"),
        {split: _files("coref.conll", "coref/conll") for split in ("train", "dev")},
        note="LitBank has no official split: every tenth document is dev",
        read=_litbank,
    ),
    "gap": Named(
        "gap",
        "GAP: which name does a pronoun stand for",
        "coreference",
        ("gap", "gap-coreference", "GAP"),
        {
            "train": _files("gap-development.tsv"),
            "dev": _files("gap-validation.tsv"),
            "test": _files("gap-test.tsv"),
        },
        note="of each text only the pronoun and the name it stands for are marked",
        scores=("f1", "masculine_f1", "feminine_f1", "bias"),
        read=lambda path, split: gap(path),
    ),
    "chnsenticorp": Named(
        "chnsenticorp",
        "ChnSentiCorp: is a review good or bad, in Chinese",
        "classify",
        ("chnsenticorp", "ChnSentiCorp"),
        _TRAIN_DEV_TEST,
        {"labels": _TWO},
    ),
    "tnews": _chinese(
        "tnews",
        "TNEWS: what is a headline about, in Chinese",
        labels=tuple(f"news_{topic}" for topic in _NEWS),
        pair=False,
        numbered={"first": "0", "label": "1"},
    ),
    "afqmc": _chinese(
        "afqmc",
        "AFQMC: do two questions ask the same, in Chinese",
        labels=_TWO,
        pair=True,
        numbered={"first": "0", "second": "1", "label": "2"},
    ),
    "ocnli": Named(
        "ocnli",
        "OCNLI: does the second sentence follow from the first, in Chinese",
        "classify",
        ("ocnli", "OCNLI"),
        {
            "train": (
                File("train.50k.json"),
                File("train.10k.json", note="train is the file of 10,000 pairs, not train.50k"),
                File("train.3k.json", note="train is the file of 3,000 pairs, not train.50k"),
            ),
            "dev": _files("dev.json"),
            "test": _files("test.json"),
        },
        {"labels": _NLI, "pair": True},
        undecided=("-",),
    ),
    "mr": _senteval("mr", "MR: is a film's review good or bad", "MR.tsv"),
    "cr": _senteval("cr", "CR: is a product's review good or bad", "CR.tsv"),
    "subj": _senteval("subj", "SUBJ: is a sentence subjective or objective", "SUBJ.tsv"),
    "mpqa": _senteval("mpqa", "MPQA: is an opinion good or bad", "MPQA.tsv"),
    "trec": Named(
        "trec",
        "TREC: what does a question ask for",
        "classify",
        ("senteval", "SentEval", "TREC"),
        {"train": _files("TREC.train.tsv"), "dev": _files("TREC.test.tsv")},
        {"labels": tuple("012345")},
        note="TREC has no dev set: its test set stands for it",
    ),
    "sickr": _sick(
        "sickr",
        "SICK: how near are two sentences, from 1 to 5",
        "regress",
        "relatedness_score",
        {"metrics": ("pearson", "spearman")},
    ),
    "sicke": _sick(
        "sicke",
        "SICK: does the second sentence follow from the first",
        "classify",
        "entailment_judgment",
        {"labels": tuple(label.upper() for label in _NLI)},
    ),
    **{f"sts{year % 100}": _sts(year) for year in range(2012, 2017)},
}
