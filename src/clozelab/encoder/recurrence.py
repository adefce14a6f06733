"""The recurrence of an LSTM with a projection (ELMo §3.1), as one operation and its gradient.

A compiler would unroll hundreds of steps, and automatic gradients would add up the weights' step by
step in the activations' precision; so the loops are opaque to both, and each weight's gradient is
one product over all steps. Shapes: D directions, T steps, B blocks, I cells, W the width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("clozelab::recur", mutates_args=())
def recur(
    inputs: Tensor, states: Tensor, projection: Tensor, clip: float
) -> tuple[Tensor, Tensor, Tensor]:
    """[D, T, B, W] what each step puts out; its gates and cells are for the way back.

    `inputs` [D, T, B, 4I] is the part of the gates (admit, new, keep, let out) that is known
    ahead; `states` [D, W, 4I] makes the rest from the step before, `projection` [D, I, W] the
    output from the cells.
    """
    out, gates, cells = _outputs(inputs, projection)
    state, cell = torch.zeros_like(out[:, 0]), torch.zeros_like(cells[:, 0])
    for step in range(inputs.shape[1]):
        gate = torch.baddbmm(inputs[:, step], state, states)
        admit, new, keep, let = _opened(gate, cell.dtype)
        cell = (keep * cell + admit * new).clamp(-clip, clip)
        ready = (let * cell.tanh()).to(out.dtype)
        state = torch.bmm(ready, projection).clamp(-clip, clip)
        gates[:, step], cells[:, step], out[:, step] = gate, cell, state
    return out, gates, cells


@torch.library.custom_op("clozelab::recur_back", mutates_args=())
def recur_back(
    grad: Tensor,
    out: Tensor,
    gates: Tensor,
    cells: Tensor,
    states: Tensor,
    projection: Tensor,
    clip: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `recur`'s inputs, states and projection; none passes a clipped number."""
    wide, steps = cells.dtype, out.shape[1]
    moved, shown = torch.empty_like(gates), torch.empty_like(out)
    ready = torch.empty_like(cells, dtype=out.dtype)
    state, cell = torch.zeros_like(out[:, 0]), torch.zeros_like(cells[:, 0])
    for step in reversed(range(steps)):
        admit, new, keep, let = _opened(gates[:, step], wide)
        before = cells[:, step - 1] if step else torch.zeros_like(cell)
        spread = cells[:, step].tanh()
        state = (grad[:, step] + state).where(out[:, step].abs() < clip, 0)
        ready[:, step], shown[:, step] = let * spread, state
        grad_out = torch.bmm(state, projection.mT).to(wide)
        cell = cell + grad_out * let * (1 - spread * spread)
        cell = cell.where(cells[:, step].abs() < clip, 0)
        parts = (
            cell * new * admit * (1 - admit),
            cell * admit * (1 - new * new),
            cell * before * keep * (1 - keep),
            grad_out * spread * let * (1 - let),
        )
        moved[:, step] = torch.cat(parts, dim=-1)
        state = torch.bmm(moved[:, step], states.mT)
        cell = cell * keep
    earlier, later = out[:, :-1].flatten(1, 2), moved[:, 1:].flatten(1, 2)
    return (
        moved,
        torch.bmm(earlier.mT, later),
        torch.bmm(ready.flatten(1, 2).mT, shown.flatten(1, 2)),
    )


def _opened(gate: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four gates between 0 and 1; the second, what is new, between -1 and 1."""
    admit, new, keep, let = gate.to(dtype).chunk(4, dim=-1)
    return admit.sigmoid(), new.tanh(), keep.sigmoid(), let.sigmoid()


def _outputs(inputs: Tensor, projection: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Room for what `recur` puts out."""
    shape, (inner, width) = inputs.shape[:3], projection.shape[1:]
    # A cell adds up a whole block, so it has single precision where the rest has half.
    wide = torch.float64 if inputs.dtype == torch.float64 else torch.float32
    cells = inputs.new_empty(*shape, inner, dtype=wide)
    return inputs.new_empty(*shape, width), torch.empty_like(inputs), cells


@recur.register_fake
def _(inputs: Tensor, _: Tensor, projection: Tensor, __: float) -> tuple[Tensor, Tensor, Tensor]:
    return _outputs(inputs, projection)


@recur_back.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    _, _, gates, _, states, projection, _ = arguments
    return torch.empty_like(gates), torch.empty_like(states), torch.empty_like(projection)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, states, projection, ctx.clip = inputs
    ctx.save_for_backward(*output, states, projection)
    ctx.mark_non_differentiable(*output[1:])


def _back(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    return (*recur_back(grad, *ctx.saved_tensors, ctx.clip), None)


recur.register_autograd(_back, setup_context=_keep)
