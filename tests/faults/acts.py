"""What changes a store or a file beside it, each as one act that can be cut off anywhere, and what must hold then."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from builders import TOOLCHAIN, entry_path, files_below, flip, make_artifact, read_spec
from fake_backend import KERNEL

import kreg
from kreg import Store
from kreg.artifact import Artifact
from kreg.bundle import export_bundle, import_bundle, open_bundle, stored
from kreg.inventory import select
from kreg.lockfile import Lockfile, pin, read_lockfile, write_lockfile
from kreg.selector import Selector
from kreg.store import BadEntry
from kreg.sweep import Limits, gc, leftovers
from kreg.upkeep import clear, plan_clear, verify

SIZES = (1, 2, 3, 4, 5, 6)
ALL = ("size=1", "size=2", "size=3", "size=50")
ARTIFACTS = {size: make_artifact(size) for size in (*SIZES, 50)}
KEPT = ARTIFACTS[50]
"""An artifact that no act removes: whatever is cut off, it is there."""


class Place:
    """A folder with a store, a lockfile and a bundle."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.root = f"{folder}/store"
        self.lockfile = f"{folder}/kreg.lock"
        self.bundle = f"{folder}/all.tar"

    def store(self) -> Store:
        """Open the store as a new process does."""
        return Store(self.root)

    def fill(self) -> None:
        """Make everything as it is before an act."""
        self.store().publish_all(ARTIFACTS[size] for size in (1, 2, 3, 50))
        if not os.path.exists(self.lockfile):
            write_pins(self, 2)
            export(self, ALL)


def publish(place: Place) -> None:
    for size in (4, 5, 6, 1):
        place.store().publish(ARTIFACTS[size])


def remove_sizes(place: Place, sizes: Iterable[int]) -> None:
    store = place.store()
    clear(store, plan_clear(store, select(store, Selector(params=[f"size={n}" for n in sizes]), kreg.REGISTRY)))


def clear_some(place: Place) -> None:
    remove_sizes(place, (1, 2))


def collect(place: Place) -> None:
    gc(place.store(), Limits(entries=1), pinned={KEPT.entry_key}, grace=0)


def set_aside(place: Place) -> None:
    store = place.store()
    for size in (1, 2):
        flip(entry_path(store, ARTIFACTS[size]), 400)
        try:
            read_spec(store, ARTIFACTS[size])
        except BadEntry:
            store.publish(ARTIFACTS[size])


def write_pins(place: Place, count: int) -> None:
    manifests = [ARTIFACTS[size].manifest for size in SIZES[:count]]
    pins = tuple(pin(str(manifest.spec), manifest, "fake") for manifest in manifests)
    write_lockfile(place.lockfile, Lockfile(toolchains={"fake": dict(TOOLCHAIN.distributions)}, pins=pins))


def write_lock(place: Place) -> None:
    write_pins(place, 5 - len(read_lockfile(place.lockfile).pins))


def import_all(place: Place) -> None:
    import_bundle(place.bundle, place.store())


def export(place: Place, params: tuple[str, ...]) -> None:
    store = place.store()
    export_bundle(place.bundle, store, stored(store, Selector(params=params), kreg.REGISTRY))


def export_other(place: Place) -> None:
    with open_bundle(place.bundle) as bundle:
        count = len(list(bundle.artifacts()))
    export(place, ("size=3", "size=50") if count == 4 else ALL)


ACTS: dict[str, Callable[[Place], None]] = {
    "publish": publish,
    "clear": clear_some,
    "gc": collect,
    "quarantine": set_aside,
    "lock": write_lock,
    "import": import_all,
    "export": export_other,
}


def begin(place: Place, name: str) -> None:
    """Bring a place to where an act begins."""
    place.fill()
    if name == "lock":
        write_pins(place, 2)
    if name == "export":
        export(place, ALL)
    remove_sizes(place, (1, 2) if name == "import" else (4, 5, 6))


def check(place: Place, what: str = "") -> list[str]:
    """Check what must hold whenever an act was cut off; return the leftovers, which are gone after that."""
    store = place.store()
    for artifact in ARTIFACTS.values():
        try:
            found = read_spec(store, artifact)
        except BadEntry:
            found = None
            assert what.startswith("quarantine"), what  # That act damages entries itself.
        if found is not None:
            assert (found.cubin, found.manifest_bytes) == (artifact.cubin, artifact.manifest_bytes), what
    assert read_spec(store, KEPT) is not None, what
    assert len(read_lockfile(place.lockfile).pins) in {2, 3}, what
    with open_bundle(place.bundle) as bundle:
        assert KEPT.entry_key in [artifact.entry_key for artifact in bundle.artifacts()], what
    left = _collect(store, what)
    kreg.forget()
    resolved: Artifact = kreg.resolve(KERNEL, size=1, target="sm_90a", store=store)
    assert resolved.manifest.params == {"size": 1}, what
    return left


def _collect(store: Store, what: str) -> list[str]:
    """Check that verify names whatever is not an entry, its cubin or a lock, and that gc removes it."""
    named = set(leftovers(store))
    known = {*named, *store.entry_files(), *store.object_files(), f"{store.root}/CACHEDIR.TAG"}
    files = {f"{store.root}/{name}" for name in files_below(store.root) if not name.startswith("locks/")}
    assert files <= known, (what, files - known)
    assert [finding.reason for finding in verify(store, Selector(), kreg.REGISTRY).findings] == [], what
    gc(store, Limits(), grace=0)
    assert [path for path in leftovers(store) if "/quarantine/" not in path] == [], what
    return sorted(named)
