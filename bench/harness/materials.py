"""Sounds and pictures: real ones from Debian packages, resampled ones, and synthesized ones."""

import array
import math
import random
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .measure import Failed
from .programs import Programs, say

#: Unit of FITS files, bytes.
BLOCK = 2880
#: Size of one cut of a long recording, bytes.
CUT = 4 << 20
#: Bytes of the pictures of a film.
FILM = 32 << 20
#: Bytes of instruments that are used.
INSTRUMENTS = 48 << 20

SPEECH = "asterisk-core-sounds-en-wav"
MUSIC = "asterisk-moh-opsound-wav"
SOUND_FONT = "fluid-soundfont-gm"
TELESCOPES = "eso-midas-testdata"


@dataclass(frozen=True)
class Material:
    """A directory of files of one kind."""

    name: str
    #: What it is and where it comes from.
    title: str
    #: `pcmaudio`, `fits` or `video`.
    kind: str
    path: Path

    def files(self) -> list:
        return sorted(path for path in self.path.rglob("*") if path.is_file())

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files())


def package(programs: Programs, work: Path, name: str):
    """The files of a Debian package, which is not installed; none with a notice."""
    unpacked = work / "packages" / name
    if unpacked.is_dir():
        return unpacked
    if not programs.path("apt-get") or not programs.path("dpkg-deb"):
        return None
    folder = work / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    say(f"fetching the package {name}")
    result = subprocess.run(["apt-get", "download", name], cwd=folder, capture_output=True)
    found = sorted(folder.glob(f"{name}_*.deb"))
    if result.returncode != 0 or not found:
        programs.skip(name, "apt-get cannot download it")
        return None
    partial = folder / f"{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    subprocess.run(["dpkg-deb", "-x", found[-1], partial], check=True)
    found[-1].unlink()
    partial.rename(unpacked)
    return unpacked


def _wav(data: bytes, rate: int, channels: int, bits: int) -> bytes:
    frame = channels * bits // 8
    return b"".join((
        b"RIFF", struct.pack("<I", 36 + len(data)), b"WAVEfmt ",
        struct.pack("<IHHIIHH", 16, 1, channels, rate, rate * frame, frame, bits),
        b"data", struct.pack("<I", len(data)), data,
    ))


def _copies(files, target: Path, suffix: str) -> None:
    for number, file in enumerate(sorted(files)):
        shutil.copyfile(file, target / f"{number:04}-{file.stem}{suffix}")


def _instruments(font: Path, target: Path) -> None:
    """The samples of a sound font: recordings of single instruments, 16 bits, mono."""
    data = font.read_bytes()
    at = data.index(b"smpl", data.index(b"sdta"))
    (size,) = struct.unpack_from("<I", data, at + 4)
    samples = data[at + 8:at + 8 + min(size, INSTRUMENTS)]
    for number in range(0, len(samples), CUT):
        part = samples[number:number + CUT]
        (target / f"{number // CUT:03}.wav").write_bytes(_wav(part, 44_100, 1, 16))


def _resampled(sox: str, source: Path, target: Path, bits: int) -> None:
    """48 kHz with `bits` bits: all of them mean something, and none is dither."""
    for file in sorted(source.iterdir())[:6]:
        subprocess.run(
            [sox, "-D", "-v", "0.9", file, "-b", str(bits), target / file.name, "rate", "48000"],
            check=True, stderr=subprocess.DEVNULL,
        )


def _eight_channels(sox: str, source: Path, target: Path) -> None:
    """Big-endian, 24 bits, every channel another instrument."""
    files = sorted(source.iterdir())[:8]
    subprocess.run(
        [sox, "-D", "-M", "-v", "0.9", *[w for f in files for w in ("-v", "0.9", f)][2:],
         "-b", "24", target / "eight.aiff", "rate", "48000", "trim", "0", "30"],
        check=True, stderr=subprocess.DEVNULL,
    )


def _noise(target: Path) -> None:
    rng = random.Random(1)
    for bits in (16, 24, 32):
        data = rng.randbytes(4_800_000)
        (target / f"noise-{bits}.wav").write_bytes(_wav(data, 48_000, 2, bits))


