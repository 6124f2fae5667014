"""Worker processes for compiles: a crash, or one that never ends, costs the item that caused it, and nothing else.

Workers are spawned, since compilers keep threads that a fork would break, and keep what compilers print away from
standard output. They end with the process that started them, however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future
    from typing import Any, TypeVar

    Item = TypeVar("Item")
    Result = TypeVar("Result")


def usable_cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def work_on(
    items: Sequence[Item],
    work: Callable[[Item], Result],
    crashed: Callable[[Item], Result],
    *,
    jobs: int,
    seconds: float,
) -> Iterator[Result]:
    """Yield ``work(item)`` for each item as it is done, in ``jobs`` processes.

    Yields ``crashed(item)`` for one that kills its process or takes more than ``seconds``. ``work`` and the items are
    pickled. Where no process can be started, as in a daemonic one, what is left runs in this one, without a limit.
    """
    opened = _open_pool(min(jobs, max(1, len(items))))
    if opened is None:
        yield from map(work, items)
        return
    suspects = []
    limited = _Limited(work, seconds)
    with opened as pool:
        futures, left = _submit(pool, limited, items)
        for future in as_completed(futures):
            try:
                yield future.result()
            except BrokenProcessPool:
                suspects.append(futures[future])
    # One of them killed its worker, and with it the pool: each gets a process of its own.
    yield from (_alone(item, limited, crashed) for item in suspects)
    yield from map(work, left)


def _open_pool(jobs: int) -> _Pool | None:
    if multiprocessing.current_process().daemon:
        return None
    try:
        _fill_standard_descriptors()
        return _Pool(jobs)
    except OSError:
        return None  # It starts a process of its own.


def _submit(
    pool: ProcessPoolExecutor, work: Callable[[Item], Result], items: Sequence[Item]
) -> tuple[dict[Future[Result], Item], Sequence[Item]]:
    """Return what has been submitted, and what is left where no more processes can be started."""
    futures: dict[Future[Result], Item] = {}
    try:
        for item in items:
            futures[pool.submit(work, item)] = item
    except (OSError, RuntimeError):
        return futures, items[len(futures) :]
    return futures, ()


def _alone(item: Item, work: Callable[[Item], Result], crashed: Callable[[Item], Result]) -> Result:
    with _Pool(1) as pool:
        try:
            return pool.submit(work, item).result()
        except BrokenProcessPool:
            return crashed(item)


class _Limited:
    """Work that ends its process, whatever a compiler is doing there, when it takes too long."""

    def __init__(self, work: Callable[[Any], Any], seconds: float) -> None:
        self._work = work
        self._seconds = seconds

    def __call__(self, item: Any) -> Any:
        import signal

        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
        try:
            return self._work(item)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


class _Pool:
    """A pool of spawned workers that drops what it has not begun when the block is left early."""

    def __init__(self, jobs: int) -> None:
        self._pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _prepare_worker)

    def __enter__(self) -> ProcessPoolExecutor:
        return self._pool

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        if raised is not None:
            for process in list((self._pool._processes or {}).values()):  # noqa: SLF001 - kill_workers is of Python 3.14
                process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)


def _prepare_worker() -> None:
    """Leave Ctrl-C to the parent, end when it ends, and keep what compilers print away from its standard output."""
    import signal
    import threading

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.dup2(2, 1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _fill_standard_descriptors() -> None:
    """Open what is closed of 0, 1 and 2, so that no pipe to a worker gets a number that compilers print to."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # It gets the lowest number that is free.
