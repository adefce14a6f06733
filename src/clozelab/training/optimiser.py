"""The optimisers' settings: Adam twice, LAMB (ALBERT §4.1), Muon.

Everywhere `rate` is the peak learning rate, `decay` the decoupled weight decay, which leaves biases
and norms alone unless `decay_all`, and `clip` the largest global gradient norm; 0 is no clipping.
`build` takes a model's named parameters, and for rates of their own the multiple of `rate` that
each name has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from clozelab.errors import UserError

if TYPE_CHECKING:
    from torch.nn import Parameter
    from torch.optim import Optimizer


@dataclass(frozen=True)
class Adamw:
    """Adam with decoupled decay and bias correction."""

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()

    rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-6
    decay: float = 0.01
    decay_all: bool = False
    clip: float = 1.0

    def __post_init__(self) -> None:
        _check(self)

    def build(
        self,
        parameters: Iterable[tuple[str, Parameter]],
        *,
        scale: Callable[[str], float] | None = None,
    ) -> list[Optimizer]:
        """The optimiser over those that train."""
        from clozelab.training.updates import adamw

        return [adamw(self, parameters, scale=scale)]


@dataclass(frozen=True)
class BertAdam:
    """Adam as BERT's code has it: no bias correction, so the first steps are ×3.16 as long."""

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()

    rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-6
    decay: float = 0.01
    decay_all: bool = False
    clip: float = 1.0

    def __post_init__(self) -> None:
        _check(self)

    def build(
        self,
        parameters: Iterable[tuple[str, Parameter]],
        *,
        scale: Callable[[str], float] | None = None,
    ) -> list[Optimizer]:
        """The optimiser over those that train."""
        from clozelab.training.updates import uncorrected

        return [uncorrected(self, parameters, trust=False, scale=scale)]


@dataclass(frozen=True)
class Lamb:
    """Adam's direction, each matrix's step scaled to its norm; biases and norms step as is."""

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()

    rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-6
    decay: float = 0.01
    decay_all: bool = False
    clip: float = 1.0

    def __post_init__(self) -> None:
        _check(self)

    def build(
        self,
        parameters: Iterable[tuple[str, Parameter]],
        *,
        scale: Callable[[str], float] | None = None,
    ) -> list[Optimizer]:
        """The optimiser over those that train."""
        from clozelab.training.updates import uncorrected

        return [uncorrected(self, parameters, trust=True, scale=scale)]


@dataclass(frozen=True)
class Muon:
    """Orthogonalised momentum for the layers' matrices, Adam for everything else.

    `rate` is Adam's, so that it means what it means elsewhere; matrices step by `matrix_rate`.
    """

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()

    rate: float
    matrix_rate: float = 0.02
    momentum: float = 0.95
    iterations: int = 5
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    decay: float = 0.01
    decay_all: bool = False
    clip: float = 1.0

    def __post_init__(self) -> None:
        _check(self)
        if self.matrix_rate <= 0:
            raise UserError(f"matrix_rate = {self.matrix_rate}: must be above 0")
        if not 0 <= self.momentum < 1:
            raise UserError(f"momentum = {self.momentum}: must be at least 0 and below 1")
        if not 1 <= self.iterations < 100:
            raise UserError(f"iterations = {self.iterations}: must be at least 1 and below 100")

    def build(self, parameters: Iterable[tuple[str, Parameter]]) -> list[Optimizer]:
        """Two optimisers: the matrices', and Adam."""
        from clozelab.training.updates import muon

        return muon(self, parameters)


class _Settings(Protocol):
    @property
    def rate(self) -> float: ...
    @property
    def betas(self) -> tuple[float, float]: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def decay(self) -> float: ...
    @property
    def clip(self) -> float: ...


def _check(settings: _Settings) -> None:
    """Refuse what no optimiser can run with."""
    if settings.rate <= 0:
        raise UserError(f"rate = {settings.rate}: must be above 0, for instance 1e-4")
    if not all(0 <= beta < 1 for beta in settings.betas):
        raise UserError(f"betas = {list(settings.betas)}: must each be at least 0 and below 1")
    if settings.epsilon <= 0:
        raise UserError(f"epsilon = {settings.epsilon}: must be above 0, for instance 1e-6")
    if settings.decay < 0:
        raise UserError(f"decay = {settings.decay}: must be at least 0")
    if settings.clip < 0:
        raise UserError(f"clip = {settings.clip}: must be at least 0 (0 is no clipping)")