def _is_plain_picture(file: Path) -> bool:
    """Whether it is a FITS file with a picture of 16 bits and nothing else."""
    with open(file, "rb") as stream:
        head = stream.read(20 * BLOCK)
    if not head.startswith(b"SIMPLE"):
        return False
    cards = {}
    for at in range(0, len(head) - 79, 80):
        card = head[at:at + 80].decode("latin-1")
        cards[card[:8].strip()] = card[10:30].strip()
        if card.startswith("END"):
            break
    try:
        axes = [int(cards[f"NAXIS{n}"]) for n in range(1, int(cards["NAXIS"]) + 1)]
    except (KeyError, ValueError):
        return False
    size = sum(-(-part // BLOCK) * BLOCK for part in (at + 80, 2 * math.prod(axes)))
    return cards.get("BITPIX") == "16" and len(axes) >= 2 and size == file.stat().st_size


def _pictures(package: Path, target: Path) -> None:
    """The pictures of 16 bits among the test data of an observatory."""
    files = (file for file in package.rglob("*") if file.is_file() and not file.is_symlink())
    _copies(filter(_is_plain_picture, files), target, ".fits")


def _fits(width: int, height: int, pixels: array.array, bayer: bool) -> bytes:
    cards = [
        "SIMPLE  =                    T", "BITPIX  =                   16",
        "NAXIS   =                    2", f"NAXIS1  = {width:>20}", f"NAXIS2  = {height:>20}",
        "BZERO   =                32768", "BSCALE  =                    1",
    ]
    if bayer:
        cards.append("BAYERPAT= 'RGGB    '")
    head = "".join(f"{card:<80}" for card in (*cards, "END")).encode()
    body = array.array("H", pixels)
    body.byteswap()
    data = body.tobytes()
    return (head + b" " * (-len(head) % BLOCK)) + data + b"\0" * (-len(data) % BLOCK)


def _star_field(target: Path, bayer: bool) -> None:
    """A background with the noise of photons and of the amplifier, and stars of all sizes.

    The camera with a Bayer pattern has 12 bits, stored in the upper ones.
    """
    rng = random.Random(2)
    width, height = 2000, 1500
    level = 700.0
    field = [level] * (width * height)
    for _ in range(2500):
        x, y = rng.randrange(width), rng.randrange(height)
        flux, spread = 40 * rng.paretovariate(0.9), 1.2 + rng.random()
        for row in range(max(0, y - 8), min(height, y + 9)):
            for column in range(max(0, x - 8), min(width, x + 9)):
                distance = (row - y) ** 2 + (column - x) ** 2
                field[row * width + column] += flux * math.exp(-distance / (2 * spread ** 2))
    pixels = array.array("H", bytes(2 * width * height))
    gauss = rng.gauss
    for at, value in enumerate(field):
        if bayer:
            # Twice as much green as red and blue.
            value *= 1.0 if (at % width + at // width) % 2 else 0.55
        value += gauss(0.0, math.sqrt(value * 0.6 + 30))
        if bayer:
            pixels[at] = min(max(int(value), 0), 4095) << 4
        else:
            # BZERO makes them signed in the file.
            pixels[at] = min(max(int(value), 0), 65535) ^ 0x8000
    (target / ("bayer.fits" if bayer else "stars.fits")).write_bytes(
        _fits(width, height, pixels, bayer))


def _make(work: Path, name: str, maker) -> Path:
    path = work / "media" / name
    if not path.is_dir():
        say(f"making {name}")
        partial = path.with_name(name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        maker(partial)
        if not any(partial.iterdir()):
            raise Failed(f"{name}: found nothing")
        partial.rename(path)
    return path


def _element(name: bytes, *parts: bytes) -> bytes:
    """An element of EBML, which Matroska consists of, with a size of eight bytes."""
    data = b"".join(parts)
    return name + struct.pack(">Q", 1 << 56 | len(data)) + data


def _number(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def _track(number: int, kind: int, codec: bytes, language: bytes) -> bytes:
    return _element(
        b"\xae", _element(b"\xd7", _number(number)), _element(b"\x73\xc5", _number(number)),
        _element(b"\x83", _number(kind)), _element(b"\x22\xb5\x9c", language),
        _element(b"\x86", codec),
    )


def _videos(target: Path) -> None:
    """A film with one stream of pictures and a stream of sound in each of four languages, each of
    them in a file of its own. Encoded streams look like random bytes."""
    for language in (b"eng", b"fra", b"deu", b"jpn"):
        pictures, sounds = random.Random("pictures"), random.Random(language)
        head = _element(
            b"\x1a\x45\xdf\xa3", _element(b"\x42\x82", b"matroska"), _element(b"\x42\x87", b"\x04"),
            _element(b"\x42\x85", b"\x02"),
        )
        parts = [
            _element(b"\x15\x49\xa9\x66", _element(b"\x4d\x80", b"x"), _element(b"\x57\x41", b"x")),
            _element(b"\x16\x54\xae\x6b", _track(1, 1, b"V_VP9", b"und"),
                     _track(2, 2, b"A_OPUS", language)),
        ]
        size, time = 0, 0
        while size < FILM:
            blocks = [_element(b"\xe7", _number(time))]
            # A second: 25 pictures, and 50 packets of sound between them.
            for picture in range(25):
                packet = pictures.randbytes(pictures.randrange(2_000, 14_000))
                size += len(packet)
                blocks.append(_element(b"\xa3", b"\x81", struct.pack(">hB", picture * 40, 0), packet))
                for half in (0, 20):
                    blocks.append(_element(
                        b"\xa3", b"\x82", struct.pack(">hB", picture * 40 + half, 0),
                        sounds.randbytes(sounds.randrange(200, 420))))
            parts.append(_element(b"\x1f\x43\xb6\x75", *blocks))
            time += 1000
        name = f"film-{language.decode()}.mkv"
        (target / name).write_bytes(head + _element(b"\x18\x53\x80\x67", *parts))


def all_materials(programs: Programs, work: Path):
    """Every material that can be had here; the others are told."""
    def material(name, title, kind, maker):
        return Material(name, title, kind, _make(work, name, maker))

    for name, title, source in (
        ("speech-16", f"speech, real, 16 bits, 8 kHz, mono (`{SPEECH}`)", SPEECH),
        ("music-16", f"music, real, 16 bits, 8 kHz, mono (`{MUSIC}`)", MUSIC),
    ):
        folder = package(programs, work, source)
        if folder:
            yield material(name, title, "pcmaudio",
                           lambda to, f=folder: _copies(f.rglob("*.wav"), to, ".wav"))
    folder = package(programs, work, SOUND_FONT)
    font = next(iter(folder.rglob("*.sf2")), None) if folder else None
    if font:
        instruments = material(
            "instruments-16", f"instruments, real, 16 bits, 44.1 kHz, mono (`{SOUND_FONT}`)",
            "pcmaudio", lambda to: _instruments(font, to))
        yield instruments
        sox = programs.path("sox")
        if sox:
            for bits in (24, 32):
                yield material(
                    f"instruments-{bits}", f"the same, resampled to 48 kHz and {bits} bits",
                    "pcmaudio", lambda to, b=bits: _resampled(sox, instruments.path, to, b))
            yield material(
                "channels-8", "the same, AIFF (big-endian) with 8 channels of 24 bits, 48 kHz",
                "pcmaudio", lambda to: _eight_channels(sox, instruments.path, to))
    yield material("noise", "random bytes as 16, 24 and 32 bits, stereo", "pcmaudio", _noise)
    folder = package(programs, work, TELESCOPES)
    if folder:
        yield material("telescopes", f"telescopes, real, 16 bits (`{TELESCOPES}`)", "fits",
                       lambda to: _pictures(folder, to))
    yield material("stars", "star field, synthesized, 16 bits", "fits",
                   lambda to: _star_field(to, False))
    yield material("bayer", "star field, synthesized, 12 bits, Bayer pattern", "fits",
                   lambda to: _star_field(to, True))
    yield material("videos", "a film in four languages with the same pictures, synthesized, Matroska",
                   "video", _videos)
