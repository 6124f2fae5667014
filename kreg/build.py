"""Building: from a compile spec to an artifact that has been checked.

A backend compiles; what must hold for every artifact is checked here, once: the image is for the target, the entry
symbol is in it, and the block it was compiled for is the block it will be launched with. Nothing is published here.
"""

from __future__ import annotations

import os

from kreg.artifact import Artifact
from kreg.backends import load_backend
from kreg.backends.protocol import Compiled
from kreg.cubin import Cubin, KernelFacts
from kreg.digest import sha256
from kreg.errors import CompileError, CubinError, DeclarationError, ToolchainError
from kreg.kernel import Kernel
from kreg.manifest import Manifest, encode
from kreg.spec import CompileSpec
from kreg.toolchain import Toolchain


def compile_artifact(kernel: Kernel, spec: CompileSpec) -> Artifact:
    """Compile ``spec`` and return the checked artifact.

    Raises ``CompileError`` (with the log), ``ToolchainError`` if the compiler is not installed, and
    ``DeclarationError`` if the code is also made from a file that the declaration leaves out.
    """
    toolchain = require_toolchain(kernel, spec)
    sources = kernel.read_sources()
    compiled = load_backend(kernel.backend).compile(kernel, spec)
    if require_toolchain(kernel, spec) != toolchain:
        raise CompileError(f"the compiler was replaced while {spec} was compiled; compile it again")
    if kernel.read_sources() != sources:
        raise CompileError(f"a source of {kernel.label} changed while {spec} was compiled; compile it again")
    _refuse_undeclared(kernel, compiled.files)
    facts, code_digest = _check(compiled, spec)
    manifest = Manifest(
        spec_key=spec.key,
        toolchain_key=toolchain.fingerprint,
        cubin_digest=sha256(compiled.cubin),
        source_digest=sources.digest,
        cubin_bytes=len(compiled.cubin),
        kernel=spec.kernel,
        version=spec.version,
        params=dict(spec.params),
        target=spec.target,
        options=dict(spec.options),
        backend=kernel.backend,
        toolchain=dict(toolchain.distributions),
        symbol=compiled.symbol,
        launch=compiled.launch,
        parameters=list(facts.parameters),
        parameter_bytes=facts.parameter_bytes,
        registers=facts.registers,
        local_bytes=facts.local_bytes,
        static_shared_bytes=facts.static_shared_bytes,
        code_bytes=facts.code_bytes,
        code_digest=code_digest,
        built_from=sources.digest,
        sources=sources.files,
        compile_ms=compiled.milliseconds,
    )
    return Artifact(encode(manifest), compiled.cubin, "compiled")


def require_toolchain(kernel: Kernel, spec: CompileSpec) -> Toolchain:
    """Return the installed toolchain of a kernel's backend. Raises ``ToolchainError`` that says what to install."""
    backend = load_backend(kernel.backend)
    toolchain = backend.toolchain()
    if toolchain is None:
        raise ToolchainError(f"cannot compile `{spec}`: its compiler is not installed; run `{backend.missing()}`")
    return toolchain


def _refuse_undeclared(kernel: Kernel, files: tuple[str, ...]) -> None:
    """Refuse a declaration that leaves out a file of its own package: a change of it would go unseen."""
    declared = {os.path.realpath(path) for path in kernel.source_paths()}
    missing = [path for path in files if os.path.realpath(path) not in declared]
    if missing:
        folder = os.path.dirname(kernel.file)
        names = ", ".join(repr(os.path.relpath(path, folder)) for path in missing)
        raise DeclarationError(f"{kernel.label} is also made from {names}; add it to `sources` in {kernel.file}")


def _check(compiled: Compiled, spec: CompileSpec) -> tuple[KernelFacts, str]:
    try:
        image = Cubin(compiled.cubin)
        facts = image.facts(compiled.symbol)
    except CubinError as error:
        raise CompileError(f"the compiler made no usable cubin of {spec}: {error}") from error
    if not image.matches(spec.target):
        raise CompileError(f"the compiler made a cubin for {image.describe_architecture()} of {spec}")
    if facts.threads not in (None, compiled.launch.block):
        raise CompileError(f"{spec} was compiled for blocks of {facts.threads}, declared {compiled.launch.block}")
    return facts, image.code_digest()
