"""The words of the command line: commands, arguments, and their help."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from clozelab.errors import UserError
from clozelab.nearest import nearest, remedy

_DIGITS = 18  # of a number that 64 bits hold
_MOST = 4096  # workers, or runs


class _Parser(argparse.ArgumentParser):
    """Answers a mistake as all of clozelab does, in one sentence, with the word that was meant."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """The arguments; what a command does not know is refused here, where its options are."""
        known, others = super().parse_known_args(args, namespace)
        if others:
            option = others[0].partition("=")[0]
            meant = nearest(option, self._option_string_actions) if option[0:1] == "-" else None
            hint = f"did you mean {meant}?" if meant else f"leave it out, or see {self.prog} --help"
            what = "is no option" if option[0:1] == "-" else "is one word too many"
            raise UserError(f"{option}: {what} of {self.prog}; {hint}")
        return known, others

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        name = action.option_strings[-1] if action.option_strings else self.prog
        raise UserError(f"{name} {value}: is unknown; {remedy(value, action.choices)}")


def parser() -> argparse.ArgumentParser:
    """The parser; each command leaves its name in `command`."""
    words: argparse.ArgumentParser = _Parser(
        prog="clozelab",
        description="Pretrain, fine-tune, distil and compare the BERT family of encoders.",
    )
    words.add_argument(
        "--version",
        dest="command",
        action="store_const",
        const="version",
        help="of clozelab, Python and torch",
    )
    verbs = words.add_subparsers(metavar="COMMAND")
    _add_corpus(verbs)
    verb = _verb(verbs, "show", "a recipe resolved, with its parts and their parameters")
    verb.add_argument("recipe", nargs="?", help="a name or a TOML file; none lists the names")
    verb.add_argument("--size", help="tiny, mini, small, LAYERSxWIDTH, or a released size")
    verb.add_argument("--toml", action="store_true", help="print it as a complete recipe file")
    _add_set(verb)
    verb = _verb(verbs, "diff", "what two recipes do differently")
    verb.add_argument("a")
    verb.add_argument("b")
    verb = _verb(verbs, "mask", "see, in colour, what a recipe hides in a text")
    verb.add_argument("recipe")
    verb.add_argument("text", help="the text, or - for standard input")
    verb.add_argument("--epoch", type=_count, help="one epoch; several are shown without it")
    verb.add_argument("--corpus", help="take the tokenizer and the counts from this corpus")
    verb.add_argument("--seed", type=_count, default=0)
    _add_set(verb)
    verb = _verb(verbs, "blocks", "what a recipe's blocks look like, with pair labels")
    verb.add_argument("recipe")
    verb.add_argument("--corpus", required=True)
    verb.add_argument("--count", type=_count, default=3, help="how many to show (3)")
    verb.add_argument("--number", type=_count, default=0, help="the first to show (0)")
    verb.add_argument("--size", help="as in show")
    verb.add_argument("--part", default="train", help="train or held_out")
    verb.add_argument("--epoch", type=_count, default=0)
    verb.add_argument("--seed", type=_count, default=0)
    _add_set(verb)
    _add_training(verbs)
    _add_tasks(verbs)
    _add_study(verbs)
    _add_models(verbs)
    verb = _verb(verbs, "report", "a page about runs: tables, curves, scores with intervals")
    verb.add_argument(
        "runs", nargs="+", help="folders of runs and fine-tunings, or of such; or one study's"
    )
    verb.add_argument("--out", required=True, help="PAGE.html, which needs nothing else, or .md")
    _add_overwrite(verb)
    verb.add_argument("--title", help="(Runs; a study's own)")
    verb.add_argument(
        "--follow", action="store_true", help="write it anew every few seconds until they are done"
    )
    _add_bench(verbs)
    verb = _verb(verbs, "demo", "the embedded text, from raw to two encoders and a task")
    verb.add_argument("--out", default="demo", help="where to work (demo/)")
    verb.add_argument("--budget", default="40s", help="for each of them (40s)")
    return words


def _add_corpus(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    corpus = verbs.add_parser("corpus", help="build, show or check a corpus")
    kinds = corpus.add_subparsers(required=True, metavar="COMMAND")
    verb = _verb(kinds, "corpus build", "text → tokenizer → a store to train from")
    verb.add_argument(
        "input", nargs="+", help="files, folders, patterns, - (standard input), hf:OWNER/NAME"
    )
    verb.add_argument("--out", required=True, help="the folder to make")
    group = verb.add_argument_group("tokenizer")
    group.add_argument(
        "--tokenizer", help="wordpiece (default), byte_bpe, char_bpe, unigram, chars"
    )
    group.add_argument("--vocabulary", type=_count, help="how many ids (30,000)")
    group.add_argument("--cased", action=argparse.BooleanOptionalAction, help="keep capitals")
    group.add_argument(
        "--tokenizer-from", metavar="MODEL", help="a run, folder or file with a trained tokenizer"
    )
    group.add_argument(
        "--extend", type=_count, metavar="N", help="teach that tokenizer up to N words of the text"
    )
    group.add_argument("--recipe", help="train the tokenizer that this recipe asks for")
    group = verb.add_argument_group("reading")
    group.add_argument(
        "--layout",
        choices=("auto", "prose", "sentences", "lines"),
        default="auto",
        help="of text files: prose, a sentence a line with blank lines between documents, or a"
        " document a line",
    )
    group.add_argument("--field", default="text", help="of JSON lines and tables, CSV too (text)")
    group.add_argument("--split", default="train", help="of a dataset (train)")
    group.add_argument("--encoding", default="utf-8", help="of text files (utf-8)")
    group.add_argument("--sentences", choices=("auto", "nupunkt", "plain"), default="auto")
    group = verb.add_argument_group("units and documents")
    group.add_argument("--phrases", action="store_true", help="mine phrases, for knowledge masking")
    group.add_argument("--entities", help="a file of names, one a line, for knowledge masking")
    group.add_argument("--spans", help="a TSV of document, start, end, kind, for the same")
    group.add_argument("--no-segmentation", action="store_true", help="leave Chinese unsegmented")
    group.add_argument("--unique", action="store_true", help="leave out documents that repeat")
    group.add_argument("--held-out", type=float, default=0.01, help="share of the tokens (0.01)")
    group.add_argument("--words", type=_count, default=30_000, help="whole words kept for ELMo")
    group.add_argument("--workers", type=_few, help="processes (one a core)")
    verb = _verb(kinds, "corpus show", "what is in a corpus")
    verb.add_argument("corpus")
    verb = _verb(kinds, "corpus check", "compare every byte of a corpus with its manifest")
    verb.add_argument("corpus")


def _add_training(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = _verb(verbs, "pretrain", "train an encoder, or go on with a run")
    verb.add_argument("recipe", nargs="?", help="a name or a TOML file")
    verb.add_argument("--out", help="the run's folder")
    verb.add_argument("--resume", metavar="RUN", help="go on with this run, as it was started")
    verb.add_argument(
        "--from",
        dest="start",
        metavar="MODEL",
        help="begin with the weights of a run, a Hugging Face directory or a hub name",
    )
    _add_run(verb)
    verb = _verb(verbs, "distil", "train a student under a teacher")
    verb.add_argument("teacher", help="a run, a Hugging Face directory or a hub name")
    verb.add_argument("--recipe", default="distilbert", help="of the student (distilbert)")
    verb.add_argument("--out", required=True, help="the run's folder")
    _add_run(verb)
    verb = _verb(verbs, "evaluate", "a fine-tuned model's scores, or losses on held-out text")
    verb.add_argument("model", help="a run, a Hugging Face directory or a hub name")
    verb.add_argument("task", nargs="?", help="a known task or a labelled file")
    verb.add_argument("--split", default="dev", help="of the task, if it has labels (dev)")
    _add_task_data(verb)
    verb.add_argument("--data", metavar="CORPUS", help="measure losses on its held-out text")
    verb.add_argument(
        "--pairs",
        choices=("next", "order"),
        help="ask a pair objective about next sentences, or about their order",
    )
    verb.add_argument("--masks", metavar="RECIPE", help="hide what that recipe would (its own)")
    verb.add_argument("--blocks", type=_count, default=1024, help="how many blocks (1,024)")
    verb.add_argument(
        "--out",
        metavar="FILE.json",
        help="record what came out, digests of the data, the commit",
    )
    _add_overwrite(verb)
    verb.add_argument("--device", choices=("cpu", "cuda"))


def _add_bench(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = _verb(verbs, "bench", "how fast training is on this machine, and beside transformers")
    verb.add_argument("recipes", nargs="*", help="names or TOML files (what suits the machine)")
    _add_data(verb)
    verb.add_argument("--size", help="as in show")
    verb.add_argument("--sequences", type=_count, metavar="N", help="of a step (what suits it)")
    verb.add_argument("--length", type=_count, metavar="L", help="tokens of a block")
    verb.add_argument("--steps", type=_count, metavar="N", help="timed for each (turns of 2 s)")
    verb.add_argument("--against", metavar="PEER", help="transformers: the same work by it")
    verb.add_argument("--out", metavar="FILE.json", help="write every number there")
    _add_overwrite(verb)
    _add_set(verb)
    _add_machine(verb)


def _add_tasks(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = _verb(verbs, "tasks", "the tasks that go by name, and where their files should lie")
    verb.add_argument("name", nargs="?", help="one of them, in full")
    verb = _verb(verbs, "finetune", "fit a model to a task, with seeds and grids")
    verb.add_argument("model", help="a run, a Hugging Face directory or a hub name")
    verb.add_argument(
        "task",
        help="a known task (see clozelab tasks), or for one's own files: classify, regress,"
        " pairs, tag, answer, choose, coreference",
    )
    verb.add_argument("--out", metavar="DIR", help="the folder to make (MODEL-TASK)")
    group = verb.add_argument_group("data")
    _add_task_data(group)
    group.add_argument("--train", metavar="FILE", help=".tsv .csv .jsonl .parquet … or hf:NAME")
    group.add_argument("--dev", metavar="FILE", help="by which the best model is chosen")
    group = verb.add_argument_group("how it learns")
    group.add_argument(
        "--protocol", metavar="NAME", help="or a TOML file (that of the model's recipe)"
    )
    group.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change the protocol once"
    )
    group.add_argument("--after", metavar="TASK", help="fit it to this task first")
    group.add_argument("--teacher", metavar="RUN", help="learn from this fine-tuned model as well")
    group.add_argument("--fresh", action="store_true", help="random weights in the model's place")
    group = verb.add_argument_group("several runs, of which the best on dev is taken")
    group.add_argument("--seeds", type=_few, default=1, metavar="N", help="how many runs (1)")
    group.add_argument("--seed", type=_count, default=0, metavar="N", help="the first one's (0)")
    group.add_argument(
        "--grid", nargs="*", metavar="KEY=A,B", help="every combination; none given: the protocol's"
    )
    group.add_argument("--at-once", type=_few, default=1, metavar="N", help="side by side (1)")
    _add_machine(verb)
    verb = _verb(verbs, "predict", "what a fine-tuned model says of texts")
    verb.add_argument("model", help="a fine-tuned run")
    verb.add_argument("--text", action="append", default=[], help="a text; twice for a pair")
    verb.add_argument(
        "--file", help=".txt with a text a line (a tab between two), or a table (standard input)"
    )
    verb.add_argument("--task", help="a known task, for a submission")
    verb.add_argument("--split", help="of the task (test)")
    verb.add_argument("--out", help="a file, or with --task the folder of the submission")
    _add_overwrite(verb)
    verb.add_argument("--json", action="store_true", help="JSON lines with every probability")
    _add_task_data(verb)
    verb.add_argument("--device", choices=("cpu", "cuda"))
    verb = _verb(verbs, "answer", "the answer to a question, from a passage")
    verb.add_argument("model", help="a run fine-tuned to answer")
    verb.add_argument("--question", required=True)
    verb.add_argument("--passage", required=True, help="the text, or - for standard input")
    verb.add_argument("--top", type=_count, default=3, help="candidates to show (3)")
    verb.add_argument("--device", choices=("cpu", "cuda"))


def _add_study(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = _verb(verbs, "study", "a table of a paper as an experiment, with seeds and a page")
    verb.add_argument("name", nargs="?", help="a name or a TOML file; none lists the names")
    _add_data(verb)
    verb.add_argument("--out", metavar="DIR", help="the study's folder; the same one goes on")
    verb.add_argument("--plan", action="store_true", help="show what would be run, and run nothing")
    verb.add_argument("--size", help="as in show")
    verb.add_argument(
        "--budget", help="30m for all of it, or 300Mtok or 2000steps for each of its runs"
    )
    verb.add_argument("--seeds", type=_few, metavar="N", help="how many (what the study says)")
    verb.add_argument("--variants", metavar="A,B", help="some of them (all)")
    verb.add_argument(
        "--tasks", nargs="*", metavar="TASK", help="known ones, or KIND=DIR with train.* and dev.*"
    )
    verb.add_argument("--task-data", metavar="DIR", help="where known tasks lie (CLOZELAB_DATA)")
    _add_set(verb)
    verb.add_argument(
        "--tune",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change how all are fine-tuned, as in epochs=1, or squad1.epochs=1 for one task",
    )
    verb.add_argument("--keep-models", action="store_true", help="keep fine-tuned weights as well")
    group = _add_machine(verb)
    group.add_argument(
        "--at-once", type=_few, metavar="N", help="side by side (1; of narrow models on a GPU 4)"
    )
    group.add_argument("--on", metavar="CLUSTER", help="ray://HOST:PORT or local, with Ray")


def _add_task_data(verb: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    verb.add_argument("--task-data", metavar="DIR", help="where known tasks lie (CLOZELAB_DATA)")
    verb.add_argument(
        "--columns",
        action="append",
        default=[],
        metavar="ROLE=COLUMN",
        help="of one's own files: first, second, label, … by name or number",
    )


def _add_models(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    model = "a run, a checkpoint, a Hugging Face directory or a hub name"
    verb = _verb(verbs, "export", "a model as a Hugging Face directory, or as an ONNX graph")
    verb.add_argument("model", help=model)
    verb.add_argument("out", help="the folder to make")
    verb.add_argument("--onnx", action="store_true", help="write model.onnx and tokenizer.json")
    verb.add_argument("--family", help="of transformers' classes, such as bert (what fits)")
    verb = _verb(verbs, "import", "a Hugging Face model as a run, which every command takes")
    verb.add_argument("model", help="a Hugging Face directory or a hub name")
    verb.add_argument("out", help="the run's folder")
    verb = _verb(verbs, "fill", "what a model would put into the blanks of a text")
    verb.add_argument("model", help=model)
    verb.add_argument("text", help="with [MASK] for every blank, or - for standard input")
    verb.add_argument("--top", type=_count, default=5, help="guesses for each blank (5)")
    verb.add_argument("--device", choices=("cpu", "cuda"))
    verb = _verb(verbs, "embed", "the vectors of texts, in a file of numpy")
    verb.add_argument("model", help=model)
    verb.add_argument("text", nargs="*", help="texts, or - for standard input, one a line")
    verb.add_argument("--file", help="a file with one text a line")
    verb.add_argument("--out", required=True, metavar="FILE.npz")
    _add_overwrite(verb)
    verb.add_argument(
        "--layer", default="last", help="0 is the embedding, -1 or last the last, or all (last)"
    )
    verb.add_argument(
        "--words",
        choices=("first", "mean", "none"),
        help="a vector for each word, by its first piece or their mean (mean), or for each token",
    )
    verb.add_argument(
        "--pool",
        choices=("cls", "mean", "none"),
        default="none",
        help="one vector for each text: its [CLS], or the mean of its tokens (none)",
    )
    verb.add_argument("--device", choices=("cpu", "cuda"))


def _add_data(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="CORPUS[:WEIGHT]",
        help="a corpus; several are mixed by their size times their weight",
    )


def _add_run(verb: argparse.ArgumentParser) -> None:
    _add_data(verb)
    verb.add_argument("--size", help="as in show")
    verb.add_argument(
        "--budget",
        help="20m, 300Mtok or 12steps; the schedule is fitted to it, and to the pace as it goes",
    )
    verb.add_argument("--seed", type=_count, help="of weights, order, masks and dropout (0)")
    _add_set(verb)
    group = verb.add_argument_group("watching, in steps")
    group.add_argument("--save-every", type=_count, metavar="N", help="0: at the end (total/10)")
    group.add_argument("--keep", type=_count, help="checkpoints to keep, 0 for all (2)")
    group.add_argument("--evaluate-every", type=_count, metavar="N", help="held out (total/10)")
    group.add_argument(
        "--evaluate-blocks", type=_count, default=1024, metavar="N", help="held out (1,024)"
    )
    group.add_argument("--tensorboard", action="store_true", help="write curves there as well")
    group = _add_machine(verb)
    group.add_argument(
        "--shard",
        action=argparse.BooleanOptionalAction,
        help="share the weights out, under torchrun",
    )


def _add_machine(verb: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = verb.add_argument_group(
        "machine",
        "These change the speed. --precision changes the arithmetic as well, and with dropout"
        " --micro-batch changes what is dropped; without dropout no split changes a gradient.",
    )
    group.add_argument("--device", choices=("cpu", "cuda"))
    group.add_argument("--precision", metavar="TYPE", help="fp32, bf16 or fp16 (bf16 on a GPU)")
    group.add_argument("--micro-batch", type=_count, metavar="N", help="full sequences at a time")
    group.add_argument("--workers", type=_few, metavar="N", help="threads that prepare steps (1)")
    switch = argparse.BooleanOptionalAction
    group.add_argument("--compile", action=switch, help="(on a GPU)")
    group.add_argument("--kernels", action=switch, help="our own, in a compiled model (on a GPU)")
    group.add_argument("--graphs", action=switch, help="replay compiled steps (narrow models)")
    group.add_argument("--recompute", action=switch, help="less memory, more time")
    return group


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
    command: str,
    told: str,
) -> argparse.ArgumentParser:
    name = command.rsplit(" ", 1)[-1]
    verb = verbs.add_parser(name, help=told, description=told[0].upper() + told[1:] + ".")
    verb.set_defaults(command=command)
    return verb


def _add_overwrite(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--overwrite", action="store_true", help="replace the file if it is there")


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change the recipe once"
    )


def _count(word: str) -> int:
    digits = word.replace("_", "").replace(",", "")
    if not (digits.isascii() and digits.isdigit()):
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number from 0 up")
    if len(digits) > _DIGITS:
        raise argparse.ArgumentTypeError(f"{word!r} is larger than anything here")
    return int(digits)


def _few(word: str) -> int:
    """Of what each costs a process, a thread or a run."""
    number = _count(word)
    if number > _MOST:
        raise argparse.ArgumentTypeError(f"{word!r} is more than {_MOST:,}")
    return number
