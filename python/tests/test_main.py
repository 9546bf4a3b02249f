"""`python -m redwarfs`."""

import json
import subprocess
import sys

from conftest import NUMBERS


def run(*arguments, code=0, **how):
    done = subprocess.run(
        [sys.executable, "-m", "redwarfs", *map(str, arguments)], capture_output=True, **how
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr.decode()


def test_entries_are_listed(image_path):
    out, _ = run("ls", image_path)
    assert out.decode().splitlines() == [
        "a", "dirlink", "empty", "link", "nowhere", "odd-\\udcff", "pipe", "round", "void",
    ]
    assert run("ls", image_path, "a", "link")[0] == b"a/again\na/b\na/numbers\na/text.txt\nlink\n"
    out, _ = run("ls", "-lR", image_path, "a")
    lines = out.decode().splitlines()
    assert "-rw-r-----   2  1000   100           10 2020-09-13 12:26:40 a/b/file" in lines
    assert len(lines) == 5
    out, _ = run("ls", "-l", image_path, "link")
    assert out.endswith(b"link -> a/b/file\n") and out.startswith(b"lrwxrwxrwx")


def test_files_are_printed(image_path):
    assert run("cat", image_path, "a/b/file", "a/numbers")[0] == b"0123456789" + NUMBERS


def test_entries_are_extracted(image_path, tmp_path):
    run("extract", image_path, tmp_path / "all")
    assert (tmp_path / "all/a/numbers").read_bytes() == NUMBERS
    run("extract", image_path, tmp_path / "some", "a/b")
    assert [p.name for p in (tmp_path / "some").rglob("*")] == ["a", "b", "file"]


def test_numbers_are_printed(image_path, tmp_path):
    out, _ = run("info", image_path, "--json")
    assert json.loads(out)["image_size"] == image_path.stat().st_size
    out, _ = run("info", image_path, "--verify")
    assert b"block size: 65536\n" in out and out.endswith(b"no damage\n")
    data = bytearray(image_path.read_bytes())
    data[100] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    out, _ = run("info", tmp_path / "damaged", "--verify", code=1)
    assert b"damage: " in out
    out, _ = run("info", tmp_path / "damaged", "--verify", "--json", code=1)
    assert json.loads(out)["findings"][0]["kind"] == "checksum"


def test_errors_are_one_line(image_path, tmp_path):
    for arguments, words in [
        (["ls", tmp_path / "missing"], f"redwarfs: {tmp_path}/missing: No such file or directory\n"),
        (["ls", image_path, "no"], "redwarfs: no: not found in the image\n"),
        (["cat", image_path, "a"], "redwarfs: a: not a regular file in the image\n"),
        (["extract", image_path, tmp_path, "no"], "redwarfs: no: not found in the image\n"),
    ]:
        assert run(*arguments, code=1)[1] == words
    assert "usage" in run(code=2)[1] and b"redwarfs 0." in run("--version")[0]


def test_a_closed_pipe_is_no_error(image_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "redwarfs", "cat", str(image_path), *["a/numbers"] * 20],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 141
    process.stderr.close()
