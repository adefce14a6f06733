"""On the way in: the tensors of a file under the names of today, and which heads they make up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from clozelab.contracts import UserError
from clozelab.encoder import Transformer
from clozelab.interop.names import Names

# Heads of tasks: they stay behind, said aloud.
_TASKS = (
    "classifier.", "pre_classifier.", "qa_outputs.", "score.", "sequence_summary.", "logits_proj.",
    "start_logits.", "end_logits.", "answer_class.", "multiple_choice_head.", "lm_head.",
)  # fmt: skip
# Buffers that old files hold beside the weights.
_BUFFERS = (".position_ids", ".token_type_ids", ".attn.bias", ".attn.masked_bias")


def cleaned(tensors: Mapping[str, Tensor], names: Names, known: Iterable[str]) -> dict[str, Tensor]:
    """The tensors under the names of today, each once, without buffers."""
    known = {*known, *names.twins}
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(_BUFFERS) or name in ("position_ids", "token_type_ids"):
            continue
        new = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        new = new.replace("LayerNorm.beta", "LayerNorm.bias")
        if new.startswith("ernie."):
            new = new.replace("ernie.", names.prefix, 1)
        if new not in known and names.prefix + new in known:
            new = names.prefix + new
        found[new] = tensor
    for second, first in names.twins.items():
        if second not in found:
            continue
        tensor = found.pop(second)
        if not torch.equal(found.setdefault(first, tensor), tensor):
            raise UserError(
                f"{second}: differs from {first}, and here they are tied; save the encoder alone"
                " (model.base_model.save_pretrained) and import that"
            )
    return found


def without_identity(encoder: Transformer, found: dict[str, Tensor]) -> None:
    """ALBERT always has a projection; where there is nothing to project, it must do nothing."""
    inside = "albert.encoder.embedding_hidden_mapping_in"
    if encoder.embedding != encoder.width or f"{inside}.weight" not in found:
        return
    weight, bias = found.pop(f"{inside}.weight"), found.pop(f"{inside}.bias", None)
    eye = torch.eye(encoder.width).to(weight)
    if not torch.equal(weight, eye) or (bias is not None and bias.any()):
        raise UserError(
            f"{inside}: projects a width onto itself, which no encoder here does; import a"
            " checkpoint whose embedding_size is below its hidden_size"
        )


def present(
    heads: tuple[str, ...], theirs: Mapping[str, tuple[str, ...]], found: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """The heads that are there; of a pair's head the pooler alone is none."""
    present = []
    for head in heads:
        names = {name: theirs[name] for name in theirs if name.startswith(f"heads.{head}.")}
        own = {name for name in names if ".pooler." not in name}
        if any(each in found for name in own for each in names[name]):
            present.append(head)
    return tuple(present)


def stays(name: str, names: Names) -> bool:
    """Whether a tensor is of a head that we do not keep."""
    return name.removeprefix(names.prefix).startswith(("pooler.", *_TASKS))
