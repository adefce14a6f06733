"""Fine-tuning beside transformers' Trainer: one task, one model, the same batches of examples.

A BERT of random weights is written as a Hugging Face directory; both sides open that directory, so
both have the same tokenizer, shapes and examples. The Trainer pads each batch to its longest row,
in bf16, with fused AdamW, as its users run it. The first steps are not counted on either side.

    python benchmarks/finetune.py --tokenizer CORPUS --train train.tsv --dev dev.tsv --out FILE.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from clozelab.records import machine_facts
from clozelab.runs import machine as machines
from clozelab.runs.machine import Machine
from clozelab.runs.tasks.lessons import lesson
from clozelab.runs.tasks.orders import Data, Order
from clozelab.runs.tasks.trial import Trial
from clozelab.text.vocabulary import load as load_tokenizer
from clozelab.training.feed import ahead
from clozelab.training.loop import train
from clozelab.training.world import join

WARM = 20


def directory(place: Path, tokenizer: Tokenizer, *, layers: int, width: int, labels: int) -> None:
    """A BERT of that size with random weights, as transformers saves one."""
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        num_labels=labels,
        pad_token_id=tokenizer.token_to_id("[PAD]"),
    )
    BertForSequenceClassification(config).save_pretrained(place)
    names = {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "unk": "[UNK]"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{role}_token": name for role, name in names.items()}
    ).save_pretrained(place)


def ours(
    place: Path, data: Data, *, steps: int, sequences: int, machine: Machine
) -> dict[str, Any]:
    """Our steps: examples and real tokens a second, and the peak of memory."""
    fresh()
    settings = (f"steps={steps}", f"sequences={sequences}", "length=128")
    given = lesson(Order(str(place), data, protocol="bert", settings=settings))
    with join() as world:
        work = Trial(given, machine, world)
        seconds, tokens = [], []
        with closing(ahead(work.jobs(0, work.start()), workers=2)) as feed:
            for step in islice(train(work.trainee, feed, world), steps):
                seconds.append(step.seconds)
                tokens.append(step.tokens)
    spent = sum(seconds[WARM:])
    return {
        "examples_a_second": (steps - WARM) * sequences / spent,
        "tokens_a_second": sum(tokens[WARM:]) / spent,
        "first_step_seconds": seconds[0],
        "peak_memory_gib": peak(),
    }


def theirs(place: Path, data: Data, *, steps: int, sequences: int) -> dict[str, Any]:
    """The Trainer on the same examples."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    fresh()
    tokenizer = AutoTokenizer.from_pretrained(str(place))
    found = data.found()
    labels = found.settings["labels"]
    rows = [
        {
            **tokenizer(*texts(one), truncation=True, max_length=128),
            "labels": labels.index(one.label),
        }
        for one in found.read("train")
    ]
    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            if torch.cuda.is_available() and len(times) in (WARM - 1, steps - 1):
                torch.cuda.synchronize()
            times.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=sequences,
            learning_rate=3e-5,
            warmup_steps=steps // 10,
            bf16=torch.cuda.is_available(),
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            report_to=[],
            logging_steps=steps,
            disable_tqdm=True,
        )
        Trainer(
            model=AutoModelForSequenceClassification.from_pretrained(str(place)),
            args=settings,
            train_dataset=rows,
            data_collator=DataCollatorWithPadding(tokenizer),
            callbacks=[Clock()],
        ).train()
    spent = times[-1] - times[WARM - 1]
    return {
        "examples_a_second": (steps - WARM) * sequences / spent,
        "peak_memory_gib": peak(),
    }


def machines_tried() -> dict[str, Machine]:
    """How ours runs: plainly, and on a GPU also compiled, and replayed as CUDA graphs."""
    found = {"eager": Machine(compile=False, workers=2)}
    if torch.cuda.is_available():
        found["compiled"] = Machine(compile=True, graphs=False, workers=2)
        found["graphs"] = Machine(compile=True, workers=2)
    return found


def texts(example: Any) -> Sequence[str]:
    return [example.first] if example.second is None else [example.first, example.second]


def fresh() -> None:
    torch._dynamo.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak() -> float | None:
    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    words.add_argument("--tokenizer", required=True, help="a corpus, run or tokenizer.json")
    words.add_argument("--train", required=True)
    words.add_argument("--dev", required=True)
    words.add_argument("--pairs", action="store_true")
    words.add_argument("--size", default="12x768", help="LAYERSxWIDTH (12x768)")
    words.add_argument("--sequences", type=int, default=32)
    words.add_argument("--steps", type=int, default=300)
    words.add_argument("--out", type=Path)
    given = words.parse_args()
    layers, width = (int(part) for part in given.size.split("x"))
    tokenizer = load_tokenizer(given.tokenizer)
    data = Data("pairs" if given.pairs else "classify", train=given.train, dev=given.dev)
    labels = len(data.found().settings["labels"])
    run = {"steps": given.steps, "sequences": given.sequences}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "model"
        directory(place, tokenizer, layers=layers, width=width, labels=labels)
        found: dict[str, Any] = {"trainer": theirs(place, data, **run)}
        for name, machine in machines_tried().items():
            found[name] = ours(place, data, **run, machine=machine)
    speed = {name: one["examples_a_second"] for name, one in found.items()}
    told = {
        "size": given.size,
        **run,
        **found,
        "ratio": {name: one / speed["trainer"] for name, one in speed.items() if name != "trainer"},
        "machine": {
            **machine_facts(),
            **machines.facts(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        },
    }
    text = json.dumps(told, indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
