"""Several ranks on one GPU: an exchange and a stream for each, driven together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from kreg.kernels.exchange import Exchange


class World:
    """All ranks of a simulated exchange; ``each`` runs one call per rank, each on its own stream."""

    def __init__(self, size: int, transport: str, **options: Any) -> None:
        self.size = size
        self.ranks = Exchange.simulate(size, transport, **options)
        self.streams = [torch.cuda.Stream() for _ in range(size)]
        torch.cuda.synchronize()

    def each(self, call: Callable[[int, Exchange], Any]) -> list[Any]:
        """Return what ``call(rank, exchange)`` returns for each rank, after all have ended."""
        torch.cuda.synchronize()
        found = []
        for rank, exchange in enumerate(self.ranks):
            with torch.cuda.stream(self.streams[rank]):
                found.append(call(rank, exchange))
        torch.cuda.synchronize()
        return found

    def capture(self, call: Callable[[int, Exchange], Any]) -> list[torch.cuda.CUDAGraph]:
        """Capture ``call`` in a graph per rank."""
        graphs = []
        for rank, exchange in enumerate(self.ranks):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.streams[rank]):
                call(rank, exchange)
            graphs.append(graph)
        return graphs

    def replay(self, graphs: list[torch.cuda.CUDAGraph]) -> None:
        """Replay every rank's graph on its stream; does not wait."""
        for stream, graph in zip(self.streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()


@contextmanager
def world(size: int, transport: str, **options: Any) -> Iterator[World]:
    """Make a world and close it."""
    made = World(size, transport, **options)
    try:
        yield made
    finally:
        torch.cuda.synchronize()
        for exchange in made.ranks:
            exchange.close()
