"""The doctor: what is wrong or normal with a run, a folder of transformers, or a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clozelab.api.watching import Watch
from clozelab.errors import UserError
from clozelab.options import Data, Place, command, refuse_given
from clozelab.runs.options import Device

if TYPE_CHECKING:
    from clozelab.diagnosis.case import Case
    from clozelab.diagnosis.result import Diagnosis


@command
def doctor(
    model: Place | None = None,
    *,
    data: Data = (),
    measure: bool = False,
    blocks: int | None = None,
    json: bool = False,
    device: Device | None = None,
    watch: Watch,
) -> Diagnosis:
    """Diagnose a run, a Hugging Face directory or a corpus: what is wrong and what is normal.

    Each finding shows its evidence. A problem also has a likely cause and one change to try. The
    run may be finished or still training. The doctor reads its records and its embedding weights.

    Args:
        model (RUN): a run, a corpus, or a Hugging Face directory with trainer_state.json, weights
            or a tokenizer
        data: the training text (the run's own corpora, if they are still there); without a model,
            the corpus itself is diagnosed
        measure: also run the model on held-out text and check its predictions
        blocks: held-out blocks for --measure (256)
        json: print JSON instead of text
    """
    from clozelab import files
    from clozelab.diagnosis.examine import examine

    if model is None and not data:
        raise UserError("doctor needs a run, a Hugging Face directory, or --data CORPUS")
    if model is not None and files.kind_of(Path(model)) == "corpus":
        if data:
            raise UserError(f"{model}: is a corpus, not a model; leave --data out, or name a model")
        data, model = [model], None
    if not measure:
        refuse_given({"--blocks": blocks, "--device": device}, "works only with --measure")
    blocks = 256 if blocks is None else blocks
    if measure and (model is None or not blocks):
        raise UserError("--measure: needs a model, and at least one block to run it on")
    case = _read(model, data)
    if case.recipe is not None and case.text is not None:
        from clozelab.pretraining.masks import masked_share
        from clozelab.text.store import Corpus

        share = masked_share(case.recipe, Corpus.open(case.text.place, trusting=True))
        case = replace(case, masked_share=share)
    if measure:
        case = _measured(case, blocks=blocks, device=device, watch=watch)
    return examine(case)


def _read(model: str | None, data: Sequence[str]) -> Case:
    """The records of whatever is named."""
    from clozelab.diagnosis import foreign, reading

    if model is None:
        return reading.read_corpus(data)
    path = Path(model)
    if not path.is_dir():
        problem = "is a file" if path.exists() else "does not exist"
        raise UserError(
            f"{model}: {problem}; name a run, a corpus, or a Hugging Face directory on this machine"
        )
    if not (path / "recipe.toml").exists() and foreign.is_folder(path):
        return foreign.read_folder(model, data)
    return reading.read_run(model, data)


def _measured(case: Case, *, blocks: int, device: str | None, watch: Watch) -> Case:
    """The case with what its model makes of held-out text."""
    from clozelab.diagnosis.reading import measured

    if case.text is None:
        raise UserError(f"{case.place}: --measure needs a corpus; name it with --data CORPUS")
    if not case.predicts_masks:
        raise UserError(
            f"{case.place}: --measure works only with models that predict masked tokens; leave"
            " it out"
        )
    watch.say(
        f"{case.place}: measuring the model on {blocks:,} held-out blocks of {case.text.place}"
    )
    from clozelab.pretraining.held_out import follow
    from clozelab.runs.events import means

    work = follow(case.place, case.text.place, blocks=blocks, device=device)
    return measured(case, means(watch.drain(work, "evaluating", blocks)))
