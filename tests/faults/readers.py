"""What must hold of every reader of untrusted bytes, whatever the bytes: one function for each.

A reader returns, or raises one of kreg's own errors; any other exception is a failure. What it accepts is consistent:
it is written back to what reads the same, and the rest of kreg can work with it. ``test_readers.py`` calls these
functions with made-up bytes, ``fuzz_readers.py`` with those that a coverage-guided fuzzer finds.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
from builders import make_artifact, make_kernel, make_manifest, make_spec
from kreg.cache_tools.output import show_bytes
from tiny_elf import make_cubin

from kreg import Artifact, CompileSpec, KregError, Param, Store
from kreg.bundle import export_bundle, open_bundle, stored
from kreg.cubin import Cubin
from kreg.digest import sha256
from kreg.header import NAMES, read_header, write_header
from kreg.lockfile import Lockfile, Pin, Receipt, Selection, pin
from kreg.lockfile import decode as decode_lockfile
from kreg.lockfile import encode as encode_lockfile
from kreg.manifest import Manifest, check, decode, encode
from kreg.registry import Registry
from kreg.selector import Selector
from kreg.spec import SpecText, format_value, parse_spec_text, parse_value

T = TypeVar("T")

WHERE = "the input"
OPENING = b'{"manifest":1,"digest":"'
BODY = len(OPENING) + 64 + len('",\n')
"""Where the bytes begin that a manifest's digest covers."""
LINES = 12
"""How many lines of an input are read as selectors."""
KERNELS = 3
"""How many kernels of an image are looked at."""

ODD = make_kernel(
    name="odd",
    version=10,
    params=(
        Param("count", int, allowed=(0, 1, -1, 2**63 - 1, -(2**63)), warm=(0,), default=0),
        Param("on", bool, allowed=(False, True)),
        Param(
            "word", str, allowed=("", "a", "a,b", "x]y", '"', "\\", "\u00e9", "\n", "true", "7", '"q"', ":sm_90a", "[")
        ),
    ),
    options={"opt_level": 3},
)
REGISTRY = Registry([make_kernel(), ODD], discover=False)
CUBINS = {sha256(image): image for image in (make_cubin(), make_cubin("sm_90"))}


def outcome(reader: Callable[..., T], *arguments: object) -> T | None:
    """Return what a reader returns, or None if it raises one of kreg's errors."""
    try:
        return reader(*arguments)
    except KregError:
        return None


def fuzz_manifest(data: bytes) -> None:
    """Read a manifest: as it is, with the right digest, and with the right spec key too."""
    _check_manifest(data)
    _check_manifest(signed(data))
    for image in keyed(data):
        _check_manifest(image)


def signed(data: bytes) -> bytes:
    """Return a manifest with the right digest over whatever it holds."""
    body = data[BODY:] if data.startswith(OPENING) else data
    return OPENING + sha256(body).encode() + b'",\n' + body


def keyed(data: bytes) -> Iterator[bytes]:
    """Yield a manifest with the spec key of its fields, escaped and not, and the right digest, if it is JSON."""
    body = signed(data)[BODY:]
    names = {"kernel": "", "options": {}, "params": {}, "target": "", "version": 0}
    try:
        held = json.loads(b"{" + body)
        fields = {"schema": 1, **{name: held.get(name, instead) for name, instead in names.items()}}
        texts = {
            json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=is_ascii).encode()
            for is_ascii in (True, False)
        }
    except (ValueError, RecursionError):
        return
    opening = b'"spec_key":"'
    for text in sorted(texts):
        yield signed(signed(b"")[:BODY] + opening + sha256(text).encode() + body[len(opening) + 64 :])


def _check_manifest(data: bytes) -> None:
    keys = outcome(read_header, data, WHERE)
    if keys is not None:
        body = data[BODY:]
        assert data == signed(body)
        fields = body[len(write_header(keys, "")) - BODY - len("}\n") :]
        assert write_header(keys, "") == signed(body[: -len(fields) or None] + b"}\n")
    held = outcome(decode, data, WHERE)
    if held is not None:
        outcome(check, held, WHERE)
        outcome(lambda: held.spec)
    if keys is not None and keys[2] in CUBINS:
        artifact = Artifact(data, CUBINS[keys[2]], WHERE, keys)
        manifest = outcome(lambda: artifact.manifest)
        if manifest is not None and _is_right(manifest):
            assert keys == tuple(getattr(manifest, name) for name in NAMES), "a manifest contradicts its own header"
            _use_manifest(manifest)


