"""The functions of fine-tuning that opening, exporting and importing a fine-tuned model needs.

The only module of fine-tuning that `models` imports, and only for a model that has a task.
"""

from clozelab.finetuning.predict import predict, reader_of
from clozelab.finetuning.task import TunedTask, inward, outward, parse, to_toml
from clozelab.finetuning.tuned import Tuned, build

__all__ = [
    "Tuned",
    "TunedTask",
    "build",
    "inward",
    "outward",
    "parse",
    "predict",
    "reader_of",
    "to_toml",
]
