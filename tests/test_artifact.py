"""Artifacts: a cubin and a manifest that are proven to belong together."""

from __future__ import annotations

import re

import pytest
from builders import TOOLCHAIN, make_artifact, make_manifest, make_spec
from tiny_elf import make_cubin

from kreg import Artifact
from kreg.digest import sha256
from kreg.errors import StoreError
from kreg.header import write_header
from kreg.manifest import encode


def test_artifact_has_what_the_manifest_says():
    artifact = make_artifact(2)
    assert artifact.key == make_spec(params={"size": 2}).key
    assert artifact.toolchain_key == TOOLCHAIN.fingerprint
    assert artifact.entry_key == f"{artifact.key}-{artifact.toolchain_key}"
    assert artifact.cubin_digest == sha256(artifact.cubin)
    assert artifact.manifest == make_manifest(artifact.cubin, make_spec(params={"size": 2}))
    assert (artifact.symbol, artifact.launch) == (artifact.manifest.symbol, artifact.manifest.launch)


def test_artifact_shows_its_spec_and_short_keys():
    artifact = make_artifact()
    assert repr(artifact) == (
        f"<Artifact fake@1[size=1]:sm_90a {artifact.key[:12]} cubin {artifact.cubin_digest[:12]} from made for a test>"
    )


def test_artifact_refuses_another_cubin():
    with pytest.raises(StoreError, match=r"^the cubin of manifest here does not match its digest$"):
        Artifact(encode(make_manifest()), make_cubin(registers=25), "here")


def test_artifact_refuses_a_manifest_that_is_cut_short():
    with pytest.raises(StoreError, match=r"^manifest here does not match its own digest$"):
        Artifact(encode(make_manifest())[:-1], make_cubin(), "here")


def test_artifact_of_a_wrong_shape_is_found_out_when_the_manifest_is_asked_for():
    cubin = make_cubin()
    data = write_header(("a" * 64, "b" * 64, sha256(cubin), "d" * 64), '"kernel":7')
    artifact = Artifact(data, cubin, "here")
    assert artifact.cubin == cubin
    with pytest.raises(StoreError, match=re.escape("manifest here is not a manifest: Expected `str`, got `int`")):
        _ = artifact.manifest
