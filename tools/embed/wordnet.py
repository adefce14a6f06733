"""WordNet as its files hold it: synsets, glosses, inflections, and words in use."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from embed.order import chance, shuffled, tidy


def words_of(text: str) -> list[str]:
    """A list of words, easier to read without quotes."""
    return text.split()


PARTS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
LEXICOGRAPHER_FILES = words_of(
    "adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute "
    "noun.body noun.cognition noun.communication noun.event noun.feeling noun.food noun.group "
    "noun.location noun.motive noun.object noun.person noun.phenomenon noun.plant "
    "noun.possession noun.process noun.quantity noun.relation noun.shape noun.state "
    "noun.substance noun.time verb.body verb.change verb.cognition verb.communication "
    "verb.competition verb.consumption verb.contact verb.creation verb.emotion verb.motion "
    "verb.perception verb.possession verb.social verb.stative verb.weather adj.ppl"
)
ENDINGS = {
    "n": ("s>", "ses>s", "xes>x", "zes>z", "ches>ch", "shes>sh", "men>man", "ies>y"),
    "v": ("s>", "ies>y", "es>e", "es>", "ed>e", "ed>", "ing>e", "ing>"),
    "a": ("er>", "est>", "er>e", "est>e"),
    "r": (),
}
UNKIND = re.compile(
    r"(?i)offensive|slur|obscen|vulgar|derog|disparag|contempt|sexual|genital|\brap(?:e|ist)\b|"
    r"shit|fuck|piss|bitch|whore|prostitut"
)
WORD = re.compile(r"[A-Za-z]+(?:-[A-Za-z]+)*")
# Abbreviations, negations and the like stay whole; possessives and short verbs come apart.
TOKEN = re.compile(
    r"(?:[A-Za-z]\.){2,}|[A-Za-z]+n't\b|o'clock\b|"
    rf"{WORD.pattern}|'(?:s|re|ve|ll|d|m)\b|\d+(?:[.,:]\d+)*|[^\w\s]"
)


@dataclass(frozen=True)
class Synset:
    """One meaning: the words that share it, its definition and its example sentences."""

    part: str
    category: str
    lemmas: tuple[str, ...]
    definition: str
    examples: tuple[str, ...]
    is_instance: bool


@dataclass(frozen=True)
class Use:
    """A headword found in an example sentence of its own meaning."""

    lemma: str
    synset: Synset
    example: str
    start: int
    end: int

    @property
    def key(self) -> str:
        """What hashes of this use are taken of."""
        return f"{self.lemma}|{self.synset.definition}|{self.example}"


class WordNet:
    """The synsets of WordNet, with the word forms and the counts needed to read examples."""

    def __init__(self, root: Path) -> None:
        folder = root / "usr/share/wordnet"
        self.synsets = [s for part in PARTS for s in read_synsets(folder / f"data.{part}")]
        self.irregular = {code: read_irregular(folder, part) for part, code in PARTS.items()}
        self.senses: dict[tuple[str, str], list[Synset]] = defaultdict(list)
        for synset in self.synsets:
            for lemma in synset.lemmas:
                self.senses[lemma.lower(), synset.part].append(synset)
        self.counts = read_counts(folder / "cntlist.rev")

    def all_senses(self, word: str) -> list[Synset]:
        """The meanings of a base form in every part of speech."""
        return [s for part in PARTS.values() for s in self.senses.get((word, part), ())]

    def base_forms(self, word: str, part: str) -> set[str]:
        """Every known word of this part of speech that ``word`` may be a form of."""
        word = word.lower()
        guesses = {word, *self.irregular[part].get(word, ())}
        for rule in ENDINGS[part]:
            ending, replacement = rule.split(">")
            if word.endswith(ending) and len(word) > len(ending) + 1:
                stem = word.removesuffix(ending) + replacement
                guesses |= {stem, stem[:-1]} if doubled(stem) else {stem}
        return {guess for guess in guesses if (guess, part) in self.senses}

    def find(self, lemma: str, part: str, sentence: str) -> list[tuple[int, int]]:
        """Where ``lemma``, also inflected, stands in ``sentence``."""
        wanted = lemma.lower().split()
        words = list(WORD.finditer(sentence))
        places = []
        for at in range(len(words) - len(wanted) + 1):
            window = words[at : at + len(wanted)]
            if all(self.is_form(w[0], form, part) for w, form in zip(window, wanted, strict=True)):
                places.append((window[0].start(), window[-1].end()))
        return places

    def is_form(self, word: str, lemma: str, part: str) -> bool:
        """Whether ``word`` is ``lemma`` or an inflected form of it."""
        return word.lower() == lemma or lemma in self.base_forms(word, part)


def doubled(stem: str) -> bool:
    """Whether a stem ends as in ``stopp(ed)``."""
    return len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] in "bdgmnprt"


def read_synsets(path: Path) -> Iterator[Synset]:
    """Read one ``data.*`` file; its lines that start with a blank are the licence."""
    for line in path.read_text("utf-8").splitlines():
        if line.startswith(" "):
            continue
        fields, _, gloss = line.partition(" | ")
        parts = fields.split()
        count = int(parts[3], 16)
        words = parts[4 : 4 + 2 * count : 2]
        definition, examples = split_gloss(gloss)
        yield Synset(
            part="a" if parts[2] == "s" else parts[2],
            category=LEXICOGRAPHER_FILES[int(parts[1])],
            lemmas=tuple(re.sub(r"\(\w+\)$", "", word).replace("_", " ") for word in words),
            definition=definition,
            examples=examples,
            is_instance="@i" in parts[4 + 2 * count :],
        )


def split_gloss(gloss: str) -> tuple[str, tuple[str, ...]]:
    """The definition, without a leading field label, and the quoted examples of a gloss."""
    head, quote, _ = gloss.partition('"')
    definition = re.sub(r"^\s*\([^)]*\)\s*", "", head).strip(" ;:,")
    examples = re.findall(r'(?:^|[;:,] ?)"([^";]+)"(?=\s*(?:;|$))', quote and gloss)
    return tidy(definition), tuple(tidy(example).strip(" ;,") for example in examples)


def read_irregular(folder: Path, part: str) -> dict[str, list[str]]:
    """Irregular forms and their base forms."""
    lines = (folder / f"{part}.exc").read_text("utf-8").splitlines()
    return {line.split()[0]: line.split()[1:] for line in lines}


def read_counts(path: Path) -> dict[str, Counter[str]]:
    """How often each word was seen in each lexicographer category in WordNet's tagged texts."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for line in path.read_text("utf-8").splitlines():
        sense, _, count = line.split()
        lemma, _, rest = sense.rpartition("%")
        category = LEXICOGRAPHER_FILES[int(rest.split(":")[1])]
        counts[lemma.replace("_", " ")][category] += int(count)
    return counts


