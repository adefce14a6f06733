"""The peer of corpus build: datasets.map with a fast tokenizer, two processes; prints its time.

    python benchmarks/datasets_map.py OUT TOKENIZER TEXT…

The text is in an Arrow table before the clock starts; the clock runs over map alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from clozelab.contracts import Counts
from clozelab.text.reading.layouts import Reading
from clozelab.text.reading.sources import find


def read(texts: tuple[str, ...]) -> Iterator[dict[str, str]]:
    for document in find(texts, Reading()).documents(Counts()):
        yield {"text": document.text}


def main() -> None:
    out, tokenizer_file, *texts = sys.argv[1:]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=tokenizer_file)
    # A list would be taken for shards to be divided among processes.
    table = Dataset.from_generator(
        read, gen_kwargs={"texts": tuple(texts)}, cache_dir=f"{out}-cache"
    )

    def encode(batch: dict[str, Any]) -> Any:
        return tokenizer(batch["text"], add_special_tokens=False)

    before = time.perf_counter()
    done = table.map(encode, batched=True, num_proc=2, remove_columns=["text"])
    seconds = time.perf_counter() - before
    print(json.dumps({"seconds": seconds, "rows": len(done)}))


if __name__ == "__main__":
    main()
