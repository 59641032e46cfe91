"""A training step put together and replayed: recorded forward and backward, the optimizer's rules, the allocator."""

from memsim.simulation.replay import Simulation, replay
from memsim.simulation.script import Request, Script, compose, without_gradient

__all__ = ["Request", "Script", "Simulation", "compose", "replay", "without_gradient"]
