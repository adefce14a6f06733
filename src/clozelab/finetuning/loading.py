"""What opening, exporting and importing a fine-tuned model asks of fine-tuning.

The one door by which `models` comes in here, and only for a model that has a task.
"""

from clozelab.finetuning.predict import predict, reader_of
from clozelab.finetuning.taskfile import Assignment, parse, to_toml
from clozelab.finetuning.taskhead import inward, outward
from clozelab.finetuning.tuned import Tuned, build

__all__ = [
    "Assignment",
    "Tuned",
    "build",
    "inward",
    "outward",
    "parse",
    "predict",
    "reader_of",
    "to_toml",
]
