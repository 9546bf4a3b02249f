"""Paths, and imports from images."""

import importlib
import importlib.resources
import importlib.resources.abc
import pathlib
import pickle
import pkgutil
import subprocess
import sys

import pytest

import redwarfs
import redwarfs.importer


def test_paths_are_those_of_zipfile(image_path):
    root = redwarfs.Path(image_path)
    assert isinstance(root, importlib.resources.abc.Traversable)
    path = root / "a" / "text.txt"
    assert path.at == "a/text.txt" == root.joinpath("a", "text.txt").at == (root / "/a//text.txt").at
    assert (path.name, path.stem, path.suffix, path.parent.at) == ("text.txt", "text", ".txt", "a")
    assert (root / "x.tar.gz").suffixes == [".tar", ".gz"] and (root / ".rc").suffixes == []
    assert str(path) == f"{image_path}/a/text.txt" == path.filename
    assert root.name == "tree.dwarfs" and root.parent == root and "a/text.txt" in repr(path)
    assert path.is_file() and path.exists() and not path.is_dir() and path.parent.is_dir()
    assert path.read_text().startswith("first") and path.read_bytes().startswith(b"first")
    with path.open(encoding="utf-8") as file:
        assert file.readline() == "first\n"
    with path.open("rb") as file:
        assert file.readline() == b"first\n"
    assert sorted(entry.name for entry in (root / "a").iterdir()) == [
        "again", "b", "numbers", "text.txt",
    ]
    assert (root / "link").is_symlink() and (root / "link").readlink() == "a/b/file"
    assert path.stat().st_size == len(path.read_bytes())
    assert [found.at for found in root.rglob("file")] == ["a/b/file"]
    assert [found.at for found in (root / "a").glob("*.txt")] == ["a/text.txt"]
    assert path.match("*.txt") and path.match("a/*") and not path.match("b/*")
    assert path.match("/a/*.txt") and not path.match("/*.txt")
    assert path.relative_to(root) == "a/text.txt"
    assert path == root / "a/text.txt" and path != root / "a" and path != "a/text.txt"
    assert len({path, root / "a/text.txt"}) == 1
    copy = pickle.loads(pickle.dumps(path))
    assert copy.read_text() == path.read_text()
    with pytest.raises(FileNotFoundError):
        (root / "missing").read_bytes()
    memory = redwarfs.Path(bytearray(image_path.read_bytes()))
    assert str(memory / "a") == ":image:/a"


@pytest.fixture
def app(tmp_path):
    path = tmp_path / "app.dwarfs"
    with redwarfs.Writer(path) as writer:
        writer.add("lib/pack_rw/__init__.py", "from .inner import value\n")
        writer.add("lib/pack_rw/inner.py", "value = 41\n\ndef fail():\n    raise LookupError('here')\n")
        writer.add("lib/pack_rw/data/table.txt", "a table")
        writer.add("lib/single_rw.py", "import pack_rw\nname = __name__\n")
        writer.add("lib/space_rw/part.py", "value = 'part'\n")
        writer.add("top_rw.py", "value = 'top'\n")
        writer.add("lib/broken_rw.py", "this is no Python")
    before = dict(sys.modules)
    redwarfs.importer.install()
    yield path
    redwarfs.importer.uninstall()
    sys.path[:] = [entry for entry in sys.path if not entry.startswith(str(path))]
    for name in set(sys.modules) - set(before):
        if "_rw" in name:
            del sys.modules[name]


def test_packages_are_imported_from_images(app):
    sys.path[:0] = [f"{app}/lib", str(app)]
    import pack_rw
    import single_rw
    import space_rw.part
    import top_rw

    assert (pack_rw.value, single_rw.name, space_rw.part.value, top_rw.value) == (
        41, "single_rw", "part", "top",
    )
    assert pack_rw.__file__ == f"{app}/lib/pack_rw/__init__.py"
    assert list(pack_rw.__path__) == [f"{app}/lib/pack_rw"]
    files = importlib.resources.files(pack_rw)
    assert (files / "data" / "table.txt").read_text() == "a table"
    with importlib.resources.as_file(files / "data/table.txt") as real:
        assert pathlib.Path(real).read_text() == "a table"
    with pytest.raises(LookupError) as caught:
        pack_rw.inner.fail()
    import traceback

    shown = "".join(traceback.format_exception(caught.value))
    assert "inner.py" in shown and "raise LookupError('here')" in shown
    assert {module.name for module in pkgutil.iter_modules([f"{app}/lib"])} == {
        "broken_rw", "pack_rw", "single_rw",
    }
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("pack_rw.missing")
    with pytest.raises(SyntaxError):
        importlib.import_module("broken_rw")
    assert pkgutil.get_data("pack_rw", "data/table.txt") == b"a table"


def test_other_entries_of_the_path_are_refused(app, tmp_path):
    (tmp_path / "text").write_text("text")
    for entry in [str(tmp_path), str(tmp_path / "text"), f"{app}/missing", f"{app}/top_rw.py", "", "/"]:
        with pytest.raises(ImportError):
            redwarfs.importer.path_hook(entry)
    first = redwarfs.importer.path_hook(str(app))
    assert first._image is redwarfs.importer.path_hook(f"{app}/lib")._image


def test_compiled_files_in_the_image_are_used(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "compiled_rw.py").write_text("value = 1\n")
    subprocess.run([sys.executable, "-m", "compileall", "-q", tree], check=True)
    # Same size and time, other value: only the compiled file says 1.
    found = (tree / "compiled_rw.py").stat()
    (tree / "compiled_rw.py").write_text("value = 2\n")
    import os

    os.utime(tree / "compiled_rw.py", ns=(found.st_atime_ns, found.st_mtime_ns))
    redwarfs.build(tree, tmp_path / "app.dwarfs")
    code = (
        "import sys, redwarfs.importer; redwarfs.importer.install();"
        f"sys.path.insert(0, {str(tmp_path / 'app.dwarfs')!r}); import compiled_rw;"
        "print(compiled_rw.value)"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout == "1\n"
