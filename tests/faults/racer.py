"""One process of a race: says ``ready``, waits for a line on standard input, then plays its role.

``RACE_LOCKS`` says what locks do in this process: ``succeed`` always, or ``fail`` always, as on file systems without
them. A role prints what it has to say when it is done, and raises what must not happen.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import sys
import time
import warnings
from collections.abc import Callable

from builders import read_spec
from fake_backend import KERNEL

import kreg
from kreg import Artifact, Store
from kreg.build import compile_artifact
from kreg.inventory import entries, select
from kreg.selector import Selector
from kreg.sweep import Limits, gc
from kreg.upkeep import Verifier, clear, plan_clear, plan_clear_all

SIZES = (1, 2, 3, 4)
REGISTRY = kreg.Registry([KERNEL], discover=False)


def artifacts() -> list[Artifact]:
    """Return what the compiler gives, so that all roles publish and expect the same."""
    return [compile_artifact(KERNEL, KERNEL.spec("sm_90a", {"size": size})) for size in SIZES]


def wait_for_start() -> None:
    """Say that everything is imported, and wait until the others have said so too."""
    print("ready", flush=True)
    sys.stdin.readline()


def resolve(root: str, *_: str) -> None:
    """Resolve one cold key; print where the artifact came from and its digests."""
    wait_for_start()
    artifact = kreg.resolve(KERNEL, size=1, mode="slow", target="sm_90a", store=root)
    print(artifact.origin == "compiled", artifact.cubin_digest, artifact.manifest.spec_key)


def repeat(seconds: str, step: Callable[[int], object]) -> None:
    """Repeat a step for a time; print how often."""
    count, end = 0, time.monotonic() + float(seconds)
    while time.monotonic() < end:
        step(count)
        count += 1
    print(count)


def publish(root: str, seconds: str) -> None:
    """Publish the same artifacts again and again."""
    store, known = Store(root), artifacts()
    wait_for_start()
    repeat(seconds, lambda count: (store.publish(known[count % len(SIZES)]), time.sleep(0.002)))


def read(root: str, seconds: str) -> None:
    """Read them: each is whole or not there."""
    store, known = Store(root), artifacts()
    wait_for_start()

    def step(count: int) -> None:
        expected = known[count % len(SIZES)]
        found = read_spec(store, expected)
        if found is not None and (found.cubin, found.manifest_bytes) != (expected.cubin, expected.manifest_bytes):
            raise AssertionError("wrong bytes")

    repeat(seconds, step)


def serve(root: str, seconds: str) -> None:
    """Resolve as new processes do, compiling what is not there: always a kernel, always the right one."""
    warnings.simplefilter("error")
    known = artifacts()
    wait_for_start()

    def step(count: int) -> None:
        kreg.forget()
        found = kreg.resolve(KERNEL, size=SIZES[count % len(SIZES)], target="sm_90a", store=root)
        if found.cubin != known[count % len(SIZES)].cubin:
            raise AssertionError("wrong bytes")

    repeat(seconds, step)


def warm(root: str, seconds: str) -> None:
    """Warm the store again and again, without processes of its own."""
    import multiprocessing

    multiprocessing.current_process()._config["daemon"] = True
    variants = [(KERNEL, KERNEL.spec("sm_90a", {"size": size})) for size in SIZES]
    wait_for_start()

    def step(_: int) -> None:
        report = kreg.warm(variants, store=root)
        if report.count("failed"):
            raise AssertionError([outcome.error for outcome in report.outcomes])

    repeat(seconds, step)


def look(root: str, seconds: str) -> None:
    """List the store; a file that is gone by the time it is read is no fault, a damaged one is."""
    store, verifier = Store(root), Verifier(Store(root))
    wait_for_start()

    def step(_: int) -> None:
        for entry in entries(store):
            finding = verifier.check(entry)
            if finding is not None and not finding.reason.endswith(" is missing"):
                raise AssertionError(finding)

    repeat(seconds, step)


def sweep(root: str, seconds: str) -> None:
    """Clear one kernel's entries, or everything, in turn."""
    store = Store(root)
    wait_for_start()

    def step(count: int) -> None:
        chosen = select(store, Selector(params=[f"size={SIZES[count % len(SIZES)]}"]), REGISTRY)
        clear(store, plan_clear_all(store) if count % 3 == 2 else plan_clear(store, chosen))
        time.sleep(0.002)

    repeat(seconds, step)


def collect(root: str, seconds: str) -> None:
    """Collect what is beyond narrow limits."""
    store = Store(root)
    wait_for_start()
    repeat(seconds, lambda count: (gc(store, Limits(entries=count % 5)), time.sleep(0.002)))


def unlock(root: str, seconds: str) -> None:
    """Delete lock files under whoever holds them."""
    wait_for_start()

    def step(count: int) -> None:
        for name in os.listdir(f"{root}/locks"):
            try:
                os.unlink(f"{root}/locks/{name}")
            except FileNotFoundError:
                pass  # Another one deletes them too.
        time.sleep(random.Random(count).random() * 0.01)

    repeat(seconds, step)


def no_locks(_descriptor: int, _how: int) -> None:
    """Fail as flock does where locks are off."""
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


if __name__ == "__main__":
    locks = os.environ.get("RACE_LOCKS", "work")
    if locks != "work":
        fcntl.flock = {"succeed": lambda _descriptor, _how: None, "fail": no_locks}[locks]
    globals()[sys.argv[1]](*sys.argv[2:])
