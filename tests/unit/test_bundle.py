"""A bundle's file: what is written is read again, and nothing else is taken for one."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operations.archive import Writer, beside, check_tree, contents, open_bundle
from plans.bundle import BLOCK, MANIFEST, BundleError, header, padding, read_manifest, size_in
from tests.unit.bundles import IMAGE_BYTES, manifest, member, written

FILES = {"config.json": b"{}", "model.safetensors": b"w" * 3000, "empty": b""}
CONTENTS = [IMAGE_BYTES, *FILES.values()]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle with an image and a model of three files."""
    path = tmp_path / "site.bundle"
    written(path, manifest(FILES), CONTENTS)
    return path


def refused(path: Path, expected: str | None = None) -> str:
    """Return why a file is no bundle."""
    with pytest.raises(BundleError) as caught:
        open_bundle(path, expected)
    return str(caught.value)


def test_what_was_written_is_read_again(bundle: Path) -> None:
    found = open_bundle(bundle)
    assert found.manifest == manifest(FILES)
    assert found.sha256 == beside(bundle).read_text().split()[0]
    for content in CONTENTS:
        assert b"".join(contents(found, member(content))) == content


def test_any_tar_reads_it(bundle: Path) -> None:
    with tarfile.open(bundle) as archive:
        names = archive.getnames()
        assert names == [MANIFEST, *(f"sha256/{member(c).sha256}" for c in CONTENTS)]
        assert all(one.isreg() and one.mode == 0o644 for one in archive.getmembers())
        first = archive.extractfile(names[0])
        assert first is not None
        assert hashlib.sha256(first.read()).hexdigest() == open_bundle(bundle).sha256


def test_a_content_that_several_files_have_is_in_it_once(tmp_path: Path) -> None:
    path = tmp_path / "b"
    written(path, manifest({"a": b"same", "b": b"same"}), [IMAGE_BYTES, b"same"])
    assert len(open_bundle(path).manifest.members) == 2


@pytest.mark.parametrize("size", [0, 1, 8**11 - 1, 8**11, 2**62])
def test_a_header_says_its_size_however_large(size: int) -> None:
    block = header("sha256/" + "a" * 64, size)
    assert len(block) == BLOCK
    assert size_in(block, "sha256/" + "a" * 64) == size
    assert tarfile.TarInfo.frombuf(block, "utf-8", "strict").size == size


@pytest.mark.parametrize("keep", [0, 100, BLOCK, 2000, -1, -1025, -3000])
def test_a_file_that_was_cut_is_refused(bundle: Path, keep: int) -> None:
    data = bundle.read_bytes()
    bundle.write_bytes(data[:keep])
    assert refused(bundle).startswith("BUNDLE_DAMAGED: ")


def test_what_stands_after_its_end_is_refused(bundle: Path) -> None:
    with bundle.open("ab") as file:
        file.write(b"\0" * BLOCK)
    assert "512 bytes after its end" in refused(bundle)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_changed_byte_is_ever_installed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("b") / "b"
    written(path, manifest(FILES), CONTENTS)
    whole = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    try:
        found = open_bundle(path)
        read = [b"".join(contents(found, one)) for one in found.manifest.members]
    except BundleError:
        return
    # Padding between two files is no content.
    assert read == CONTENTS


def test_a_content_that_was_changed_is_refused_before_its_last_piece(bundle: Path) -> None:
    found = open_bundle(bundle)
    data = bytearray(bundle.read_bytes())
    data[found.places[member(IMAGE_BYTES).sha256] + 5] ^= 1
    bundle.write_bytes(data)
    pieces = contents(open_bundle(bundle), member(IMAGE_BYTES))
    with pytest.raises(BundleError, match=r"BUNDLE_DAMAGED: site\.bundle is damaged"):
        next(pieces)


def hostile(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> None:
    """Write an archive with a real manifest and these members, as another program would."""
    text = manifest(FILES).to_bytes()
    first = tarfile.TarInfo(MANIFEST)
    first.size = len(text)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(first, io.BytesIO(text))
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    # Its first header made ours, so that what comes after it is what is judged.
    data = path.read_bytes()
    path.write_bytes(header(MANIFEST, len(text)) + data[BLOCK:])


@pytest.mark.parametrize("name", ["/etc/passwd", "../../etc/passwd", "sha256/../../x"])
def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(IMAGE_BYTES)
    hostile(tmp_path / "b", (info, IMAGE_BYTES))
    assert refused(tmp_path / "b").startswith("BUNDLE_DAMAGED: ")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_a_link_or_a_device_under_a_right_name_is_refused(bundle: Path, kind: bytes) -> None:
    found = open_bundle(bundle)
    data = bytearray(bundle.read_bytes())
    at = found.places[member(IMAGE_BYTES).sha256] - BLOCK
    info = tarfile.TarInfo.frombuf(bytes(data[at : at + BLOCK]), "utf-8", "strict")
    info.type, info.linkname = kind, "/etc/shadow"
    data[at : at + BLOCK] = info.tobuf(tarfile.USTAR_FORMAT)
    bundle.write_bytes(data)
    assert "does not have sha256/" in refused(bundle)


def test_a_size_that_is_not_the_manifest_s_is_refused(bundle: Path) -> None:
    found = open_bundle(bundle)
    data = bytearray(bundle.read_bytes())
    at = found.places[member(IMAGE_BYTES).sha256] - BLOCK
    data[at : at + BLOCK] = header(member(IMAGE_BYTES).name, 10**15)
    bundle.write_bytes(data)
    assert "does not have sha256/" in refused(bundle)


def with_manifest(path: Path, text: bytes) -> None:
    """Write a file that begins as a bundle with this manifest."""
    path.write_bytes(header(MANIFEST, len(text)) + text + b"\0" * padding(len(text)))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"schema_version": 1}',
        b'{"schema_version": true}',
    ],
)
def test_a_manifest_that_is_none_is_one_sentence(tmp_path: Path, text: bytes) -> None:
    with_manifest(tmp_path / "b", text)
    assert refused(tmp_path / "b").startswith("BUNDLE_DAMAGED: the manifest of b is no ")


