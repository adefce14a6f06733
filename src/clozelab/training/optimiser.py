"""The optimisers' settings: Adam twice, LAMB (ALBERT §4.1), Muon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from clozelab.ranges import BelowOne, NonNegativeFloat, Part, PositiveFloat, above, between

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from clozelab.training.orthogonal import Polynomial
    from clozelab.training.updates import Named, Scale


@dataclass(frozen=True)
class Optimiser(Part):
    """The settings that all optimisers have, and the facts that other modules need."""

    corrects_bias: ClassVar[bool] = True  # of Adam's moments, which begin at zero
    trust_ratio: ClassVar[bool] = False  # a matrix's step is scaled to the matrix's norm
    # The usual range of its peak learning rate in pretraining; None: unknown.
    usual_rates: ClassVar[tuple[float, float] | None] = None

    # The peak.
    learning_rate: Annotated[float, above(0, "must be above 0, for instance 1e-4")]
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    epsilon: Annotated[float, above(0, "must be above 0, for instance 1e-6")] = 1e-6
    weight_decay: NonNegativeFloat = 0.01  # of weights, decoupled
    decay_all: bool = False  # biases and norms, too
    clip: NonNegativeFloat = 1.0  # the largest global gradient norm; 0 is no clipping

    def build(self, parameters: Named, *, scale: Scale | None = None) -> list[Optimizer]:
        """The optimisers of a model's named parameters, of those that require gradients.

        `scale` gives the factor of the learning rate by parameter name.
        """
        from clozelab.training.updates import adam

        return [adam(self, parameters, scale=scale)]

    def product_precision(self, device: torch.device) -> str | None:
        """The precision of its matrix products on a device; None if it computes none."""
        return None


@dataclass(frozen=True)
class Adamw(Optimiser):
    """Adam with decoupled decay and bias correction."""

    usual_rates: ClassVar[tuple[float, float]] = (1e-5, 2e-3)


@dataclass(frozen=True)
class BertAdam(Optimiser):
    """Adam as BERT's code has it: no bias correction, so the first steps are ×3.16 as long."""

    corrects_bias: ClassVar[bool] = False
    usual_rates: ClassVar[tuple[float, float]] = (1e-5, 2e-3)


@dataclass(frozen=True)
class Lamb(Optimiser):
    """Adam's direction, each matrix's step scaled to its norm; biases and norms step as is."""

    corrects_bias: ClassVar[bool] = False
    trust_ratio: ClassVar[bool] = True


@dataclass(frozen=True)
class Muon(Optimiser):
    """Orthogonalised momentum for the layers' matrices, Adam for everything else.

    `learning_rate` is Adam's, so that it means what it means elsewhere.
    """

    betas: tuple[BelowOne, BelowOne] = (0.9, 0.95)
    epsilon: PositiveFloat = 1e-8
    matrix_learning_rate: PositiveFloat = 0.02  # the matrices' learning rate
    momentum: BelowOne = 0.95
    # Of the polynomials that orthogonalise.
    iterations: Annotated[int, between(1, 99, "must be at least 1 and below 100")] = 5
    # "steep": Muon's own in every iteration; "polar_express": for each iteration the best one
    # (arXiv:2505.16932). Recipes name it and what follows only where it is not Muon's.
    polynomial: Literal["steep", "polar_express"] = field(default="steep", metadata={"later": True})
    # The decay of each row's mean square, by which its updates are divided (NorMuon,
    # arXiv:2510.05491; there 0.95); 0: they are not.
    neuron_beta: BelowOne = field(default=0.0, metadata={"later": True})

    def build(self, parameters: Named, *, scale: Scale | None = None) -> list[Optimizer]:
        """Two optimisers: Muon for the matrices, and Adam."""
        from clozelab.training import muon

        return muon.build(self, parameters, scale=scale)

    def polynomials(self) -> Sequence[Polynomial]:
        """The polynomial of each iteration."""
        from clozelab.training.orthogonal import polar_express, steep

        build = polar_express if self.polynomial == "polar_express" else steep
        return build(self.iterations)

    def product_precision(self, device: torch.device) -> str | None:
        """bfloat16 where the device is fast at it, else float32."""
        from clozelab.training.orthogonal import product_dtype

        return str(product_dtype(device)).removeprefix("torch.")
