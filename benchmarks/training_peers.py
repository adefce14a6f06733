"""Sentence vectors beside sentence-transformers, adaptation beside transformers' Trainer.

    python benchmarks/training_peers.py contrastive --texts SENTENCES --out FILE.json   # two cores
    python benchmarks/training_peers.py adaptation --texts SENTENCES --out FILE.json    # a GPU

SENTENCES has a sentence a line. A BERT of random weights is written as a Hugging Face directory,
which both sides open: the same weights, tokenizer, texts, steps and optimiser. Every turn is a
process of its own, the sides alternate, and the first steps of each do not count. A turn has its
pace and its peak memory. --compile adds a third side, the peer by torch.compile.

`contrastive`: SimCSE's twins, [CLS] and no projection, by MultipleNegativesRankingLoss of every
text with itself, in single precision on a CPU. `adaptation`: masked tokens, by the Trainer on full
blocks as its run_mlm.py makes them, beside `clozelab adapt`; bf16 on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

WARM = 10  # steps that are not counted
WINDOWS = 5  # of a turn; its pace is their median, since a peer may compile again in one of them
MOST = 100_000  # steps of a schedule; the clock ends it long before
RATE = 3e-5
SIDES = ("clozelab", "peer", "compiled peer")


def prepare(arguments: argparse.Namespace) -> None:
    """The corpus of the texts, and a BERT for its tokenizer."""
    import clozelab

    work = Path(arguments.work)
    if not (work / "corpus" / "manifest.json").exists():
        clozelab.build_corpus(
            arguments.texts,
            out=work / "corpus",
            layout="lines",
            vocabulary=arguments.vocabulary,
            held_out=0.01,
        )
    if (work / "model" / "config.json").exists():
        return
    import torch
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    from clozelab.text.store import Corpus

    tokenizer = Corpus.open(work / "corpus").tokenizer
    layers, width = (int(number) for number in arguments.size.split("x"))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=max(1, width // 64),
        intermediate_size=4 * width,
        max_position_embeddings=arguments.length,
        pad_token_id=tokenizer.token_to_id("[PAD]"),
    )
    BertForMaskedLM(config).save_pretrained(work / "model")
    names = {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "unk": "[UNK]"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{role}_token": name for role, name in names.items()}
    ).save_pretrained(work / "model")


def ours(arguments: argparse.Namespace, clock: Clock) -> None:
    """Time our steps, as `pretrain` and `adapt` take them."""
    from clozelab.config import recipe as recipes
    from clozelab.pretraining import starting
    from clozelab.pretraining.adaptation import adaptation
    from clozelab.pretraining.trainer import PretrainTrainer
    from clozelab.runs.machine import Machine
    from clozelab.training.feed import ahead
    from clozelab.training.loop import train
    from clozelab.training.world import join

    place, data = f"{arguments.work}/model", f"{arguments.work}/corpus"
    overrides = [f"schedule.batch_size={arguments.batch_size}", f"optimiser.learning_rate={RATE}"]
    if arguments.what == "contrastive":
        overrides += [f"blocks.length={arguments.length}", "objectives.0.projection=false"]
        recipe = recipes.read("simcse", overrides=[*overrides, f"schedule.steps={MOST}"])
        job = starting.continued(recipe, place, data=[data], seed=0, shaped=True)
    else:
        overrides += ["blocks.use=full_sentences"]
        job = adaptation(place, data, changes=overrides, budget=f"{MOST}steps")
    with join() as world:
        trainer = PretrainTrainer(job, Machine(), world)
        jobs = trainer.jobs(0, trainer.steps.start())
        with closing(ahead(jobs, workers=trainer.machine.threads)) as feed:
            for step in train(trainer.train_state, feed, world):
                if clock(arguments.batch_size if arguments.what == "contrastive" else step.tokens):
                    break


def theirs(arguments: argparse.Namespace, clock: Clock) -> None:
    """Time the peer's steps, by its own trainer with its defaults.

    On a GPU, workers load its data, and it drops the shorter batch at the end of a pass, for which
    torch.compile would compile again.
    """
    import torch
    from transformers import TrainerCallback

    cuda = torch.cuda.is_available()

    class Stop(TrainerCallback):
        def on_step_end(self, _: Any, __: Any, control: Any, **more: Any) -> None:
            tokens = arguments.batch_size * arguments.length
            done = clock(arguments.batch_size if arguments.what == "contrastive" else tokens)
            control.should_training_stop |= done

    common = {
        "max_steps": MOST,
        "per_device_train_batch_size": arguments.batch_size,
        "learning_rate": RATE,
        "bf16": cuda,
        "use_cpu": not cuda,
        "torch_compile": arguments.turn == "compiled peer",
        "save_strategy": "no",
        "report_to": [],
        "logging_steps": MOST,
        "disable_tqdm": True,
    }
    if cuda:
        common |= {"dataloader_drop_last": True, "dataloader_persistent_workers": True}
        common["dataloader_num_workers"] = 4
    lines = Path(arguments.texts).read_text("utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        make = contrastive_peer if arguments.what == "contrastive" else adaptation_peer
        make(
            arguments,
            [line for line in lines if line.strip()],
            {**common, "output_dir": folder},
            Stop,
        )


def contrastive_peer(
    arguments: argparse.Namespace, texts: list[str], common: dict[str, Any], stop: Any
) -> None:
    """sentence-transformers: every text is its own positive."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.models import Pooling, Transformer

    body = Transformer(f"{arguments.work}/model", max_seq_length=arguments.length)
    width = body.get_word_embedding_dimension()
    model = SentenceTransformer(modules=[body, Pooling(width, pooling_mode="cls")])
    SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(**common),
        train_dataset=Dataset.from_dict({"anchor": texts, "positive": texts}),
        loss=MultipleNegativesRankingLoss(model, scale=20.0),  # 1 / 0.05, the temperature
        callbacks=[stop()],
    ).train()