def gives_away(lemma: str, definition: str) -> bool:
    """Whether the definition contains the word it defines, or a word made from it."""
    stems = [w[: max(4, len(w) - 3)] for w in lemma.lower().split() if len(w) > 2]
    words = WORD.findall(definition.lower())
    pieces = words + [piece for word in words for piece in word.split("-")]
    return any(piece.startswith(stem) for stem in stems for piece in pieces)


def is_clean(text: str, shortest: int, longest: int) -> bool:
    """Of a fair length, whole, and fit to be shown to anybody."""
    in_bounds = shortest <= len(text) <= longest
    whole = text.count("(") == text.count(")") and not re.search(r"[\"`|\[\]{}<>]|\s-\s?$", text)
    return in_bounds and whole and not UNKIND.search(text)


def in_dev(word: str) -> bool:
    """Whether a headword belongs to the dev split; all that is made of it goes there too."""
    return chance("split", word.lower()) < 0.2


def uses(wordnet: WordNet) -> list[Use]:
    """One use for each meaning with a good example, shuffled; no definition comes twice."""
    uses_by_definition: dict[str, Use] = {}
    for synset in wordnet.synsets:
        if not is_clean(synset.definition, 15, 90) or synset.is_instance:
            continue
        use = first_use(wordnet, synset)
        if use and not gives_away(use.lemma, synset.definition):
            uses_by_definition.setdefault(synset.definition.lower(), use)
    return shuffled(uses_by_definition.values(), key=lambda use: use.key, salt="uses")


def first_use(wordnet: WordNet, synset: Synset) -> Use | None:
    """The first example in which exactly one place is a word of the synset."""
    for example in synset.examples:
        if not is_clean(example, 20, 110) or len(example.split()) < 4:
            continue
        for lemma in synset.lemmas:
            places = wordnet.find(lemma, synset.part, example)
            if len(places) == 1 and len(lemma) > 2:
                return Use(lemma, synset, example, *places[0])
    return None
