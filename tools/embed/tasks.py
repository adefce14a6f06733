"""Five small tasks from WordNet's definitions and example sentences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from embed.order import Item, Row, chance, shuffled
from embed.wordnet import PARTS, TOKEN, Synset, Use, WordNet, gives_away, in_dev, is_clean, words_of

CATEGORIES = words_of(
    "noun.act noun.animal noun.artifact noun.body noun.communication "
    "noun.food noun.location noun.person noun.plant noun.substance"
)
TAGS = {
    "noun.animal": "ANIMAL",
    "noun.artifact": "ARTIFACT",
    "noun.body": "BODY",
    "noun.communication": "COMMUNICATION",
    "noun.food": "FOOD",
    "noun.group": "GROUP",
    "noun.location": "PLACE",
    "noun.person": "PERSON",
    "noun.plant": "PLANT",
    "noun.time": "TIME",
}
SURE = 0.8
Splits = dict[str, list[Item]]


def take(
    items: Iterable[Item], is_dev: Callable[[Item], bool], *, train: int, dev: int
) -> Splits[Item]:
    """The first ``train`` and ``dev`` items of the two splits."""
    splits: Splits[Item] = {"train": [], "dev": []}
    for item in items:
        name = "dev" if is_dev(item) else "train"
        if len(splits[name]) < (dev if name == "dev" else train):
            splits[name].append(item)
    return splits


def definitions_task(wordnet: WordNet) -> Splits[Row]:
    """Definitions with the name of their category, equally many of each."""
    pools: dict[str, dict[str, Synset]] = {category: {} for category in CATEGORIES}
    seen: Counter[str] = Counter(synset.definition.lower() for synset in wordnet.synsets)
    for synset in wordnet.synsets:
        dull = re.match(r"(?:a |the )?(?:type )?(?:genus|family|order|class)\b", synset.definition)
        common = synset.lemmas[0][0].islower() and not synset.is_instance and not dull
        unique = seen[synset.definition.lower()] == 1
        if synset.category in pools and common and unique and is_clean(synset.definition, 20, 120):
            pools[synset.category][synset.definition] = synset
    splits: Splits[Row] = {"train": [], "dev": []}
    for category, pool in pools.items():
        synsets = shuffled(pool.values(), key=lambda synset: synset.definition, salt="definitions")
        chosen = take(synsets, lambda synset: in_dev(synset.lemmas[0]), train=320, dev=60)
        for name, part in chosen.items():
            splits[name] += [(synset.definition, category) for synset in part]
    return {name: shuffled(rows, "\t".join, "rows") for name, rows in splits.items()}


def pairs_task(pool: list[Use]) -> Splits[Row]:
    """A word in its example with its own definition, or with that of another word.

    Every definition comes once with each label, so that neither half alone gives the label away.
    """
    chosen = take(one_per_word(pool), lambda use: in_dev(use.lemma), train=1200, dev=300)
    splits: Splits[Row] = {}
    for name, part in chosen.items():
        rows: list[Row] = []
        for code in PARTS.values():
            same = [use for use in part if use.synset.part == code]
            others = strangers(same)
            for use, other in zip(same, others, strict=True):
                framed = f'{use.lemma}, as in "{use.example}"'
                rows.append((framed, use.synset.definition, "yes"))
                rows.append((framed, other.synset.definition, "no"))
        splits[name] = shuffled(rows, "\t".join, "rows")
    return splits


def strangers(same: list[Use]) -> list[Use]:
    """The same uses, moved on until none stands beside a word that it also defines."""
    for shift in range(1, len(same)):
        moved = same[shift:] + same[:shift]
        if not any(is_meaning(other, use) for use, other in zip(same, moved, strict=True)):
            return moved
    raise SystemExit("too few words for pairs")


def is_meaning(other: Use, use: Use) -> bool:
    """Whether the definition of ``other`` is also one of the word of ``use``."""
    return use.lemma.lower() in (lemma.lower() for lemma in other.synset.lemmas)


def one_per_word(pool: Iterable[Use]) -> list[Use]:
    """The first use of each word."""
    first_uses: dict[str, Use] = {}
    for use in pool:
        first_uses.setdefault(use.lemma.lower(), use)
    return list(first_uses.values())


def choices_task(wordnet: WordNet, pool: list[Use]) -> Splits[dict[str, object]]:
    """Which of four definitions a word has in its example; other meanings of it come first."""
    own = {id(use): own_distractors(wordnet, use) for use in pool}
    several = [use for use in pool if own[id(use)]]
    chosen = take(several, lambda use: in_dev(use.lemma), train=2000, dev=500)
    splits: Splits[dict[str, object]] = {}
    for name, part in chosen.items():
        splits[name] = []
        for at, use in enumerate(part):
            rest = (u for u in part[at + 1 :] + part[:at] if u.synset.part == use.synset.part)
            others = (u.synset.definition for u in rest if not is_meaning(u, use))
            wrong = own[id(use)][:3]
            wrong += islice(others, 3 - len(wrong))
            texts = shuffled([use.synset.definition, *wrong], key=str, salt=use.key)
            splits[name].append(
                {
                    "question": f'What does "{use.lemma}" mean in "{use.example}"?',
                    "choices": texts,
                    "answer": texts.index(use.synset.definition),
                }
            )
    return splits


def own_distractors(wordnet: WordNet, use: Use) -> list[str]:
    """Definitions of the word's other meanings."""
    others = wordnet.senses[use.lemma.lower(), use.synset.part]
    texts = {s.definition for s in others if is_clean(s.definition, 15, 90)}
    texts = {text for text in texts if not gives_away(use.lemma, text)}
    # Another salt than that of the final order, or the right answer would tend to come last.
    return shuffled(texts - {use.synset.definition}, key=str, salt=f"own {use.key}")


