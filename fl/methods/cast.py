"""Who plays what: the part a method gives each client before the run starts."""

from dataclasses import dataclass

from fl.training.config import LocalConfig


@dataclass(frozen=True)
class Part:
    """A client's role, and how it trains."""

    role: str
    training: LocalConfig
