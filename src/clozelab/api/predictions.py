"""What a fine-tuned model said of texts, and as lines that other programs read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clozelab.finetuning.examples import Span
    from clozelab.finetuning.kinds import TaskKind

_ENDS = re.compile("[\t\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")  # of a field or of a line


class Predictions(list[Any]):
    """What a fine-tuned model says of each of some examples."""

    def __init__(self, predictions: list[Any], examples: list[Any], kind: type[TaskKind]) -> None:
        super().__init__(predictions)
        self.examples, self.kind = examples, kind

    def lines(self, *, as_json: bool = False) -> Iterator[str]:
        """A line a prediction: fields with tabs between them, or JSON with probabilities."""
        for example, prediction in zip(self.examples, self, strict=True):
            if as_json:
                record = {**_read(self.kind, example), **_named(prediction)}
                yield json.dumps(record, ensure_ascii=False)
            else:
                fields = self.kind.fields(example, prediction)
                yield "\t".join(_ENDS.sub(" ", field) for field in fields)


@dataclass(frozen=True)
class PassageAnswer:
    """The answer to a question, with its rivals, and the passage that it is from."""

    passage: str
    span: Span
    top: int

    @property
    def text(self) -> str:
        """The answer; empty where the passage does not say."""
        return self.span.text


def _read(kind: type[TaskKind], example: Any) -> dict[str, Any]:
    """What the model was given: the example without its label, a text alone by that word."""
    fields = {name: part for name, part in example._asdict().items() if name not in kind.gold}
    if "second" in fields and fields["second"] is None:
        return {"id": fields["id"], "text": fields["first"]}
    return fields


def _named(value: Any) -> Any:
    """A prediction with the names of its fields, as JSON has it."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _named(part) for name, part in value._asdict().items()}
    return [_named(part) for part in value] if isinstance(value, tuple) else value
