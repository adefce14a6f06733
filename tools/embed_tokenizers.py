"""Make src/clozelab/data/tokenizers/: small tokenizers of every kind, from the embedded text.

They let `clozelab mask` work before there is a corpus. Run it after embed_data.py:
python tools/embed_tokenizers.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clozelab import data
from clozelab.contracts import Counts
from clozelab.text.reading.layouts import Reading
from clozelab.text.reading.sources import find
from clozelab.text.tokenizers import TOKENIZERS

VOCABULARY = 8000


def texts() -> Iterator[str]:
    """The embedded English and Chinese text, by paragraphs."""
    inputs = [str(data.corpus()), str(data.chinese())]
    for document in find(inputs, Reading()).documents(Counts()):
        yield from document.text.split("\n")


def main() -> None:
    """Train and write each."""
    folder = Path(data.__file__).parent / "tokenizers"
    folder.mkdir(exist_ok=True)
    for name in data.TOKENIZERS:
        tokenizer = TOKENIZERS[name](vocabulary=VOCABULARY).train(texts())
        tokenizer.save(str(folder / f"{name}.json"), pretty=False)
        print(f"{name}: {tokenizer.get_vocab_size():,} ids")


if __name__ == "__main__":
    main()
