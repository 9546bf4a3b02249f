"""Images as mappings and as trees."""

import errno
import io
import os
import pathlib
import pickle
import stat

import pytest

import redwarfs
from conftest import NUMBERS

FILES = ["empty", "odd-\udcff", "a/again", "a/numbers", "a/text.txt", "a/b/file"]


def test_an_image_is_a_mapping_of_its_files(image):
    assert sorted(image) == sorted(FILES) == sorted(image.keys())
    assert len(image) == 6
    assert image["a/b/file"] == b"0123456789" == image[b"/a//b/./file"]
    assert image[pathlib.PurePath("a/numbers")] == NUMBERS
    assert image.get("missing") is None
    assert image["link"] == image["dirlink/file"] == b"0123456789"
    for path in ["a/b/file", b"odd-\xff", "odd-\udcff", "link", "dirlink/file"]:
        assert path in image, path
    for path in ["a", "missing", "nowhere", "round", "a/b/file/more", "", 3, "pipe"]:
        assert path not in image, path
    for path in ["a", "missing", "a/b/file/more"]:
        with pytest.raises(KeyError):
            image[path]
    assert dict(image.items())["empty"] == b""
    assert image == image and image != redwarfs.open(image.name) and {image: 1}
    assert image and redwarfs.open(vector_of_nothing())


def vector_of_nothing():
    target = io.BytesIO()
    redwarfs.Writer(target).close()
    return target


def test_paths_that_are_not_there_raise_what_open_raises(image):
    for operation, path, wanted, number in [
        (image.read, "missing", FileNotFoundError, errno.ENOENT),
        (image.read, "nowhere", FileNotFoundError, errno.ENOENT),
        (image.read, "a", IsADirectoryError, errno.EISDIR),
        (image.read, "pipe", OSError, errno.EINVAL),
        (image.read, "a/b/file/x", NotADirectoryError, errno.ENOTDIR),
        (image.read, "round", OSError, errno.ELOOP),
        (image.stat, "missing", FileNotFoundError, errno.ENOENT),
        (image.readlink, "a", OSError, errno.EISDIR),
        (image.readlink, "a/b/file", OSError, errno.EINVAL),
        (image.listdir, "empty", NotADirectoryError, errno.ENOTDIR),
        (image.scandir, "missing", FileNotFoundError, errno.ENOENT),
        (image.open, "missing", FileNotFoundError, errno.ENOENT),
    ]:
        with pytest.raises(wanted) as caught:
            operation(path)
        assert caught.value.errno == number, (operation, path)
        assert caught.value.filename == path


def test_attributes(image):
    found = image.stat("a/b/file")
    assert isinstance(found, os.stat_result)
    assert found.st_mode == stat.S_IFREG | 0o640
    assert (found.st_uid, found.st_gid, found.st_size, found.st_nlink) == (1000, 100, 10, 2)
    assert found.st_mtime_ns == 1_600_000_000 * 10**9 and found.st_mtime == 1_600_000_000.0
    assert found.st_blocks == 1 and found.st_rdev == 0 and found.st_blksize > 0
    assert found.st_ino == image.stat("a/again").st_ino
    assert image.stat("link").st_size == 10
    assert stat.S_ISLNK(image.lstat("link").st_mode)
    assert image.stat("void").st_mode == stat.S_IFDIR | 0o700
    assert image.readlink("dirlink") == "/a/b"
    assert image.is_symlink("nowhere") and not image.exists("nowhere")
    assert image.exists("nowhere", follow_symlinks=False)
    assert image.is_dir("") and image.is_dir("dirlink") and not image.is_dir("link")
    assert image.is_file("link") and not image.is_file("pipe")
    assert not image.exists("round") and not image.is_dir("round/more")