def _is_right(manifest: Manifest) -> bool:
    try:
        check(manifest, WHERE)
    except KregError:
        return False
    return True


def _use_manifest(manifest: Manifest) -> None:
    """Do with an accepted manifest what the rest of kreg does."""
    stored = encode(manifest)
    again = decode(stored, WHERE)
    assert again == manifest
    assert encode(again) == stored
    assert read_header(stored, WHERE) == tuple(getattr(manifest, name) for name in NAMES)
    spec = manifest.spec
    assert spec.key == manifest.spec_key
    parts = parse_spec_text(str(spec))
    assert (parts.kernel, parts.version, parts.target) == (spec.kernel, spec.version, spec.target)
    assert [
        (name, parse_value(text, type(manifest.params[name]), WHERE)) for name, text in parts.params
    ] == list(spec.params)  # fmt: skip
    show_bytes(manifest.cubin_bytes)
    pinned = pin(str(spec), manifest, "fake")
    lockfile = Lockfile(toolchains={"fake": {"fake-compiler": "1.0"}}, pins=(pinned,))
    assert decode_lockfile(encode_lockfile(lockfile), WHERE) == lockfile
    Selector(params=["size=1"]).matches(manifest, REGISTRY)


def fuzz_spec(data: bytes) -> None:
    """Read a text as the command gets it: as a spec, then its first line as a spec and the others as selectors."""
    text = os.fsdecode(data)
    first, *others = text.split("\n")
    for written in {text, first}:
        parts = outcome(parse_spec_text, written)
        if parts is not None:
            _use_parts(parts)
        spec = outcome(REGISTRY.parse, written, "sm_90a")
        if spec is not None:
            assert REGISTRY.parse(str(spec)) == spec
    chosen = {kind: [line[1:] for line in others[:LINES] if line[:1] == kind] for kind in "ktp"}
    selector = outcome(lambda: Selector(kernels=chosen["k"], targets=chosen["t"], params=chosen["p"]))
    if selector is not None:
        _use_selector(selector, first)


def spell(parts: SpecText) -> str:
    """Write a spec text from its parts."""
    version = "" if parts.version is None else f"@{parts.version}"
    params = ",".join("=".join(param) for param in parts.params)
    target = "" if parts.target is None else f":{parts.target}"
    return f"{parts.kernel}{version}{params and f'[{params}]'}{target}"


def _use_parts(parts: SpecText) -> None:
    assert parse_spec_text(spell(parts)) == parts
    texts = {}
    for name, text in parts.params:
        for kind in (bool, int, str):
            value = outcome(parse_value, text, kind, WHERE)
            if value is not None:
                again = parse_value(format_value(value), kind, WHERE)
                assert (again, type(again)) == (value, kind)
                texts[name] = value
    spec = outcome(
        lambda: CompileSpec(
            kernel=parts.kernel, version=parts.version or 1, params=texts, target=parts.target or "sm_90a"
        )
    )
    if spec is not None:
        again = parse_spec_text(str(spec))
        assert (again.kernel, again.version, again.target) == (spec.kernel, spec.version, spec.target)
        assert {name: parse_value(text, str, WHERE) for name, text in again.params} == texts


def _use_selector(selector: Selector, spec: str) -> None:
    kernels, targets, params = selector.texts()
    assert Selector(kernels=kernels, targets=targets, params=params) == selector
    assert selector.with_targets(targets) == selector
    outcome(selector.matches, MANIFEST, REGISTRY)
    outcome(selector.means, spec, REGISTRY)
    found = outcome(selector.specs, REGISTRY)
    if found is not None:
        assert found
        specs = [spec for _, spec in found]
        for each in specs:
            assert selector.means(str(each), REGISTRY)
            assert REGISTRY.parse(str(each)) == each
        assert len(set(specs)) == len(specs), "a selector means a variant twice"