def adaptation_peer(
    arguments: argparse.Namespace, texts: list[str], common: dict[str, Any], stop: Any
) -> None:
    """transformers' Trainer on blocks as run_mlm.py makes them."""
    from transformers import (
        AutoModelForMaskedLM,
        AutoTokenizer,
        DataCollatorForLanguageModeling,
        Trainer,
        TrainingArguments,
    )

    tokenizer = AutoTokenizer.from_pretrained(f"{arguments.work}/model")
    ids = [token for row in tokenizer(texts)["input_ids"] for token in row]
    whole = len(ids) // arguments.length * arguments.length
    rows = [
        {"input_ids": ids[at : at + arguments.length]} for at in range(0, whole, arguments.length)
    ]
    Trainer(
        model=AutoModelForMaskedLM.from_pretrained(f"{arguments.work}/model"),
        args=TrainingArguments(**common),
        train_dataset=rows,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
        callbacks=[stop()],
    ).train()


class Clock:
    """Counts the work of steps after the warm-up, window by window, until enough is measured."""

    def __init__(self, seconds: float, memory: Callable[[], float]) -> None:
        self.seconds, self.memory = seconds / WINDOWS, memory
        self.made, self.steps, self.amount, self.total = time.perf_counter(), 0, 0, 0
        self.began, self.worked = 0.0, 0.0
        self.start = 0.0
        self.paces: list[float] = []

    def __call__(self, amount: int) -> bool:
        """Count one more step; returns whether the turn is over."""
        self.steps += 1
        if self.steps <= WARM:
            self.began, self.worked = now(), time.process_time()
            self.start = self.began - self.made
            return False
        self.amount += amount
        if time.perf_counter() - self.began < self.seconds:
            return False
        ended = now()
        self.paces.append(self.amount / (ended - self.began))
        self.total, self.amount, self.began = self.total + self.amount, 0, ended
        return len(self.paces) == WINDOWS

    def summary(self) -> dict[str, float]:
        """The pace, and the seconds of the warm-up."""
        return {
            "pace": median(self.paces),
            # By processor time, which other programs hardly change.
            "pace_of_a_core": self.total / (time.process_time() - self.worked),
            "start_seconds": self.start,
            "steps": self.steps - WARM,
            "memory_gib": self.memory(),
        }


def now() -> float:
    """The time when the GPU has done all that it was given."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def memory() -> float:
    """The peak memory of this process: of the GPU, or else of the machine."""
    import resource

    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def turn(arguments: argparse.Namespace) -> None:
    """One turn of one side, in this process."""
    import torch

    torch.set_num_threads(arguments.threads)
    clock = Clock(arguments.seconds, memory)
    (ours if arguments.turn == SIDES[0] else theirs)(arguments, clock)
    print(json.dumps(clock.summary()), flush=True)


def run_turn(side: str, options: list[str], arguments: argparse.Namespace) -> dict[str, float]:
    """Run a turn in a process of its own."""
    command = [sys.executable, __file__, *options, "--turn", side]
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if out.returncode:
        sys.exit(f"the turn of {side} failed:\n{out.stderr[-2000:]}")
    paces: dict[str, float] = json.loads(out.stdout.strip().splitlines()[-1])
    print(f"{side}: {paces['pace']:,.1f} a second, {paces['memory_gib']:.2f} GiB", flush=True)
    return paces


def main() -> None:
    """Take turns, and record them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("what", choices=["contrastive", "adaptation"])
    parser.add_argument("--texts", required=True, help="a sentence a line")
    parser.add_argument("--out", help="the record")
    parser.add_argument("--work", default="runs/peers", help="for the corpus and the model")
    parser.add_argument("--size", default="2x128", help="LAYERSxWIDTH (2x128)")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--length", type=int, help="tokens of a block (32, or 128 to adapt)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=12.0, help="of a turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--compile", action="store_true", help="and the peer by torch.compile")
    parser.add_argument("--turn", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.length = arguments.length or (32 if arguments.what == "contrastive" else 128)
    if arguments.turn:
        turn(arguments)
        return
    import torch

    from clozelab.files import sha256, write_text
    from clozelab.runs import machine
    from clozelab.runs.directory import machine_facts

    prepare(arguments)
    sides = SIDES if arguments.compile else SIDES[:2]
    turns: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    facts = {
        "machine": {**machine_facts(), **machine.facts(device)},
        "asked": {**vars(arguments), "texts_sha256": sha256(Path(arguments.texts))},
        "unit": "texts a second" if arguments.what == "contrastive" else "tokens a second",
    }
    for _ in range(arguments.turns):
        for side in sides:
            turns[side].append(run_turn(side, sys.argv[1:], arguments))
        summary = summarise(turns)
        if arguments.out:
            record = {**facts, **summary, "turns": turns}
            write_text(Path(arguments.out), json.dumps(record, indent=1) + "\n")
    print(json.dumps(summary))


def summarise(turns: Mapping[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians and the peak memory of every side, and our ratios to the peers."""
    summary: dict[str, Any] = {}
    for name, ratio, of in (
        ("pace", "ratio", median),
        ("pace_of_a_core", "ratio_of_a_core", median),
        ("memory_gib", "memory_ratio", max),
    ):
        values = {side: of([turn[name] for turn in turns[side]]) for side in turns}
        summary[name] = values
        for peer in list(values)[1:]:
            compiled = "compiled_" if peer == "compiled peer" else ""
            summary[f"{compiled}{ratio}"] = values["clozelab"] / values[peer]
    return summary


if __name__ == "__main__":
    main()
