"""Fine-tuning beside transformers' Trainer: one task, one model, the same batches of examples.

A BERT of random weights is written as a Hugging Face directory; both sides open that directory, so
both have the same tokenizer, shapes and examples. The Trainer pads each batch to its longest row,
in bf16, with fused AdamW, as its users run it, plainly and with torch_compile. Each contender's
start (loading, compiling, the first steps) and its pace after that are told apart, and together as
the seconds that so many examples take: compiling pays for long trainings only.

    python benchmarks/finetune.py --tokenizer CORPUS --train train.tsv --dev dev.tsv --out FILE.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from tokenizers import Tokenizer

from clozelab.files import sha256, write_text
from clozelab.finetuning.files.tables import located
from clozelab.finetuning.inputs import inputs_for
from clozelab.finetuning.request import Data, FinetuneRequest
from clozelab.finetuning.trial import Trial
from clozelab.runs import machine as machines
from clozelab.runs.directory import machine_facts
from clozelab.runs.machine import Machine
from clozelab.text.loading import load as load_tokenizer
from clozelab.training.feed import ahead
from clozelab.training.loop import train
from clozelab.training.world import join

WARM = 20  # steps that belong to the start
WINDOWS = 5  # of the steps after; the pace is their median
MOST = 10_000  # steps of a schedule; the clock ends it long before
EXAMPLES = (2_000, 10_000, 67_000)  # sizes of trainings whose total time is computed
TRACED = "graphs, not compiled"
PATIENCE = 100.0  # seconds, after which a contender is stopped


def write_model(place: Path, tokenizer: Tokenizer, *, layers: int, width: int, labels: int) -> None:
    """A BERT of that size with random weights, as transformers saves one."""
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = BertConfig(  # type: ignore[call-arg]
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
    place: Path, data: Data, *, seconds: float, sequences: int, machine: Machine
) -> dict[str, Any]:
    """Time our steps: the start, the pace after it, and peak memory."""
    reset_device()
    began, times = time.perf_counter(), list[float]()
    settings = (f"steps={MOST}", f"batch_size={sequences}", "length=128")
    inputs = inputs_for(FinetuneRequest(str(place), data, protocol="bert", settings=settings))
    with join() as world:
        work = Trial(inputs, machine, world)
        with closing(ahead(work.jobs(0, work.start()), workers=2)) as feed:
            for _ in train(work.train_state, feed, world):
                times.append(time.perf_counter())
                if enough(times, seconds):
                    break
    return pace(began, times, sequences)


def enough(times: Sequence[float], seconds: float) -> bool:
    """Whether the windows are long enough."""
    ready = len(times) >= WARM + WINDOWS
    return ready and times[-1] - times[WARM - 1] >= WINDOWS * seconds


def pace(began: float, times: Sequence[float], sequences: int) -> dict[str, Any]:
    """Seconds of the start, and examples per second after it, as the median over windows."""
    if len(times) < WARM + WINDOWS:  # the start was not over in time
        return {"cut_off_seconds": times[-1] - began, "steps": len(times)}
    size = (len(times) - WARM) // WINDOWS
    marks = [times[WARM - 1 + size * number] for number in range(WINDOWS + 1)]
    rates = [size * sequences / (after - before) for before, after in pairwise(marks)]
    start, rate = times[WARM - 1] - began, median(rates)
    return {
        "start_seconds": start,
        "examples_a_second": rate,
        "windows": rates,
        "window_seconds": [after - before for before, after in pairwise(marks)],
        "seconds_for_examples": {count: start + count / rate for count in EXAMPLES},
        "peak_memory_gib": peak(),
    }


def theirs(
    place: Path, data: Data, *, seconds: float, sequences: int, compiled: bool
) -> dict[str, Any]:
    """Time the steps of transformers' Trainer on the same examples."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    reset_device()
    began = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(str(place))
    splits = data.splits()
    labels = splits.settings["labels"]
    rows = [
        {
            **tokenizer(*texts(example), truncation=True, max_length=128),
            "labels": labels.index(example.label),
        }
        for example in splits.read("train")
    ]
    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, _: Any, __: Any, control: Any, **more: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times.append(time.perf_counter())
            late = times[-1] - began > PATIENCE
            control.should_training_stop |= late or enough(times, seconds)

    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            max_steps=MOST,
            per_device_train_batch_size=sequences,
            learning_rate=3e-5,
            warmup_steps=MOST // 10,
            torch_compile=compiled,
            bf16=torch.cuda.is_available(),
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            report_to=[],
            logging_steps=MOST,
            disable_tqdm=True,
        )
        Trainer(
            model=AutoModelForSequenceClassification.from_pretrained(str(place)),
            args=settings,
            train_dataset=rows,
            data_collator=DataCollatorWithPadding(tokenizer),
            callbacks=[Clock()],
        ).train()
    return pace(began, times, sequences)