def tags_task(wordnet: WordNet) -> Splits[list[Row]]:
    """Example sentences in which each noun of a chosen field is tagged with that field."""
    sentences: dict[str, tuple[str, list[Row]]] = {}
    for synset in wordnet.synsets:
        for example in synset.examples:
            if is_clean(example, 20, 110) and example.lower() not in sentences:
                rows = tag_sentence(wordnet, synset, example)
                if rows:
                    sentences[example.lower()] = (synset.lemmas[0], rows)
    order = shuffled(sentences, key=str, salt="tags")
    # A few sentences without any tag keep a model from always finding one.
    chosen_texts = [
        text
        for text in order
        if any(tag != "O" for _, tag in sentences[text][1]) or chance("empty", text) < 0.1
    ]
    chosen = take(chosen_texts, lambda text: in_dev(sentences[text][0]), train=2500, dev=600)
    return {name: [sentences[text][1] for text in part] for name, part in chosen.items()}


def tag_sentence(wordnet: WordNet, synset: Synset, example: str) -> list[Row] | None:
    """Tokens with tags, or nothing if a word's field is unsure or the headword is not found."""
    spots = (s for lemma in synset.lemmas for s in wordnet.find(lemma, synset.part, example))
    head = next(spots, None)
    if head is None:
        return None
    tokens = list(TOKEN.finditer(example))
    rows: list[Row] = []
    at = 0
    while at < len(tokens):
        length, field = field_at(wordnet, tokens, at)
        if head[0] <= tokens[at].start() < head[1]:
            length = sum(head[0] <= token.start() < head[1] for token in tokens[at:])
            field = synset.category
        if field is None:
            return None
        tag = TAGS.get(field)
        for offset, token in enumerate(tokens[at : at + length]):
            prefix = "I-" if offset else "B-"
            rows.append((token[0], prefix + tag if tag else "O"))
        at += length
    return rows


def field_at(wordnet: WordNet, tokens: Sequence[re.Match[str]], at: int) -> tuple[int, str | None]:
    """How many tokens from ``at`` form one term, and its field; None where it is unsure."""
    for length in (3, 2):
        words = [token[0].lower() for token in tokens[at : at + length]]
        for last in wordnet.base_forms(words[-1], "n") | {words[-1]}:
            term = " ".join([*words[:-1], last])
            if len(words) == length and (term, "n") in wordnet.senses:
                return length, sure_field(wordnet, {term})
    word = tokens[at][0]
    if not word[0].isalpha() or word.lower() in CLOSED_CLASS or "'" in word:
        return 1, "other"
    bases = {base for part in PARTS.values() for base in wordnet.base_forms(word, part)}
    return 1, sure_field(wordnet, bases)


# Words that WordNet does not know, or knows only as something rare ("a" the letter, "he" helium).
CLOSED_CLASS = frozenset(
    words_of(
        "a an the this that these those i me my mine you your he him his she her hers it its "
        "we us our they them their who whom whose which what where when why how and or but "
        "nor so if then than as at by for from in into of off on onto out over to up with "
        "about after against before between down during through under until without be am is "
        "are was were been being do does did done have has had having can could may might "
        "must shall should will would not no there here all any both each few more most much "
        "many some such only own same other another very too also just one two three four "
        "five six seven eight nine ten because while once upon yet never ever always"
    )
)


def sure_field(wordnet: WordNet, bases: set[str]) -> str | None:
    """The category these base forms nearly always have, by counts or by having no other."""
    counts: Counter[str] = Counter()
    for base in bases:
        counts += wordnet.counts.get(base, Counter())
    if counts.total() >= 3:
        category, most = counts.most_common(1)[0]
        nouns = sum(n for name, n in counts.items() if TAGS.get(name))
        if most >= SURE * counts.total():
            return category
        return "other" if nouns == 0 else None  # no reading of it would be tagged
    fields = {s.category for base in bases for s in wordnet.all_senses(base)}
    if len(fields) == 1:
        return fields.pop()
    return "other" if fields and not fields & TAGS.keys() else None


def spans_task(wordnet: WordNet, pool: list[Use]) -> Splits[Use]:
    """Uses whose definition is the question and whose headword, in its example, is the answer."""
    alone = [use for use in pool if is_only_answer(wordnet, use)]
    return take(alone, lambda use: in_dev(use.lemma), train=2000, dev=500)


def is_only_answer(wordnet: WordNet, use: Use) -> bool:
    """No synonym stands beside the headword, so that there is one right answer."""
    others = (lemma for lemma in use.synset.lemmas if lemma != use.lemma)
    return not any(wordnet.find(lemma, use.synset.part, use.example) for lemma in others)


def squad(name: str, part: list[Use]) -> dict[str, object]:
    """The SQuAD 1.1 layout."""
    paragraphs = [
        {
            "context": use.example,
            "qas": [
                {
                    "id": f"{name}-{number}",
                    "question": use.synset.definition,
                    "answers": [
                        {"text": use.example[use.start : use.end], "answer_start": use.start}
                    ],
                }
            ],
        }
        for number, use in enumerate(part)
    ]
    return {"version": "1.1", "data": [{"title": "WordNet", "paragraphs": paragraphs}]}
