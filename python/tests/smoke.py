"""What an installed wheel must do; run by scripts that install one, with nothing but the interpreter."""

import functools
import http.server
import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import zlib

import redwarfs
import redwarfs.data


def length(image, path):
    return len(image[path])


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


def main():
    target = io.BytesIO()
    with redwarfs.Writer(target) as writer:
        writer.add("a", b"wheel")
    assert redwarfs.open(target)["a"] == b"wheel"
    with tempfile.TemporaryDirectory() as work:
        files = {f"{n % 3}/{n}.txt": f"{n} ".encode() * (n * 50) for n in range(100)}
        for level in (1, 5, 7, 9):
            path = os.path.join(work, f"{level}.dwarfs")
            with redwarfs.Writer(path, level=level) as writer:
                for name, data in files.items():
                    writer.add(name, data)
            image = redwarfs.open(path)
            assert dict(image) == files and not image.verify(deep=True)
            assert image.read_many(files, threads=2) == list(files.values())
            shuffled = redwarfs.data.ShuffledFiles(image, seed=1)
            assert sorted(map(zlib.crc32, shuffled)) == sorted(map(zlib.crc32, files.values()))
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            assert pool.starmap(length, [(image, name) for name in files]) == list(map(len, files.values()))
        image.extract(os.path.join(work, "copy"))
        with open(os.path.join(work, "copy", "2/98.txt"), "rb") as file:
            assert file.read() == files["2/98.txt"]
        handler = functools.partial(QuietHandler, directory=work)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        image = redwarfs.open(f"http://127.0.0.1:{server.server_port}/7.dwarfs")
        assert dict(image) == files
        server.shutdown()
        listed = subprocess.run([sys.executable, "-m", "redwarfs", "ls", path], check=True, stdout=subprocess.PIPE)
        assert listed.stdout == b"0\n1\n2\n", listed.stdout
    print(f"redwarfs {redwarfs.__version__} works with Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
