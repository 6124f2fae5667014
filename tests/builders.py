"""What tests are built from: one baseline of each thing, changed by keyword.

Only the differences from the baseline stand in a test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fake_backend
from tiny_elf import make_cubin

import kreg
from kreg import Artifact, CompileSpec, Kernel, KregWarning, Param, Store
from kreg.digest import sha256
from kreg.manifest import Launch, Manifest, encode
from kreg.toolchain import Toolchain

HERE = Path(__file__).parent
TARGET = "sm_90a"
SHIPPED = ("all_gather_pair", "all_gather_pair_kimi_topk", "kimi_topk16")
TOOLCHAIN = Toolchain(backend="fake", distributions={"fake-compiler": "1.0"})
OTHER_TOOLCHAIN = Toolchain(backend="fake", distributions={"fake-compiler": "2.0"})


def make_kernel(**overrides: Any) -> Kernel:
    """Return the fake kernel with some fields changed."""
    fields = {name: getattr(fake_backend.KERNEL, name) for name in Kernel.__slots__}
    return Kernel(**{**fields, "options": dict(fields["options"]), **overrides})


def make_param(**overrides: Any) -> Param:
    """Return an int parameter ``size`` with some fields changed."""
    fields: dict[str, Any] = {"name": "size", "kind": int, "allowed": (1, 2, 4), **overrides}
    return Param(fields.pop("name"), fields.pop("kind"), **fields)


def make_spec(**overrides: Any) -> CompileSpec:
    """Return the compile spec of the fake kernel at size 1, with some fields changed."""
    fields = {"kernel": "fake", "version": 1, "params": {"size": 1}, "target": TARGET, "options": {}}
    return CompileSpec(**{**fields, **overrides})


def make_manifest(cubin: bytes | None = None, spec: CompileSpec | None = None, **overrides: Any) -> Manifest:
    """Return a manifest that fits ``cubin`` and ``spec``, with some fields changed."""
    image = make_cubin() if cubin is None else cubin
    asked = spec or make_spec()
    sources = fake_backend.KERNEL.read_sources()
    fields: dict[str, Any] = {
        "spec_key": asked.key,
        "toolchain_key": TOOLCHAIN.fingerprint,
        "cubin_digest": sha256(image),
        "source_digest": sources.digest,
        "cubin_bytes": len(image),
        "kernel": asked.kernel,
        "version": asked.version,
        "params": dict(asked.params),
        "target": asked.target,
        "options": dict(asked.options),
        "backend": "fake_backend:BACKEND",
        "toolchain": dict(TOOLCHAIN.distributions),
        "symbol": "tiny",
        "launch": Launch(block=(128, 1, 1), grid=("rows", 1, 1), shared_bytes=1024),
        "parameters": [(0, 8), (8, 8), (16, 4)],
        "parameter_bytes": 20,
        "registers": 24,
        "local_bytes": 0,
        "static_shared_bytes": 512,
        "code_bytes": 128,
        "code_digest": "c" * 64,
        "built_from": sources.digest,
        "sources": sources.files,
        "compile_ms": 7,
    }
    return Manifest(**{**fields, **overrides})


def make_artifact(size: int = 1, cubin: bytes | None = None, **overrides: Any) -> Artifact:
    """Return an artifact of the fake kernel at ``size``, its cubin different for every size unless given."""
    spec = overrides.pop("spec", None) or make_spec(params={"size": size})
    image = make_cubin(spec.target, code=size.to_bytes(4, "little") * 32) if cubin is None else cubin
    return Artifact(encode(make_manifest(image, spec, **overrides)), image, "made for a test")


def read_spec(store: Store, artifact: Artifact) -> Artifact | None:
    """Read from a store what ``artifact`` would be stored as."""
    return store.read(artifact.manifest.spec, artifact.toolchain_key)


def entry_path(store: Store, artifact: Artifact) -> Path:
    """Return where a store keeps the manifest of ``artifact``."""
    spec = artifact.manifest.spec
    return Path(store.entry_path(spec.kernel, spec.version, spec.key, artifact.toolchain_key))


def object_path(store: Store, artifact: Artifact) -> Path:
    """Return where a store keeps the cubin of ``artifact``."""
    return Path(store.object_path(artifact.cubin_digest))


def flip(path: Path, position: int, mask: int = 1) -> None:
    """Flip bits of one byte of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def resolve_anew(root: object, **changes: Any) -> Artifact:
    """Resolve the fake kernel at size 1, as a process does that remembers nothing."""
    kreg.forget()
    return kreg.resolve(fake_backend.KERNEL, **{"size": 1, "target": TARGET, "store": root, **changes})


def files_below(folder: str | Path) -> dict[str, bytes]:
    """Return every regular file below a folder with its content."""
    root = Path(folder)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def child_environment(**variables: str) -> dict[str, str]:
    """Return this process's environment for a child that finds the modules of this folder, with some variables set."""
    return {**os.environ, "PYTHONPATH": str(HERE), **variables}


def python(code: str, *arguments: str, environment: Mapping[str, str] | None = None, **options: Any) -> str:
    """Run code in a fresh interpreter and return what it prints; it must succeed."""
    command = [sys.executable, "-c", code, *arguments]
    given = child_environment() if environment is None else dict(environment)
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=120, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start_python(script: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start a script of this folder that is told what to do on its standard input."""
    return subprocess.Popen(
        [sys.executable, str(HERE / script), *arguments],
        env=child_environment(**variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(child: subprocess.Popen[str], said: str = "") -> str:
    """Say the last thing to a child, wait for its end, and return what it printed; it must succeed."""
    output, errors = child.communicate(said, timeout=120)
    assert child.returncode == 0, errors
    return output


def as_nobody(action: Callable[[], str]) -> str:
    """Return what ``action`` returns where file modes count: as another user if this one is root."""
    if os.geteuid() != 0:
        return action()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(writer, action().encode())
        except BaseException as error:  # noqa: BLE001 - a test that fails must not end two processes
            os.write(writer, f"raised {type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as said:
        text = said.read()
    os.waitpid(child, 0)
    return text


def raises_os_error(number: int, when: Callable[..., bool], real: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``real``, changed to raise an ``OSError`` for the calls that ``when`` says."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if when(*args):
            raise OSError(number, os.strerror(number), args[0])
        return real(*args, **kwargs)

    return call


def warnings_of(action: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return what ``action`` returns and the warnings it gives, which must all be kreg's."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        result = action()
    assert all(item.category is KregWarning for item in given)
    return result, [str(item.message) for item in given]
