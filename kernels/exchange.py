"""The exchange: what a rank owns and calls, to gather with the other ranks of its host.

An exchange owns staging memory, flags and epoch counters on one device, and knows the peers' staging. Its calls run
on torch's current stream, eagerly or under graph capture, in any mixture, as long as every rank makes the same calls
in the same order; the epochs that keep them apart live in device memory. Both kernels have staging of their own, so
neither's epochs depend on the other's calls. Everything is loaded before the first call: loading waits for running
kernels, and a kernel that waits for a peer would never end.

``simulate`` makes all ranks in this process on one device, a stream each, for tests. ``connect`` makes the rank of
this process, of one process per rank, over a ``torch.distributed`` group. The memory is shared by legacy CUDA IPC:
it works between any two GPUs of a host that can reach each other and between two processes on one GPU, where torch's
symmetric memory refuses; between GPUs both map the same memory, and the kernels see no difference.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from kreg.errors import LaunchError
from kreg.launch import Launch, check_tensor, on_current_stream, prepare
from kreg.loader import LoadedKernel
from kreg.memory import DeviceMemory, PeerMemory

from ._device.layout import (
    DOWN_BYTES,
    EXPERTS,
    FUSED_CTAS,
    PACK_BYTES,
    PAIR_CTAS,
    ROUTER_BYTES,
    TOP,
    fused_slot_bytes,
    slot_bytes,
    staging_bytes,
)

_ALIGNMENT = 256
_LAUNCHES_KEPT = 256
MODEL_ROWS = 8
"""Rows of the model's sizes that an exchange has room for by default."""