def test_a_manifest_of_a_newer_schema_says_so(tmp_path: Path) -> None:
    with_manifest(tmp_path / "b", b'{"schema_version": 2}')
    assert "a newer one made it. Update sglang-node" in refused(tmp_path / "b")


def test_a_manifest_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(header(MANIFEST, 10**12))
    assert "a manifest of 1.0 TB" in refused(tmp_path / "b")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("path", "../../etc/passwd"),
        ("path", "/etc/passwd"),
        ("checksum", "../../x"),
        ("path", "a\nb"),
    ],
)
def test_a_model_s_file_that_leads_out_is_refused(key: str, value: str) -> None:
    document = manifest(FILES).model_dump(mode="json")
    document["models"][0]["files"][0][key] = value
    with pytest.raises(BundleError, match="BUNDLE_DAMAGED"):
        read_manifest(json.dumps(document).encode(), "b")


def test_a_content_with_two_sizes_is_refused() -> None:
    document = manifest(FILES).model_dump(mode="json")
    document["models"][0]["files"][0]["content"] = {"sha256": member(IMAGE_BYTES).sha256, "size": 1}
    with pytest.raises(BundleError, match="has two sizes"):
        read_manifest(json.dumps(document).encode(), "b")


def test_another_hash_than_was_asked_for_is_refused(bundle: Path) -> None:
    found = open_bundle(bundle)
    sha256 = found.sha256
    assert not found.proved
    assert open_bundle(bundle, sha256).proved
    assert open_bundle(bundle, sha256.upper()).sha256 == sha256
    assert refused(bundle, "0" * 64).startswith("BUNDLE_HASH: site.bundle has the manifest ")
    beside(bundle).write_text(f"{'0' * 64}  manifest.json\n")
    assert "site.bundle.sha256 says another" in refused(bundle)
    beside(bundle).unlink()
    assert open_bundle(bundle, sha256).sha256 == sha256


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refused(tmp_path / "nothing")


def test_a_bundle_has_its_name_only_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "b"
    writer = Writer(path, manifest(FILES))
    writer.write(IMAGE_BYTES + b"{}")
    assert not path.exists()
    with pytest.raises(BundleError, match="sent less"):
        writer.finish()
    writer.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sent", [b"x" * len(IMAGE_BYTES), b"".join(CONTENTS) + b"more"])
def test_what_a_node_sends_is_what_it_said_or_no_bundle(tmp_path: Path, sent: bytes) -> None:
    writer = Writer(tmp_path / "b", manifest(FILES))
    with pytest.raises(BundleError, match="BUNDLE_FAILED"):
        writer.write(sent)
    writer.discard()


def tree(*members: tuple[str, bytes, str]) -> bytes:
    """Return a tar archive of these members: name, kind, and where a link leads."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            info.size = 3 if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(b"abc"))
    return out.getvalue()


FILE, LINK, HARD, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


def test_a_python_of_files_and_links_within_is_taken() -> None:
    data = tree(
        ("cp", FOLDER, ""), ("cp/bin", FOLDER, ""), ("cp/bin/python3.12", FILE, ""),
        ("cp/bin/python3", LINK, "python3.12"), ("cp/lib/x", LINK, "../bin/python3.12"),
        ("cp/bin/hard", HARD, "cp/bin/python3.12"),
    )  # fmt: skip
    check_tree(iter([data[:700], data[700:]]), "cp", len(data))


@pytest.mark.parametrize(
    "members",
    [
        [("/etc/passwd", FILE, "")],
        [("../x", FILE, "")],
        [("cp/../../x", FILE, "")],
        [("other/x", FILE, "")],
        [("cp/x", LINK, "/etc/passwd")],
        [("cp/x", LINK, "../../etc")],
        [("cp/x", HARD, "../etc/passwd")],
        [("cp/x", HARD, "/etc/passwd")],
        [("cp/x", tarfile.CHRTYPE, "")],
        [("cp/x", tarfile.FIFOTYPE, "")],
        # Each of the two is within, and together they are not.
        [("cp/a/b/d", LINK, "../.."), ("cp/a/b/d/l", LINK, "../../../x")],
        [("cp/d", LINK, "bin"), ("cp/d/x", FILE, "")],
    ],
)
def test_a_python_that_leads_out_is_refused(members: list[tuple[str, bytes, str]]) -> None:
    data = tree(*members)
    with pytest.raises(BundleError, match=r"BUNDLE_DAMAGED: the Python in it"):
        check_tree(iter([data]), "cp", len(data))


def test_a_python_that_is_no_archive_or_too_large_is_refused() -> None:
    for data, size in ((b"x" * 2000, 2000), (b"", 10**12)):
        with pytest.raises(BundleError, match=r"BUNDLE_DAMAGED: the Python in it"):
            check_tree(iter([data]), "cp", size)
