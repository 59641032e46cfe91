"""Which tensor was seen at which address, and when: that is how blocks are told apart later."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

MAX_DEPTH = 4
"""Nesting of containers that is looked into for tensors."""
WORTH_SEEING_BYTES = 2**16
"""Activations below this are not looked up: they never are among the largest tensors."""


class Sighting(NamedTuple):
    """A storage that was alive at `position`."""

    position: int
    kind: str
    address: int
    nbytes: int
    name: str
    shape: tuple[int, ...] | None
    dtype: str
    op: str


class Sightings:
    """Everything that was seen; it holds addresses, never tensors."""

    def __init__(self, torch: Any, tape: Any, device_type: str = "cuda") -> None:
        self._torch = torch
        self._tape = tape
        self._device_type = device_type
        self.seen: list[Sighting] = []
        self._last: dict[tuple[str, str], tuple[int, int]] = {}
        self._parameter_names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._paths: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._roots: weakref.WeakSet[Any] = weakref.WeakSet()
        self._walked: dict[type, tuple[str, ...]] = {}
        # In an older torch, reading a saved tensor runs its hooks, which would recompute checkpointed layers.
        self._saved_can_be_read = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")

    def path_of(self, module: Any) -> str:
        """Return the module's path from its root; a root's is the name of its class."""
        path: str = self._paths.get(module) or type(module).__name__
        return path

    def learn(self, root: Any) -> None:
        """Take the names of a module that is called from outside any other, unless they are known."""
        if root in self._paths:
            return
        inner = _unwrapped(root)
        prefix = f"{type(inner).__name__}." if self._roots else ""
        self._roots.add(root)
        self._paths[root] = self._paths[inner] = type(inner).__name__
        for name, module in inner.named_modules():
            if name:
                self._paths.setdefault(module, prefix + name)
        for name, parameter in inner.named_parameters():
            self._parameter_names[id(parameter)] = (weakref.ref(parameter), prefix + name)

    def find(self, root: Any, optimizer: Any = None) -> None:
        """See all that a module and its optimizer hold already."""
        self.learn(root)
        self.parameters(root)
        self.gradients(root.parameters())
        if optimizer is not None:
            self.optimizer(optimizer, state=True)

    def parameters(self, root: Any) -> None:
        """See every parameter and buffer of `root`."""
        for parameter in root.parameters():
            self._see_parameter(parameter)
        for name, buffer in root.named_buffers():
            self._see("buffer", name, buffer, steady=True)

    def all_parameters(self) -> Iterator[Any]:
        """Yield the parameters of every module that was ever called."""
        for root in list(self._roots):
            yield from root.parameters()

    def gradients(self, parameters: Iterable[Any]) -> None:
        """See the gradients that exist."""
        for parameter in parameters:
            if parameter.grad is not None:
                self._see("gradient", self._name_of(parameter), parameter.grad, steady=True)

    def optimizer(self, optimizer: Any, *, state: bool) -> None:
        """See what an optimizer trains, its gradients, and with `state` what it keeps."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._see_parameter(parameter)
                self.gradients((parameter,))
        if not state:
            return
        for key, entries in list(optimizer.state.items()):
            owner = self._name_of(key) if isinstance(key, self._torch.Tensor) else str(key)
            for path, tensor in self._tensors_in(entries):
                self._see("optimizer_state", f"{path} of {owner}" if owner else path, tensor, steady=True)

    def values(self, kind: str, value: Any, name: str) -> None:
        """See the tensors of a call's arguments or results."""
        for _, tensor in self._tensors_in(value):
            self._see(kind, name, tensor)

    def made(self, value: Any, function: str) -> None:
        """See the tensors that a function returned, unless they are views of others."""
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, self._torch.Tensor) and not tensor._is_view():
                self._see("made", function, tensor)

    def passed(self, gradients: Any) -> None:
        """See the gradients that a node of backward gets, by their own addresses.

        Asking such a tensor for its storage would be noticed: where gradients meet, PyTorch adds in place only if
        nobody else uses the storage (`InputBuffer::accumulate`, torch/csrc/autograd/input_buffer.cpp @2.13).
        """
        for tensor in gradients:
            if tensor is None or tensor.layout is not self._torch.strided or not self._is_here(tensor):
                continue
            nbytes = tensor.numel() * tensor.element_size()
            if nbytes >= WORTH_SEEING_BYTES and not hasattr(tensor, "__tensor_flatten__"):
                dtype = str(tensor.dtype).removeprefix("torch.")
                here = (tensor.data_ptr(), nbytes, "", tuple(tensor.shape), dtype, "")
                self.seen.append(Sighting(self._tape.position(), "passed", *here))

    def living(self) -> None:
        """See every tensor that Python code holds now."""
        for thing in gc.get_objects():
            if issubclass(type(thing), self._torch.Tensor):
                if issubclass(type(thing), self._torch.nn.Parameter):
                    self._see_parameter(thing)
                else:
                    self._see("tensor", "", thing)

    def tensors_of(self, value: Any) -> Iterator[Any]:
        """Yield the tensors in a value."""
        return (tensor for _, tensor in self._tensors_in(value))

    def owner_of(self, parameter: Any) -> str:
        """Return the path of the module that a parameter belongs to."""
        return self._name_of(parameter).rpartition(".")[0]

    def saved_by(self, node: Any) -> None:
        """See what an autograd node keeps for backward, without unpacking anything that a hook packed."""
        if not self._saved_can_be_read:
            return
        kind = type(node)
        if kind not in self._walked:
            self._walked[kind] = tuple(name for name in dir(node) if name.startswith("_raw_saved_"))
        for name in self._walked[kind]:
            try:
                saved = getattr(node, name)
                items = saved if isinstance(saved, (tuple, list)) else (saved,)
                tensors = [s.data for s in items if s is not None and s.unpack_hook is None]
            except RuntimeError:  # freed by an earlier backward over the same graph
                continue
            for tensor in tensors:
                self._see("saved", "", tensor, op=node.name())

    def _see_parameter(self, parameter: Any) -> None:
        name = self._name_of(parameter)
        self._see("parameter", name, parameter, steady=True)
        # Quantised parameters carry their scales as attributes (bitsandbytes Params4bit.quant_state, Int8Params.SCB).
        for path, tensor in self._tensors_in(getattr(parameter, "__dict__", {})):
            self._see("parameter", f"{name}.{path}", tensor, steady=True)

    def _name_of(self, parameter: Any) -> str:
        reference, name = self._parameter_names.get(id(parameter), (None, ""))
        return name if reference is not None and reference() is parameter else ""

    def _see(self, kind: str, name: str, tensor: Any, *, op: str = "", steady: bool = False) -> None:
        """Note one tensor; `steady`: not again while it stays where it was."""
        try:
            if tensor is None or not self._is_here(tensor):
                return
            if type(tensor).__name__ == "FakeTensor":  # torch.compile's, of no storage
                return
            if hasattr(tensor, "__tensor_flatten__"):
                for attribute in tensor.__tensor_flatten__()[0]:
                    self._see(kind, name, getattr(tensor, attribute), op=op, steady=steady)
                return
            storage = tensor.untyped_storage()
            address, nbytes = storage.data_ptr(), storage.nbytes()
        except (RuntimeError, NotImplementedError, AttributeError):  # no storage: sparse, fake, functional
            return
        if not address or not (steady or nbytes >= WORTH_SEEING_BYTES):
            return
        if steady and name:
            here = (address, id(tensor))
            if self._last.get((kind, name)) == here and kind != "gradient":
                return
            self._last[kind, name] = here
        whole = tensor.numel() * tensor.element_size() == nbytes
        shape = tuple(tensor.shape) if whole else None
        dtype = str(tensor.dtype).removeprefix("torch.") if whole else ""
        self.seen.append(Sighting(self._tape.position(), kind, address, nbytes, name, shape, dtype, op))

    def _is_here(self, tensor: Any) -> bool:
        """Whether a tensor is on the device that is watched."""
        device = tensor.device
        return device.type == self._device_type and device.index in {0, None}

    def _tensors_in(self, value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
        """Yield the tensors in a value, with their path: containers, and objects with attributes."""
        if isinstance(value, self._torch.Tensor):
            yield path, value
            return
        if depth >= MAX_DEPTH or value is None or isinstance(value, (str, bytes, int, float, type)):
            return
        items: Iterable[tuple[Any, Any]]
        if isinstance(value, Mapping):
            items = list(value.items())
        elif isinstance(value, (list, tuple, set)):
            items = enumerate(value)
        elif isinstance(value, self._torch.nn.Module) or not hasattr(value, "__dict__"):
            return
        else:
            items = list(vars(value).items())
        for key, item in items:
            yield from self._tensors_in(item, f"{path}.{key}" if path else str(key), depth + 1)


def _unwrapped(root: Any) -> Any:
    """Return the user's own model inside torch's wrappers (DistributedDataParallel, torch.compile)."""
    while type(root).__name__ in {"DistributedDataParallel", "DataParallel", "OptimizedModule"}:
        root = getattr(root, "_orig_mod", None) or root.module
    return root
