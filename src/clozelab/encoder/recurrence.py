"""The recurrence of an LSTM with a projection (ELMo §3.1), as one operation and its gradient.

A compiler would unroll hundreds of steps, and autograd would add up the weights' gradients step by
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
    """[D, T, B, W] the output of each step; its gates and cells are for the backward pass.

    `inputs` [D, T, B, 4I] are the input terms of the gates (input, candidate, forget, output);
    `states` [D, W, 4I] computes the recurrent terms, `projection` [D, I, W] the output from the
    cells.
    """
    out, gates, cells = _empty_outputs(inputs, projection)
    state, cell = torch.zeros_like(out[:, 0]), torch.zeros_like(cells[:, 0])
    for step in range(inputs.shape[1]):
        gate = torch.baddbmm(inputs[:, step], state, states)
        admit, new, keep, let = _activate_gates(gate, cell.dtype)
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
    """The gradients of `recur`'s inputs, states and projection; zero through clipped values."""
    wide, steps = cells.dtype, out.shape[1]
    grad_gates, grad_states = torch.empty_like(gates), torch.empty_like(out)
    ready = torch.empty_like(cells, dtype=out.dtype)
    state, cell = torch.zeros_like(out[:, 0]), torch.zeros_like(cells[:, 0])
    for step in reversed(range(steps)):
        admit, new, keep, let = _activate_gates(gates[:, step], wide)
        before = cells[:, step - 1] if step else torch.zeros_like(cell)
        spread = cells[:, step].tanh()
        state = (grad[:, step] + state).where(out[:, step].abs() < clip, 0)
        ready[:, step], grad_states[:, step] = let * spread, state
        grad_out = torch.bmm(state, projection.mT).to(wide)
        cell = cell + grad_out * let * (1 - spread * spread)
        cell = cell.where(cells[:, step].abs() < clip, 0)
        parts = (
            cell * new * admit * (1 - admit),
            cell * admit * (1 - new * new),
            cell * before * keep * (1 - keep),
            grad_out * spread * let * (1 - let),
        )
        grad_gates[:, step] = torch.cat(parts, dim=-1)
        state = torch.bmm(grad_gates[:, step], states.mT)
        cell = cell * keep
    earlier, later = out[:, :-1].flatten(1, 2), grad_gates[:, 1:].flatten(1, 2)
    return (
        grad_gates,
        torch.bmm(earlier.mT, later),
        torch.bmm(ready.flatten(1, 2).mT, grad_states.flatten(1, 2)),
    )


def _activate_gates(gate: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four gates between 0 and 1; the second, the candidate, between -1 and 1."""
    admit, new, keep, let = gate.to(dtype).chunk(4, dim=-1)
    return admit.sigmoid(), new.tanh(), keep.sigmoid(), let.sigmoid()


def _empty_outputs(inputs: Tensor, projection: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors for the outputs of `recur`."""
    shape, (inner, width) = inputs.shape[:3], projection.shape[1:]
    # A cell accumulates over a whole block, so it has at least single precision.
    wide = torch.float64 if inputs.dtype == torch.float64 else torch.float32
    cells = inputs.new_empty(*shape, inner, dtype=wide)
    return inputs.new_empty(*shape, width), torch.empty_like(inputs), cells


@recur.register_fake
def _(inputs: Tensor, _: Tensor, projection: Tensor, __: float) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_outputs(inputs, projection)


@recur_back.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    _, _, gates, _, states, projection, _ = arguments
    return torch.empty_like(gates), torch.empty_like(states), torch.empty_like(projection)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, states, projection, ctx.clip = inputs
    ctx.save_for_backward(*output, states, projection)
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    return (*recur_back(grad, *ctx.saved_tensors, ctx.clip), None)


recur.register_autograd(_backward, setup_context=_save_for_backward)