class PeerTimeoutError(LaunchError):
    """A bounded wait ran out. ``missing`` lists the ranks that did not come."""

    def __init__(self, message: str, missing: Sequence[int]) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class _Plan:
    """Where things lie in a rank's memory, in bytes from its start; the same on every rank."""

    def __init__(self, *, world_size: int, transport: str, payload_bytes: int) -> None:
        self.has_fused = (ROUTER_BYTES // PACK_BYTES) % world_size == 0
        self.slot = slot_bytes(transport=transport, world_size=world_size, payload_bytes=payload_bytes)
        fused = fused_slot_bytes(transport=transport, world_size=world_size) if self.has_fused else 0
        sizes = [
            staging_bytes(transport=transport, world_size=world_size, slot=slot, ctas=ctas)
            for slot, ctas in ((self.slot, PAIR_CTAS), (fused, FUSED_CTAS))
        ]
        self.fused = _align(sizes[0])
        self.plain_epochs = _align(self.fused + sizes[1])
        self.fused_epochs = self.plain_epochs + 4 * PAIR_CTAS
        self.status = self.fused_epochs + 4 * FUSED_CTAS
        self.size = self.status + 4


def _align(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


class Exchange:
    """One rank's end. Made by ``simulate`` or ``connect``; to be closed by every rank.

    ``rank`` of ``world_size``, ``transport`` (``pull`` or ``push``), ``device`` (an ordinal).
    """

    def __init__(
        self,
        *,
        rank: int,
        transport: str,
        plan: _Plan,
        memory: DeviceMemory,
        bases: Sequence[int],
        close: Callable[[], None],
        selection: str,
    ) -> None:
        self.rank = rank
        self.world_size = len(bases)
        self.transport = transport
        self.device = memory.device
        self._plan = plan
        self._memory = memory
        self._bases = [*bases[rank:], *bases[:rank]]
        self._close = close
        self._is_closed = False
        self._calls: dict[tuple[int, ...], Callable[..., None]] = {}
        variant = {"world_size": self.world_size, "transport": transport}
        self._plain = _loaded("all_gather_pair", self.device, **variant)
        self._fused = (
            _loaded("all_gather_pair_kimi_topk", self.device, **variant, selection=selection)
            if plan.has_fused
            else None
        )

    @classmethod
    def simulate(
        cls,
        world_size: int,
        transport: str,
        *,
        device: int = 0,
        payload_bytes: int | None = None,
        selection: str = "bound_rank",
    ) -> list[Exchange]:
        """Make all ranks in this process on one device.

        Launch each rank on a stream of its own, and note that kernels of different streams that wait for each other
        need a hardware queue each: set ``CUDA_DEVICE_MAX_CONNECTIONS=32`` for more than 8.
        """
        plan = _plan(world_size, transport, payload_bytes)
        memories = [DeviceMemory(device, plan.size) for _ in range(world_size)]
        bases = [memory.address for memory in memories]
        return [
            cls(
                rank=rank,
                transport=transport,
                plan=plan,
                memory=memory,
                bases=bases,
                close=memory.free,
                selection=selection,
            )
            for rank, memory in enumerate(memories)
        ]

    @classmethod
    def connect(
        cls,
        transport: str,
        *,
        group: dist.ProcessGroup | None = None,
        device: int | None = None,
        payload_bytes: int | None = None,
        selection: str = "bound_rank",
    ) -> Exchange:
        """Make this process's rank of a ``torch.distributed`` group; every process of the group calls it.

        Raises ``LaunchError`` if the ranks are on several hosts or do not agree on what to make.
        """
        rank, world_size = dist.get_rank(group), dist.get_world_size(group)
        plan = _plan(world_size, transport, payload_bytes)
        memory = DeviceMemory(torch.cuda.current_device() if device is None else device, plan.size)
        facts = (platform.node(), transport, plan.size, memory.export())
        found: list[tuple[str, str, int, bytes]] = [facts] * world_size
        dist.all_gather_object(found, facts, group=group)
        for other, theirs in enumerate(found):
            if theirs[:3] != facts[:3]:
                raise LaunchError(f"rank {rank} has {facts[:3]} (host, transport, bytes), rank {other} {theirs[:3]}")
        opened = {r: PeerMemory(memory.device, found[r][3]) for r in range(world_size) if r != rank}
        bases = [memory.address if r == rank else opened[r].address for r in range(world_size)]

        def close() -> None:
            torch.cuda.synchronize(memory.device)
            dist.barrier(group)  # Nobody unmaps or frees while another still uses it.
            for peer in opened.values():
                peer.close()
            dist.barrier(group)
            memory.free()

        exchange = cls(
            rank=rank,
            transport=transport,
            plan=plan,
            memory=memory,
            bases=bases,
            close=close,
            selection=selection,
        )
        dist.barrier(group)  # A peer's first packet must not come before this rank's memory is cleared and loaded.
        return exchange

    def all_gather_pair(
        self,
        first: torch.Tensor,
        second: torch.Tensor,
        out: tuple[torch.Tensor, torch.Tensor] | None = None,
        *,
        timeout: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather ``first`` [batch, n1] and ``second`` [batch, n2] of every rank along the rows, in rank order.

        Any dtypes; rows of a multiple of 16 bytes. Returns [batch, world_size * n1] and [batch, world_size * n2], in
        the tensors of ``out`` if given. With ``timeout``, in seconds, waits for the result and raises
        ``PeerTimeoutError`` that names the missing ranks. Raises ``LaunchError`` that names the argument.
        """
        batch = first.shape[0]
        inputs = [self._check_slice("first", first, batch), self._check_slice("second", second, batch)]
        if out is None:
            out = (self._new_output(first), self._new_output(second))
        outputs = [
            check_tensor(name, made, source.dtype, (batch, self.world_size * source.shape[1]), self.device)
            for name, made, source in (("out[0]", out[0], first), ("out[1]", out[1], second))
        ]
        packs = [tensor.shape[1] * tensor.element_size() // PACK_BYTES for tensor in (first, second)]
        call = self._plain_call((batch, *packs, _nanoseconds(timeout)))
        self._run(call, (*inputs, *outputs), timeout)
        return out

    def all_gather_pair_kimi_topk(
        self,
        down: torch.Tensor,
        router: torch.Tensor,
        bias: torch.Tensor,
        out: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
        *,
        timeout: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gather ``down`` and select 16 experts by the gathered router row, in one launch.

        ``down`` bf16 [1, 3584 / world_size] and ``router`` f32 [1, 896 / world_size] are this rank's slices, ``bias``
        f32 [896]. Returns ``down`` bf16 [1, 3584], ``weights`` f32 [1, 16] and ``ids`` i32 [1, 16], in the tensors of
        ``out`` if given. ``timeout`` and errors as in ``all_gather_pair``.
        """
        if self._fused is None:
            raise LaunchError(f"the router row's 224 packs do not divide by a world of {self.world_size}")
        width = DOWN_BYTES // 2
        if out is None:
            out = (
                down.new_empty((1, width)),
                bias.new_empty((1, TOP)),
                torch.empty((1, TOP), dtype=torch.int32, device=bias.device),
            )
        addresses = (
            check_tensor("down", down, torch.bfloat16, (1, width // self.world_size), self.device),
            check_tensor("router", router, torch.float32, (1, EXPERTS // self.world_size), self.device),
            check_tensor("bias", bias, torch.float32, (EXPERTS,), self.device),
            check_tensor("out[0]", out[0], torch.bfloat16, (1, width), self.device),
            check_tensor("out[1]", out[1], torch.float32, (1, TOP), self.device),
            check_tensor("out[2]", out[2], torch.int32, (1, TOP), self.device),
        )
        self._run(self._fused_call(_nanoseconds(timeout)), addresses, timeout)
        return out

    def missing(self) -> list[int]:
        """Return the ranks that bounded waits have missed. Waits for all work on the device."""
        bits = int.from_bytes(self._memory.read(self._plan.status, 4), "little")
        return [rank for rank in range(self.world_size) if bits >> rank & 1]

    def close(self) -> None:
        """Give the memory back; of ``connect``ed ranks all must call it.

        After a ``PeerTimeoutError`` the memory stays: a late peer may still write to it.
        """
        if not self._is_closed:
            self._is_closed = True
            if not self.missing():
                self._close()

    def _check_slice(self, name: str, tensor: torch.Tensor, batch: int) -> int:
        if tensor.dim() != 2 or tensor.shape[0] != batch or not batch:
            raise LaunchError(f"{name} has shape {tuple(tensor.shape)}; it takes [batch, n], the same batch for both")
        if tensor.shape[1] * tensor.element_size() % PACK_BYTES or not tensor.shape[1]:
            raise LaunchError(
                f"{name} has rows of {tensor.shape[1] * tensor.element_size()} bytes, not whole packs of 16"
            )
        return check_tensor(name, tensor, tensor.dtype, tuple(tensor.shape), self.device)

    def _new_output(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.new_empty((tensor.shape[0], self.world_size * tensor.shape[1]))

    def _plain_call(self, key: tuple[int, int, int, int]) -> Callable[..., None]:
        call = self._calls.get(key)
        if call is None:
            batch, first, second, timeout = key
            self._require_room(batch * (first + second) * PACK_BYTES)
            plan, own = self._plan, self._memory.address
            arguments = (0, 0, 0, 0, *self._bases, own + plan.plain_epochs, own + plan.status, self.rank,
                         batch, first, second, plan.slot, timeout)  # fmt: skip
            call = self._keep(key, Launch(self._plain, arguments, changing=4))
        return call

    def _require_room(self, payload: int) -> None:
        if slot_bytes(transport=self.transport, world_size=self.world_size, payload_bytes=payload) > self._plan.slot:
            raise LaunchError(
                f"first and second have {payload} bytes together; this exchange has no room for as many: make it with "
                f"payload_bytes"
            )

    def _fused_call(self, timeout: int) -> Callable[..., None]:
        call = self._calls.get((timeout,))
        if call is None:
            assert self._fused is not None
            plan, own = self._plan, self._memory.address
            staging = [base + plan.fused for base in self._bases]
            arguments = (0, 0, 0, 0, 0, 0, *staging, own + plan.fused_epochs, own + plan.status, self.rank, timeout)
            call = self._keep((timeout,), Launch(self._fused, arguments, changing=6))
        return call

    def _keep(self, key: tuple[int, ...], launch: Launch) -> Callable[..., None]:
        if len(self._calls) >= _LAUNCHES_KEPT:
            self._calls.clear()
        call = self._calls[key] = on_current_stream(launch)
        return call

    def _run(self, call: Callable[..., None], addresses: Sequence[int], timeout: float | None) -> None:
        if self._is_closed:
            raise LaunchError(f"the exchange of rank {self.rank} is closed")
        if timeout is None:
            call(*addresses)
            return
        if torch.cuda.is_current_stream_capturing():
            raise LaunchError("a bounded wait reports to the caller, and cannot be captured in a graph")
        call(*addresses)
        torch.cuda.current_stream(self.device).synchronize()
        missing = self.missing()
        if missing:
            ranks = ", ".join(map(str, missing))
            raise PeerTimeoutError(
                f"rank {self.rank} waited {timeout} s in vain for rank {ranks}; close the exchange and make it anew",
                missing,
            )


def _plan(world_size: int, transport: str, payload_bytes: int | None) -> _Plan:
    if payload_bytes is None:
        payload_bytes = MODEL_ROWS * -(-(DOWN_BYTES + ROUTER_BYTES) // world_size // PACK_BYTES) * PACK_BYTES
    return _Plan(world_size=world_size, transport=transport, payload_bytes=_align(payload_bytes))


def _loaded(name: str, device: int, **params: object) -> LoadedKernel:
    kernel = prepare(name, device=device, **params)
    assert isinstance(kernel, LoadedKernel)
    return kernel


def _nanoseconds(timeout: float | None) -> int:
    return 0 if timeout is None else max(1, round(timeout * 1e9))
