"""The difference between two lockfiles, two stores, or one of each: variants added, removed and changed."""

from __future__ import annotations

import os

from kreg.errors import LockfileError, StoreError
from kreg.inventory import entries, refuse_unknown, spec_text
from kreg.lockfile import pin_order, read_lockfile, variant_of
from kreg.record import Record
from kreg.spec import parse_spec_text
from kreg.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from kreg.inventory import Entry
    from kreg.lockfile import Lockfile, Pin
    from kreg.manifest import Manifest
    from kreg.registry import Registry
    from kreg.selector import Selector

FIELDS = (
    "version", "toolchain", "key", "registers", "shared_bytes", "local_bytes", "code_bytes", "cubin_bytes",
    "program", "cubin", "source",
)  # fmt: skip
"""What can move between two sides of a variant. ``program`` covers all that a device gets to see."""


class Item(Record):
    """One variant on one side: its spec, and the value of each of ``FIELDS``; digests are whole."""

    __slots__ = ("spec", "values")
    spec: str
    values: dict[str, object]

    def __init__(self, *, spec: str, values: dict[str, object]) -> None:
        self._set(spec=spec, values=values)


class Change(Record):
    """A variant that is on both sides and not the same: each moved field with its value before and after."""

    __slots__ = ("before", "after", "moved")
    before: Item
    after: Item
    moved: dict[str, tuple[object, object]]

    def __init__(self, before: Item, after: Item) -> None:
        moved = {
            name: (before.values[name], after.values[name])
            for name in FIELDS
            if before.values[name] != after.values[name]
        }
        self._set(before=before, after=after, moved=moved)

    @property
    def is_of_sources_alone(self) -> bool:
        """Say whether nothing but the sources differs, as after the edit of a comment."""
        return self.moved.keys() == {"source"}


class Difference(Record):
    """What two sides differ in; ``same`` counts the variants that do not. All lists are in reading order."""

    __slots__ = ("added", "removed", "changed", "same")
    added: tuple[Item, ...]
    removed: tuple[Item, ...]
    changed: tuple[Change, ...]
    same: int

    def __init__(
        self, *, added: tuple[Item, ...], removed: tuple[Item, ...], changed: tuple[Change, ...], same: int
    ) -> None:
        self._set(added=added, removed=removed, changed=changed, same=same)

    @property
    def is_empty(self) -> bool:
        """Say whether the sides are the same."""
        return not (self.added or self.removed or self.changed)


def items_of(path: str, report: Callable[[Entry], None] | None = None) -> list[Item]:
    """Return the variants of a lockfile or a store. Raises ``LockfileError`` and ``StoreError``.

    ``report`` is called with each entry of a store that is left out, as it cannot be read or is of a newer kreg.
    """
    if os.path.isdir(path):
        store = Store(path)
        if not store.is_marked():
            raise StoreError(f"{path} is neither a lockfile nor a kreg store")
        return _of_entries(entries(store), report)
    if not os.path.exists(path):
        raise LockfileError(f"there is no lockfile and no store {path}")
    lockfile = read_lockfile(path)
    return [_of_pin(pin, lockfile) for pin in lockfile.pins]


def _of_entries(found: Iterable[Entry], report: Callable[[Entry], None] | None) -> list[Item]:
    items = []
    for entry in found:
        if entry.manifest is not None:
            items.append(_of_manifest(entry.manifest))
        elif report is not None:
            report(entry)
    return items


def _of_pin(pin: Pin, lockfile: Lockfile) -> Item:
    return Item(
        spec=pin.spec,
        values={
            "version": parse_spec_text(pin.spec).version,
            "toolchain": lockfile.toolchains[pin.toolchain],
            **{name: getattr(pin, name) for name in FIELDS[2:]},
        },
    )


def _of_manifest(manifest: Manifest) -> Item:
    values: dict[str, object] = {
        "version": manifest.version,
        "toolchain": manifest.toolchain,
        "key": manifest.spec_key,
        "program": manifest.program_digest,
        "cubin": manifest.cubin_digest,
        "source": manifest.source_digest,
    }
    others = {name: getattr(manifest, name) for name in FIELDS if name not in values}
    return Item(spec=spec_text(manifest), values={**values, **others})


def selected(sides: Iterable[list[Item]], chosen: Selector, registry: Registry) -> list[list[Item]]:
    """Return of each side what ``chosen`` means; a parameter that a spec leaves out has the declared default.

    Raises ``SpecError`` for a kernel that neither a side nor the registry knows.
    """
    every = list(sides)
    found = [[item for item in side if chosen.means(item.spec, registry)] for side in every]
    if not any(found):
        refuse_unknown(chosen, {parse_spec_text(item.spec).kernel for side in every for item in side}, registry)
    return found


def compare(before: Iterable[Item], after: Iterable[Item]) -> Difference:
    """Pair the variants of two sides and say what moved.

    A variant is paired with the one of the same spec and toolchain, else of the same spec, else of the same kernel,
    target and parameters in another version; of several, the newest with the newest.
    """
    left, right = _in_order(before), _in_order(after)
    pairs: list[tuple[Item, Item]] = []
    for alike in (_spec_and_toolchain, _spec, _variant):
        pairs += _pair(left, right, alike)
    changes = [Change(first, second) for first, second in pairs]
    changed = sorted((change for change in changes if change.moved), key=lambda change: _order(change.after))
    return Difference(added=tuple(right), removed=tuple(left), changed=tuple(changed), same=len(changes) - len(changed))


def _in_order(items: Iterable[Item]) -> list[Item]:
    return sorted(items, key=_order)


def _order(item: Item) -> tuple[object, ...]:
    return pin_order(item.spec), _toolchain(item)


def _toolchain(item: Item) -> tuple[tuple[str, ...], ...]:
    """Return what toolchains are told apart and sorted by: distributions in order, versions by number."""
    distributions = item.values["toolchain"]
    assert isinstance(distributions, dict)
    return tuple(
        (name, *(part.rjust(20) for part in version.split("."))) for name, version in sorted(distributions.items())
    )


def _pair(left: list[Item], right: list[Item], alike: Callable[[Item], Hashable]) -> list[tuple[Item, Item]]:
    """Take the pairs that are alike out of two lists, from their ends, where the newest are."""
    waiting: dict[Hashable, list[Item]] = {}
    for item in right:
        waiting.setdefault(alike(item), []).append(item)
    pairs = [(item, waiting[alike(item)].pop()) for item in reversed(left) if waiting.get(alike(item))]
    taken = {id(item) for pair in pairs for item in pair}
    for items in (left, right):
        items[:] = [item for item in items if id(item) not in taken]
    return pairs


def _spec_and_toolchain(item: Item) -> Hashable:
    return item.spec, _toolchain(item)


def _spec(item: Item) -> Hashable:
    return item.spec


def _variant(item: Item) -> Hashable:
    return variant_of(item.spec)
