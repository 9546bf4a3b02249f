"""`redwarfs.merge`."""

import io
import pickle
import threading

import pytest

import redwarfs


def image_of(**files):
    target = io.BytesIO()
    with redwarfs.Writer(target, level=1, block_size_bits=12) as writer:
        for name, data in files.items():
            writer.add(name, data)
    return target


def test_later_images_are_put_over_earlier_ones(tmp_path):
    one = image_of(a=b"old", b=b"stays")
    (tmp_path / "two").write_bytes(image_of(a=b"new", c=b"more").getvalue())
    target = tmp_path / "out"
    result = redwarfs.merge([one, redwarfs.open(tmp_path / "two")], target, level=3)
    image = redwarfs.open(target)
    assert dict(image) == {"a": b"new", "b": b"stays", "c": b"more"}
    assert result.image_size == target.stat().st_size and result.contents == 3
    assert result.errors == 0 and not result.warnings and not result.problems
    assert image.verify(deep=True) == []


def test_each_image_gets_a_directory():
    target = io.BytesIO()
    redwarfs.merge({"x/y": image_of(a=b"1"), "/z/": image_of(a=b"2")}, target)
    assert dict(redwarfs.open(target)) == {"x/y/a": b"1", "z/a": b"2"}
    for names, error in [
        (["a", "a/b"], redwarfs.OptionError),
        (["a", "a/"], redwarfs.OptionError),
        (["../a", "b"], ValueError),
    ]:
        with pytest.raises(error):
            redwarfs.merge({name: image_of(a=b"") for name in names}, io.BytesIO())


def test_equal_blocks_are_stored_once_and_files_with_repack():
    same = b"".join(b"%d\n" % n for n in range(3000))
    other = b"".join(b"%d\n" % (n * n) for n in range(3000))
    one, two = image_of(a=same), image_of(b=same)
    result = redwarfs.merge([one, two], io.BytesIO())
    assert (result.old_blocks, result.left_out) == (result.blocks * 2, result.blocks)
    three = image_of(a=other[:100] + same, c=other)
    plain, packed = io.BytesIO(), io.BytesIO()
    redwarfs.merge([three, image_of(a=b"")], plain)
    result = redwarfs.merge([three, image_of(a=b"")], packed, repack=100)
    assert result.repacked > 0 and dict(redwarfs.open(packed)) == dict(redwarfs.open(plain))


def test_options_and_progress_arrive(tmp_path):
    calls = []
    target = tmp_path / "out"
    images = [image_of(a=b"1"), image_of(b=b"2")]
    how = {"no_history": True, "set_owner": 7, "num_workers": 1, "metadata_compression": "null"}
    redwarfs.merge(images, target, progress=lambda phase, counts: calls.append(phase), **how)
    assert calls[-1] == "done" and redwarfs.open(target).stat("a").st_uid == 7
    with pytest.raises(FileExistsError):
        redwarfs.merge(images, target)
    redwarfs.merge(images, target, overwrite=True)
    assert redwarfs.open(target).stat("a").st_uid == 0
    for wrong, error in [
        ({"colour": "red"}, TypeError),
        ({"block_size_bits": 20}, TypeError),
        ({"level": 10}, ValueError),
        ({"repack": 101}, ValueError),
        ({"metadata_compression": "none-such"}, redwarfs.OptionError),
    ]:
        with pytest.raises(error):
            redwarfs.merge(images, io.BytesIO(), **wrong)
    for no_list in ["path", b"path", redwarfs.open(images[0])]:
        with pytest.raises(TypeError):
            redwarfs.merge(no_list, io.BytesIO())
    with pytest.raises(redwarfs.OptionError):
        redwarfs.merge([], io.BytesIO())


def test_the_result_depends_on_the_images_alone():
    images = [image_of(a=b"1" * 9000, b=b"2"), image_of(c=b"3" * 7000)]
    targets = []
    for workers in [1, 4]:
        targets.append(io.BytesIO())
        redwarfs.merge(images, targets[-1], num_workers=workers)
    assert targets[0].getvalue() == targets[1].getvalue()


def test_damage_and_failing_objects_end_the_merge(tmp_path):
    data = bytearray(image_of(a=bytes(range(256)) * 32).getvalue())
    data[100] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    target = tmp_path / "out"
    with pytest.raises(redwarfs.CorruptImageError) as caught:
        redwarfs.merge([image_of(b=b""), tmp_path / "damaged"], target)
    assert caught.value.filename == str(tmp_path / "damaged") and not target.exists()

    class Full:
        def write(self, data):
            raise OSError(28, "no space left")

    with pytest.raises(OSError, match="no space left"):
        redwarfs.merge([image_of(a=b"")], Full())

    class Gone(io.RawIOBase):
        """A file object whose medium goes away."""

        def __init__(self, data):
            self.inner, self.left = io.BytesIO(data), 1000

        def seek(self, *where):
            return self.inner.seek(*where)

        def read(self, size):
            self.left -= 1
            if self.left < 0:
                raise OSError(5, "the medium is gone")
            return self.inner.read(size)

    gone = Gone(image_of(a=bytes(range(256)) * 300, b=b"b" * 9999).getvalue())
    image = redwarfs.open(gone)
    gone.left = 0
    with pytest.raises(OSError, match="the medium is gone"):
        redwarfs.merge([image], target)
    assert not target.exists()


def test_images_of_several_threads_and_pickled_ones(tmp_path):
    (tmp_path / "one").write_bytes(image_of(a=b"1").getvalue())
    image = pickle.loads(pickle.dumps(redwarfs.open(tmp_path / "one")))
    results = [io.BytesIO() for _ in range(4)]
    threads = [
        threading.Thread(target=redwarfs.merge, args=([image, image_of(b=b"2")], target))
        for target in results
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {target.getvalue() for target in results} == {results[0].getvalue()}
    assert len(redwarfs.open(results[0])) == 2