def machines_tried() -> dict[str, Machine]:
    """The settings to measure: eager, and on a GPU also compiled, and with CUDA graphs."""
    machines_to_try = {"eager": Machine(compile=False, workers=2)}
    if torch.cuda.is_available():
        machines_to_try["compiled"] = Machine(compile=True, graphs=False, workers=2)
        machines_to_try["graphs"] = Machine(compile=True, workers=2)
        machines_to_try[TRACED] = Machine(compile=True, workers=2)
    return machines_to_try


def trace(model: Any, *, whole: bool = True, replays: bool = False) -> None:
    """Replay a model's operators as CUDA graphs, without compiling them."""
    model.compile(fullgraph=whole, dynamic=False, backend="cudagraphs")


def texts(example: Any) -> Sequence[str]:
    return [example.first] if example.second is None else [example.first, example.second]


def reset_device() -> None:
    torch._dynamo.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak() -> float | None:
    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tokenizer", required=True, help="a corpus, run or tokenizer.json")
    parser.add_argument("--train", required=True)
    parser.add_argument("--dev", required=True)
    parser.add_argument("--pairs", action="store_true")
    parser.add_argument("--size", default="12x768", help="LAYERSxHIDDEN (12x768)")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=2.1, help="of a window (2.1)")
    parser.add_argument("--trainer-compiled", action="store_true", help="it takes minutes")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    layers, width = (int(part) for part in arguments.size.split("x"))
    tokenizer = load_tokenizer(arguments.tokenizer)
    data = Data(
        "pairs" if arguments.pairs else "classify", train=arguments.train, dev=arguments.dev
    )
    labels = len(data.splits().settings["labels"])
    run = {"seconds": arguments.seconds, "sequences": arguments.sequences}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "model"
        write_model(place, tokenizer, layers=layers, width=width, labels=labels)
        sides: dict[str, Any] = {}

        def keep_side(name: str, side: dict[str, Any]) -> None:
            sides[name] = side
            print(name, json.dumps(side), flush=True)
            if arguments.out is not None:  # now, so that a stop loses one contender
                text = json.dumps(record(sides, run, arguments), indent=1)
                write_text(arguments.out, text + "\n")

        for name, machine in machines_tried().items():
            compiles = trace if name == TRACED else machines.compile_model
            with patch.object(machines, "compile_model", compiles):
                keep_side(name, ours(place, data, **run, machine=machine))
        keep_side("trainer", theirs(place, data, **run, compiled=False))
        if torch.cuda.is_available() and arguments.trainer_compiled:
            keep_side("trainer compiled", theirs(place, data, **run, compiled=True))
    print(json.dumps(record(sides, run, arguments)["ratio"], indent=1))


def record(
    sides: Mapping[str, Any], run: Mapping[str, Any], arguments: argparse.Namespace
) -> dict[str, Any]:
    """What is measured so far; ratios are to the Trainer, once it is measured."""
    paced = {name: side for name, side in sides.items() if "cut_off_seconds" not in side}
    rates = {name: side["examples_a_second"] for name, side in paced.items()}
    whole = {name: side["seconds_for_examples"] for name, side in paced.items()}
    return {
        "size": arguments.size,
        **run,
        **sides,
        "ratio": {
            name: {
                "pace": rate / rates["trainer"],
                **{count: whole["trainer"][count] / whole[name][count] for count in EXAMPLES},
            }
            for name, rate in rates.items()
            if name != "trainer" and "trainer" in rates
        },
        "data": {
            name: sha256(located(Path(getattr(arguments, name)))) for name in ("train", "dev")
        },
        "machine": {
            **machine_facts(),
            **machines.facts(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        },
    }


if __name__ == "__main__":
    main()
