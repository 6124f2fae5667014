"""Hours of mixed use of one store by several processes, with faults: ``soak.py FOLDER [--entries N] [--seconds S]``.

Every process reads, resolves, publishes, warms, clears, collects, exports, imports and verifies at random. Into one
operation in eight goes a fault: a system call that fails, a file that is damaged, replaced or removed, a lock that is
deleted, a process that is killed. A resolve must always give the right cubin, a read the right bytes or none, and
nothing may raise but kreg's own errors. Prints what happened as JSON; the exit code is 1 if anything did that must not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from builders import entry_path, make_artifact, object_path, read_spec
from calls import FAILURES, count_calls, fail_at
from fake_backend import KERNEL

import kreg
from kreg import Artifact, KregError, Store
from kreg.build import compile_artifact
from kreg.bundle import export_bundle, import_bundle, stored
from kreg.inventory import entries, select
from kreg.selector import Selector
from kreg.store import BadEntry
from kreg.sweep import Limits, gc, leftovers
from kreg.upkeep import clear, plan_clear, verify

PROCESSES = 3
TARGETS = ("sm_90a", "sm_100a", "sm_120a")
GROWTH = 8.0
"""MiB by which a process may grow: what a larger listing leaves in the allocator."""
MONTH = 30 * 86400.0


class Worker:
    """One process of a soak: operations at random, from a seed, and a count of all that happened."""

    def __init__(self, folder: str, seed: int, size: int) -> None:
        self.root = os.path.abspath(f"{folder}/store")
        self.bundle = f"{folder}/{seed}.tar"
        self.size = size
        self.chance = random.Random(seed)
        self.count: Counter[str] = Counter()
        self.broken: list[str] = []
        self.known: dict[tuple[str, int], Artifact] = {}
        self.aim: tuple[str, int] | None = None
        self.operations: list[tuple[int, Callable[[], None]]] = [
            (500, self.read), (300, self.resolve), (80, self.publish), (20, self.warm), (20, self.clear),
            (4, self.collect), (6, self.export), (6, self.take), (3, self.list), (1, self.verify),
        ]  # fmt: skip
        self.faults: list[Callable[[], None]] = [
            self.fail_a_call, self.fail_a_call, self.damage, self.damage, self.remove, self.kill, self.unlock,
            self.litter,
        ]  # fmt: skip

    def run(self, seconds: float) -> dict[str, Any]:
        """Work for a time; return the counts, and memory and descriptors as they were at first and at last."""
        os.environ["KREG_WAIT"] = "5"
        multiprocessing.current_process()._config["daemon"] = True  # warm then starts no processes
        warnings.simplefilter("always")
        warnings.showwarning = self._hear
        start = time.monotonic()
        seen: list[tuple[float, int, int]] = []
        while (now := time.monotonic() - start) < seconds:
            if not seen or now - seen[-1][0] > seconds / 100:
                seen.append((now, resident_bytes(), len(os.listdir("/proc/self/fd"))))
            self.chance.choice(self.faults)() if self.chance.random() < 0.125 else self.do(self.any_operation())
        seen.append((seconds, resident_bytes(), len(os.listdir("/proc/self/fd"))))
        return {"counts": dict(self.count), "broken": self.broken, "seen": seen}

    def _hear(self, message: Warning | str, category: type[Warning], *_: object) -> None:
        self.count["warnings"] += 1
        if category is not kreg.KregWarning:
            self.broken.append(f"warning: {message}")

    def any_operation(self) -> Callable[[], None]:
        weights, operations = zip(*self.operations, strict=True)
        return self.chance.choices(operations, weights)[0]

    def do(self, operation: Callable[[], None]) -> bool:
        """Do an operation, and say whether it raised nothing.

        What is not kreg's own error, or raises out of a resolve, must not happen.
        """
        self.count["operations"] += 1
        self.count[operation.__name__] += 1
        try:
            operation()
        except KregError as error:
            self.count["errors said"] += 1
            if operation == self.resolve:
                self.broken.append(f"resolve: {error}")
            return False
        except Exception as error:  # noqa: BLE001 - this is what is looked for
            self.broken.append(f"{operation.__name__}: {type(error).__name__}: {error}")
            return False
        return True

    # Operations.

    def store(self) -> Store:
        return Store(self.root)

    def any_artifact(self) -> Artifact:
        return make_artifact(self.chance.randrange(100, 100 + self.size))

    def read(self) -> None:
        artifact = self.any_artifact()
        try:
            found = read_spec(self.store(), artifact)
        except BadEntry:
            self.count["set aside"] += 1
            return
        if found is None:
            self.count["missing"] += 1
        elif (found.cubin, found.manifest_bytes) != (artifact.cubin, artifact.manifest_bytes):
            self.count["wrong bytes"] += 1

    def variant(self) -> tuple[str, int]:
        return self.chance.choice(TARGETS), self.chance.randrange(1, 65)

    def resolve(self) -> None:
        target, size = variant = self.aim or self.variant()
        kreg.forget()
        found = kreg.resolve(KERNEL, size=size, target=target, store=self.root)
        self.count["compiled"] += found.origin == "compiled"
        if found.cubin != self.expected(variant).cubin:
            self.count["wrong bytes"] += 1

    def expected(self, variant: tuple[str, int]) -> Artifact:
        if variant not in self.known:
            self.known[variant] = compile_artifact(KERNEL, KERNEL.spec(variant[0], {"size": variant[1]}))
        return self.known[variant]

    def publish(self) -> None:
        self.store().publish_all(self.any_artifact() for _ in range(self.chance.choice((1, 1, 1, 5))))

    def warm(self) -> None:
        variants = [self.variant() for _ in range(4)]
        specs = [(KERNEL, KERNEL.spec(target, {"size": size})) for target, size in variants]
        report = kreg.warm(specs, store=self.root)
        self.count["compiled"] += report.count("compiled")

    def clear(self) -> None:
        if self.chance.random() < 0.2:
            chosen = Selector(params=[f"size={self.variant()[1]}"])
            found = select(self.store(), chosen, kreg.REGISTRY)
        else:
            found = [entry for entry in entries(self.store(), "fake") if self.chance.random() < 0.001]
        clear(self.store(), plan_clear(self.store(), found))

    def collect(self) -> None:
        limit = self.chance.choice((None, None, self.size, self.size * 9 // 10))
        gc(self.store(), Limits(entries=limit), grace=self.chance.choice((3600.0, 60.0)))

    def export(self) -> None:
        chosen = Selector(params=[f"size={self.variant()[1]}" for _ in range(3)])
        export_bundle(self.bundle, self.store(), stored(self.store(), chosen, kreg.REGISTRY))

    def take(self) -> None:
        import_bundle(self.bundle, self.store(), replace=True)

    def list(self) -> None:
        self.count["listed"] += sum(1 for _ in entries(self.store()))

    def verify(self) -> None:
        self.count["findings"] += len(verify(self.store(), Selector(), kreg.REGISTRY).findings)

    # Faults. After each, an operation goes on as if nothing had been, and what was hit is resolved: a recovery.

    def fault(self, name: str, operation: Callable[[], None]) -> None:
        self.count["faults"] += 1
        self.count[f"fault: {name}"] += 1
        self.do(operation)
        self.count["recoveries"] += self.do(self.resolve)
        self.aim = None

    def fail_a_call(self) -> None:
        operation = self.chance.choice((self.read, self.resolve, self.publish, self.warm, self.export, self.take))
        state = self.chance.getstate()
        calls = len(count_calls(self.root, lambda: self.do(operation)))
        self.chance.setstate(state)
        if calls:
            number, error = random.randrange(1, calls + 1), random.choice(FAILURES)
            fail_at(self.root, number, error, lambda: self.do(operation))
            self.fault("a call failed", operation)

    def any_file(self) -> Path:
        """Choose a file: of an entry that is only read, or of one that is then resolved."""
        self.aim = self.variant() if self.chance.random() < 0.5 else None
        artifact = self.any_artifact() if self.aim is None else self.expected(self.aim)
        return self.chance.choice((entry_path, object_path))(self.store(), artifact)

    def damage(self) -> None:
        """Damage a file as a disk or a person does: in place, not by way of the store."""
        path = self.any_file()
        how = self.chance.randrange(6)
        try:
            if how < 3:
                self._scribble(path, how)
            else:
                path.unlink()
                (os.mkfifo, os.mkdir, lambda place: os.symlink("nowhere", place))[how - 3](path)
        except OSError:
            self.aim = None
            return  # It was not there, or is none that can be damaged so.
        self.fault("damaged", self.read)

    def _scribble(self, path: Path, how: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            place = self.chance.randrange(os.fstat(descriptor).st_size)
            if how == 0:
                os.pwrite(descriptor, bytes([os.pread(descriptor, 1, place)[0] ^ 1]), place)
            elif how == 1:
                os.ftruncate(descriptor, place)
            else:
                os.pwrite(descriptor, self.any_artifact().manifest_bytes, 0)
        except (ValueError, IndexError) as error:
            raise OSError("empty by now") from error
        finally:
            os.close(descriptor)

    def remove(self) -> None:
        try:
            self.any_file().unlink()
        except OSError:
            self.aim = None
            return
        self.fault("removed", self.publish)

    def kill(self) -> None:
        operation = self.any_operation()
        child = os.fork()
        if child == 0:
            try:
                while True:
                    operation()
            finally:
                os._exit(0)
        time.sleep(self.chance.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        self.fault("killed", self.read)

    def unlock(self) -> None:
        for name in os.listdir(f"{self.root}/locks"):
            if self.chance.random() < 0.1:
                Path(f"{self.root}/locks/{name}").unlink(missing_ok=True)
        self.fault("locks deleted", self.publish)

    def litter(self) -> None:
        """Leave what processes that died long ago leave, and let what was set aside grow old."""
        Path(f"{self.root}/tmp/{os.getpid()}-{self.chance.randrange(10**9)}").write_bytes(b"left")
        for folder in ("tmp", "quarantine"):
            for file in os.scandir(f"{self.root}/{folder}"):
                if self.chance.random() < 0.5:
                    try:
                        os.utime(file.path, (time.time() - MONTH,) * 2, follow_symlinks=False)
                    except OSError:
                        pass  # Another process has collected it.
        self.fault("litter", self.read)


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _work(folder: str, seed: int, size: int, seconds: float, pipe: Any) -> None:
    pipe.send(Worker(folder, seed, size).run(seconds))


def soak(folder: str, size: int, seconds: float) -> dict[str, Any]:
    """Fill a store with ``size`` entries and use it for ``seconds``; return what happened."""
    store = Store(f"{folder}/store")
    store.publish_all(make_artifact(number) for number in range(100, 100 + size))
    context = multiprocessing.get_context("spawn")
    workers = []
    for seed in range(PROCESSES):
        ours, theirs = context.Pipe()
        worker = context.Process(target=_work, args=(folder, seed, size, seconds, theirs))
        worker.start()
        workers.append((worker, ours))
    done = [ours.recv() for worker, ours in workers if ours.poll(seconds + 600)]
    for worker, _ in workers:
        worker.join(60)
    return _report(store, done, size, seconds, len(workers) - len(done))


def _report(store: Store, done: list[dict], size: int, seconds: float, lost: int) -> dict[str, Any]:
    counts: Counter[str] = sum((Counter(one["counts"]) for one in done), Counter())
    broken = [text for one in done for text in one["broken"]]
    gc(store, Limits(), grace=0)
    left = [path for path in leftovers(store) if "/quarantine/" not in path]
    bad = [finding.reason for finding in verify(store, Selector(), kreg.REGISTRY).findings]
    seen = [one["seen"] for one in done]
    return {
        "entries": size,
        "seconds": seconds,
        "processes": PROCESSES,
        "counts": dict(sorted(counts.items())),
        "wrong bytes": counts["wrong bytes"],
        "broken": broken[:20],
        "broken in all": len(broken) + lost,
        "bad after gc": bad[:20],
        "left after gc": left[:20],
        "resident MiB after a fifth, at the end": [
            [round(one[len(one) // 5][1] / 2**20, 1), round(one[-1][1] / 2**20, 1)] for one in seen
        ],
        "descriptors at first, at the end": [[one[1][2], one[-1][2]] for one in seen],
    }


def is_well(report: dict[str, Any]) -> bool:
    """Say whether nothing happened that must not, every fault was recovered from, and nothing grew."""
    counts = report["counts"]
    return (
        not any(report[name] for name in ("wrong bytes", "broken in all", "bad after gc", "left after gc"))
        and counts["faults"] == counts["recoveries"] > 0
        and all(last - early < GROWTH for early, last in report["resident MiB after a fifth, at the end"])
        and all(first == last for first, last in report["descriptors at first, at the end"])
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=3600)
    given = parser.parse_args()
    os.makedirs(given.folder)
    report = soak(given.folder, given.entries, given.seconds)
    print(json.dumps(report, indent=2))
    sys.exit(0 if is_well(report) else 1)
