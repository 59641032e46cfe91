"""A training step put together and replayed: recorded forward and backward, the optimizer's rules, the allocator."""

from memsim.simulate.replay import Simulation, replay
from memsim.simulate.script import Request, Script, compose

__all__ = ["Request", "Script", "Simulation", "compose", "replay"]
