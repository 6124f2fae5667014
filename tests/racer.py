"""A process of a race, told what to do by its arguments: see each function, whose name is the first argument."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from builders import make_artifact, read_spec
from fake_backend import KERNEL

import kreg
from kreg import Store
from kreg.inventory import entries, select
from kreg.selector import Selector
from kreg.upkeep import Verifier, clear, plan_clear, plan_clear_all

SIZES = (1, 2, 3, 4)


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
    store, artifacts = Store(root), [make_artifact(size) for size in SIZES]
    wait_for_start()
    repeat(seconds, lambda count: (store.publish(artifacts[count % len(SIZES)]), time.sleep(0.002)))


def read(root: str, seconds: str) -> None:
    """Read them: each is whole or not there."""
    store, artifacts = Store(root), [make_artifact(size) for size in SIZES]
    wait_for_start()

    def step(count: int) -> None:
        expected = artifacts[count % len(SIZES)]
        found = read_spec(store, expected)
        if found is not None and (found.cubin, found.manifest_bytes) != (expected.cubin, expected.manifest_bytes):
            raise AssertionError("wrong bytes")

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
    registry = kreg.Registry([KERNEL], discover=False)
    wait_for_start()

    def step(count: int) -> None:
        chosen = select(store, Selector(params=[f"size={SIZES[count % len(SIZES)]}"]), registry)
        clear(store, plan_clear_all(store) if count % 3 == 2 else plan_clear(store, chosen))
        time.sleep(0.002)

    repeat(seconds, step)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