def test_extended_attributes(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("marked", "plain"):
        (tree / name).write_text(name)
    try:
        os.setxattr(tree / "marked", "user.one", b"1")
        os.setxattr(tree / "marked", "user.two", bytes(range(256)))
    except OSError:
        pytest.skip("the file system has no extended attributes")
    (tree / "link").symlink_to("marked")
    redwarfs.build(tree, tmp_path / "image")
    image = redwarfs.open(tmp_path / "image")
    assert image.listxattr("marked") == ["user.one", "user.two"] == image.listxattr("link")
    assert image.getxattr("marked", "user.two") == bytes(range(256))
    assert image.getxattr("link", b"user.one") == b"1"
    assert image.listxattr("plain") == [] == image.listxattr("link", follow_symlinks=False)
    for path, name in [("plain", "user.one"), ("marked", "user.none")]:
        with pytest.raises(OSError) as caught:
            image.getxattr(path, name)
        assert caught.value.errno == errno.ENODATA and caught.value.filename == path
    with pytest.raises(FileNotFoundError):
        image.listxattr("missing")


def test_directories_are_listed_as_by_os(image):
    assert image.listdir("a") == ["again", "b", "numbers", "text.txt"]
    assert image.listdir() == sorted(image.listdir())
    with image.scandir("") as entries:
        found = {entry.name: entry for entry in entries}
    assert os.fspath(found["link"]) == "link"
    assert found["link"].is_symlink() and found["link"].is_file()
    assert not found["link"].is_file(follow_symlinks=False)
    assert found["dirlink"].is_dir() and not found["nowhere"].is_dir()
    assert found["link"].stat().st_size == 10
    assert found["link"].stat(follow_symlinks=False).st_size == len("a/b/file")
    assert found["empty"].inode() == image.stat("empty").st_ino
    assert [entry.path for entry in image.scandir("dirlink")] == ["dirlink/file"]


def test_walk_is_that_of_os(image, tmp_path):
    image.extract(tmp_path)

    def real(**how):
        found = []
        for path, directories, files in os.walk(tmp_path, **how):
            links = [name for name in directories if os.path.islink(os.path.join(path, name))]
            directories = sorted(set(directories) - set(links))
            path = os.path.relpath(path, tmp_path)
            found.append(("" if path == "." else path, directories, sorted(files + links)))
        return sorted(found)

    def ours(**how):
        return sorted((p, sorted(d), sorted(f)) for p, d, f in image.walk(**how))

    assert ours() == real() == ours(topdown=False)
    assert [path for path, _, _ in image.walk()] == ["", "a", "a/b", "void"]
    assert [path for path, _, _ in image.walk(topdown=False)] == ["void", "a/b", "a", ""]
    seen = []
    for path, directories, _ in image.walk():
        seen.append(path)
        directories[:] = [name for name in directories if name != "a"]
    assert seen == ["", "void"]
    errors = []
    assert list(image.walk("missing", onerror=errors.append)) == []
    assert isinstance(errors[0], FileNotFoundError)
    assert list(image.walk("missing")) == []
    with pytest.raises(ValueError):
        image.walk(followlinks=True)
    assert sorted(image.files("a")) == ["a/again", "a/b/file", "a/numbers", "a/text.txt"]


def test_patterns(image):
    def glob(pattern, top=""):
        return sorted(image.glob(pattern, top))

    assert glob("*.txt") == []
    assert glob("**/*.txt") == ["a/text.txt"]
    assert glob("a/*") == ["a/again", "a/b", "a/numbers", "a/text.txt"]
    assert glob("a/*/") == ["a/b"]
    assert glob("*/file") == ["dirlink/file"]
    assert glob("**/file") == ["a/b/file"]
    assert glob("[el]*") == ["empty", "link"]
    assert glob("a/missing") == [] == glob("link/x")
    assert glob("nowhere") == ["nowhere"]
    assert glob("*", "a/b") == ["a/b/file"]
    assert glob("**", "a") == ["a", "a/again", "a/b", "a/b/file", "a/numbers", "a/text.txt"]
    assert glob("**/**/file") == ["a/b/file"]
    for pattern in ["", "..", "a/../b"]:
        with pytest.raises(ValueError):
            list(image.glob(pattern))


def test_many_files_come_in_the_given_order(image):
    paths = ["a/numbers", "empty", "link", "odd-\udcff", "a/numbers", "a/text.txt"]
    for threads in (None, 1, 3, 1000):
        assert image.read_many(paths, threads) == [image[path] for path in paths]
    assert image.read_many([]) == [] and image.read_many(iter(["empty"])) == [b""]
    with pytest.raises(FileNotFoundError) as caught:
        image.read_many(["empty", "missing"])
    assert caught.value.filename == "missing"
    with pytest.raises(ValueError):
        image.read_many(paths, threads=0)


def test_parts_of_files(image):
    assert image.read("a/b/file", 3) == b"3456789"
    assert image.read("a/b/file", 3, 2) == b"34"
    assert image.read("a/b/file", 20) == b"" == image.read("a/b/file", 0, 0)
    assert image.read("a/b/file", 8, 1 << 62) == b"89"
    assert image.read("a/numbers", 100_000, 70_000) == NUMBERS[100_000:170_000]
    for offset, size in [(-1, None), (0, -1)]:
        with pytest.raises(ValueError):
            image.read("a/b/file", offset, size)
    assert image.read_text("a/text.txt") == "first\nsecond äöü\nthird"


def test_sources_of_all_kinds(image_path, tmp_path):
    data = image_path.read_bytes()

    class Plain:
        """The least that a file object has."""

        def __init__(self):
            self.position = 0

        def seek(self, offset, whence=0):
            self.position = offset if whence == 0 else len(data) + offset
            return self.position

        def read(self, size):
            # Fewer bytes than asked for are no end.
            part = data[self.position : self.position + min(size, 1000)]
            self.position += len(part)
            return part

    with open(image_path, "rb") as file, open(image_path, "rb", buffering=0) as raw:
        sources = [
            str(image_path),
            os.fsencode(image_path),
            image_path,
            file.fileno(),
            file,
            raw,
            io.BytesIO(data),
            memoryview(data),
            bytearray(data),
            Plain(),
        ]
        images = [redwarfs.open(source) for source in sources]
    # Descriptors are duplicated.
    for image in images:
        assert image["a/numbers"] == NUMBERS, image
        assert image.read_many(["a/numbers", "link"], 4) == [NUMBERS, b"0123456789"]
    for wrong in [None, 1.5, io.StringIO("text")]:
        with pytest.raises((TypeError, AttributeError, OSError, redwarfs.RedwarfsError)):
            redwarfs.open(wrong)
    with pytest.raises(OSError) as caught:
        redwarfs.open(987654)
    assert caught.value.errno == errno.EBADF

    class Broken(Plain):
        def read(self, size):
            raise TimeoutError(errno.ETIMEDOUT, "the server does not answer")

    with pytest.raises(OSError, match="does not answer"):
        redwarfs.open(Broken())


def test_options_of_opening(image_path, tmp_path):
    shifted = tmp_path / "shifted"
    shifted.write_bytes(b"x" * 1000 + image_path.read_bytes())
    size = image_path.stat().st_size
    for options in [
        {},
        {"offset": 1000},
        {"cache_size": 0},
        {"readahead": False},
        {"check": True},
        {"verify": False},
        {"image_size": size},
        {"lazy": True},
    ]:
        image = redwarfs.open(shifted, **options)
        assert image["a/numbers"] == NUMBERS, options
    assert image.info().offset == 1000
    with pytest.raises(redwarfs.NotAnImageError):
        redwarfs.open(shifted, offset=5)
    with pytest.raises(TypeError):
        redwarfs.open(shifted, cachesize=5)
    lazy = redwarfs.open(tmp_path / "missing", lazy=True)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            lazy.listdir()


def test_what_an_image_must_prove(image_path, tmp_path):
    root = pathlib.Path(__file__).parents[2] / "tests"
    path, keys = root / "vectors/signed.bin", root / "fixtures/keys"
    image = redwarfs.open(path, verify=f"signed:{keys / 'ssh.pub'}")
    assert image["only"] == redwarfs.open(path)["only"]
    info = image.info()
    assert info.digests_time == 1_700_000_000 and "SSH key SHA256:" in info.signer
    assert pickle.loads(pickle.dumps(image))["only"] == image["only"]
    info = redwarfs.open(path, verify="digests").info()
    assert info.digests_time == 1_700_000_000 and info.signer is None
    assert redwarfs.open(path).info().digests_time is None
    for refused in (path, image_path):
        with pytest.raises(redwarfs.UnverifiedError):
            redwarfs.open(refused, verify=f"signed:{keys / 'minisign.pub'}")
    with pytest.raises(redwarfs.OptionError):
        redwarfs.open(path, verify="believed")
    with pytest.raises(FileNotFoundError):
        redwarfs.open(path, verify=f"signed:{tmp_path / 'none'}")
    changed = bytearray(path.read_bytes())
    changed[100] ^= 1
    (tmp_path / "changed").write_bytes(changed)
    image = redwarfs.open(tmp_path / "changed", verify=f"signed:{keys / 'ssh.pub'}")
    with pytest.raises(redwarfs.CorruptImageError):
        image["only"]


def test_files_that_are_no_images(tmp_path):
    text = tmp_path / "text"
    text.write_text("text" * 100)
    with pytest.raises(redwarfs.NotAnImageError) as caught:
        redwarfs.open(text)
    error = caught.value
    assert isinstance(error, (OSError, ValueError)) and isinstance(error, redwarfs.RedwarfsError)
    assert error.filename == str(text) and error.errno == errno.EINVAL and str(text) in str(error)
    with pytest.raises(FileNotFoundError) as missing:
        redwarfs.open(tmp_path / "missing")
    assert str(missing.value) == f"[Errno 2] No such file or directory: '{tmp_path}/missing'"
    with pytest.raises(IsADirectoryError):
        redwarfs.open(tmp_path)


def test_numbers_about_the_image(image, image_path):
    info = image.info()
    assert info.version.startswith("2.") and info.image_size == image_path.stat().st_size
    assert info.block_size == 1 << 16 and info.blocks > 1 and info.files == 5
    assert info.original_size > len(NUMBERS)


def test_damage_is_found(image_path):
    data = bytearray(image_path.read_bytes())
    assert redwarfs.open(data).verify() == [] == redwarfs.open(data).verify(deep=True, threads=2)
    # In the payload of the first block.
    data[100] ^= 1
    image = redwarfs.open(data)
    findings = image.verify()
    assert [finding.kind for finding in findings] == ["checksum"]
    assert findings[0].affected == len(findings[0].paths) > 0
    with pytest.raises(redwarfs.CorruptImageError) as caught:
        image.read_many(list(image))
    assert caught.value.errno == errno.EIO and "section" in str(caught.value)


def test_extraction(image, tmp_path):
    done = image.extract(tmp_path / "all")
    assert done.files == 5 and done.errors == 0
    assert (tmp_path / "all/a/again").read_bytes() == b"0123456789"
    assert (tmp_path / "all/void").stat().st_mode & 0o777 == 0o700
    assert os.readlink(tmp_path / "all/link") == "a/b/file"

    image.extract(tmp_path / "some", paths=["a/b", "/empty"])
    found = sorted(str(p.relative_to(tmp_path / "some")) for p in (tmp_path / "some").rglob("*"))
    assert found == ["a", "a/again", "a/b", "a/b/file", "empty"][:1] + ["a/b", "a/b/file", "empty"]
    with pytest.raises(FileNotFoundError):
        image.extract(tmp_path / "none", paths=["missing"])

    seen = []
    image.extract(
        tmp_path / "chosen",
        select=lambda path, kind: seen.append((path, kind)) or path.endswith(".txt"),
    )
    assert (tmp_path / "chosen/a/text.txt").exists() and not (tmp_path / "chosen/empty").exists()
    assert ("pipe", stat.S_IFIFO) in seen

    def fails(path, kind):
        raise LookupError("no")

    with pytest.raises(LookupError):
        image.extract(tmp_path / "failed", select=fails)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        image.extract(tmp_path / "file")