def fuzz_cubin(data: bytes) -> None:
    """Ask an image for all that it can say."""
    image = outcome(Cubin, data)
    if image is None:
        return
    assert image.matches(image.describe_architecture())
    for target in ("sm_90", "sm_90a", "sm_100f", "sm_120a", ""):
        image.matches(target)
    image.names("tiny")
    sections = outcome(lambda: image.sections)
    outcome(image.facts, "tiny")
    if sections is None:
        return
    assert sum(len(section.data) for section in sections) <= len(data), "sections lie in each other"
    digest = image.code_digest()
    assert (Cubin(data).sections, Cubin(data).code_digest()) == (sections, digest)
    for symbol in image.kernels()[:KERNELS]:
        facts = outcome(image.facts, symbol)
        if facts is not None:
            assert facts.symbol == symbol
            assert image.names(symbol) or "\ufffd" in symbol
            assert all(offset < 1 << 16 and size < 1 << 14 for offset, size in facts.parameters)


def fuzz_lockfile(data: bytes) -> None:
    """Read a lockfile, write it, and read that."""
    lockfile = outcome(decode_lockfile, data, WHERE)
    if lockfile is None:
        return
    stored = encode_lockfile(lockfile)
    again = decode_lockfile(stored, WHERE)
    assert again == msgspec.structs.replace(lockfile, hardware=tuple(sorted(lockfile.hardware)))
    assert encode_lockfile(again) == stored
    cubins = outcome(lockfile.cubins)
    assert cubins is None or len(cubins) == len(lockfile.pins)


def fuzz_bundle(data: bytes) -> None:
    """Read a bundle to its end."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        path = f"{folder}/b.tar"
        with open(path, "wb") as file:
            file.write(data)
        found = outcome(lambda: _artifacts(path))
        assert found is None or 0 < len(found) < len(data) // 1024


def _artifacts(path: str) -> list[Artifact]:
    with open_bundle(path) as bundle:
        return list(bundle.artifacts())


def _bundle() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"{folder}/store")
        store.publish(make_artifact(1, cubin=make_cubin(code=b"code")))
        export_bundle(f"{folder}/b.tar", store, stored(store, Selector(), REGISTRY))
        with open(f"{folder}/b.tar", "rb") as file:
            return file.read()


TARGETS: dict[str, Callable[[bytes], None]] = {
    "bundle": fuzz_bundle,
    "manifest": fuzz_manifest,
    "spec": fuzz_spec,
    "cubin": fuzz_cubin,
    "lockfile": fuzz_lockfile,
}


MANIFEST = make_manifest()


def _pin(size: int, target: str = "sm_90a", **overrides: Any) -> Pin:
    spec = make_spec(params={"size": size}, target=target)
    return msgspec.structs.replace(pin(str(spec), make_artifact(size, spec=spec).manifest, "fake"), **overrides)


def _lockfile() -> Lockfile:
    receipt = Receipt(
        cubin=_pin(16).cubin, suite="tests/gpu", tests="a" * 64, device="a GPU", driver="13.0", torch="2.11",
        date="2026-12-01", passed=1, total=2,
    )  # fmt: skip
    return Lockfile(
        selection=Selection(kernels=("fake@1",), params=("size=2",)),
        toolchains={"fake": {"fake-compiler": "1.0"}},
        hardware=("sm_120a", "sm_90a"),
        pins=(_pin(2, "sm_120a"), _pin(2), _pin(16, receipt=receipt)),
    )


SEEDS: dict[str, list[bytes]] = {
    "bundle": [_bundle()],
    "manifest": [
        encode(MANIFEST),
        encode(
            make_manifest(
                make_cubin("sm_90"),
                make_spec(params={"size": 2, "note": "two w\u00f6rds", "on": True}, options={"opt_level": 3}),
            )
        ),
        b'{"manifest":2,"digest":"',
    ],
    "spec": [
        b"fake@1[size=2,mode=good]:sm_90a\nkfake\ntsm_90a\npsize=1",
        b'odd[count=-1,on=true,word="a,b"]:sm_100f\nkodd@10\npword="x]y"\npon=true',
        b"fake",
        "odd@10[word=\u00e9,on=false]".encode(),
    ],
    "cubin": [
        make_cubin(),
        make_cubin("sm_120a", "other", parameters=(), threads=None),
        make_cubin("sm_90", code=b"code"),
    ],
    "lockfile": [encode_lockfile(_lockfile()), encode_lockfile(Lockfile(toolchains={}, pins=()))],
}
"""Inputs that each reader takes, to be changed."""
