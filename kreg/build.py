"""Building: from a compile spec to an artifact that has been checked.

A backend compiles; what must hold for every artifact is checked here, once: the image is for the target, the entry
symbol is in it, and the block it was compiled for is the block it will be launched with. Nothing is published here.
"""

from __future__ import annotations

from kreg.artifact import Artifact
from kreg.backends import load_backend
from kreg.backends.protocol import Compiled
from kreg.cubin import Cubin, KernelFacts
from kreg.digest import sha256
from kreg.errors import CompileError, CubinError, ToolchainError
from kreg.kernel import Kernel
from kreg.manifest import Manifest, encode
from kreg.spec import CompileSpec
from kreg.toolchain import Toolchain


def compile_artifact(kernel: Kernel, spec: CompileSpec) -> Artifact:
    """Compile ``spec`` and return the checked artifact.

    Raises ``CompileError`` (with the log), ``ToolchainError`` if the compiler is not installed.
    """
    toolchain = require_toolchain(kernel, spec)
    sources = kernel.source_digest()
    compiled = load_backend(kernel.backend).compile(kernel, spec)
    if kernel.source_digest() != sources:
        raise CompileError(f"a source of {kernel.label} changed while {spec} was compiled; compile it again")
    facts, code_digest = _check(compiled, spec)
    manifest = Manifest(
        spec_key=spec.key,
        toolchain_key=toolchain.fingerprint,
        cubin_digest=sha256(compiled.cubin),
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
        source_digest=sources,
        sources=list(kernel.sources),
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
