"""The optimisers that a recipe may name, and the schedule; both are imported without torch."""

from clozelab.training.optimiser import Adamw, BertAdam, Lamb, Muon, Optimiser
from clozelab.training.schedule import Schedule

PARTS: dict[str, type[Optimiser]] = {
    "adamw": Adamw,
    "bert_adam": BertAdam,
    "lamb": Lamb,
    "muon": Muon,
}

__all__ = ["PARTS", "Optimiser", "Schedule"]
