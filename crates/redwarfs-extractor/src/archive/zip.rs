//! zip, written by ourselves.
//!
//! Sources: PKWARE's APPNOTE 6.3.10 and the list of extra fields of Info-ZIP.
//!
//! The archive is a stream. An entry of at most [`WHOLE`] bytes is compressed before its header is
//! written, which then has its sizes. The sizes of a larger one follow its data. The directory at the
//! end is compressed until then.

use std::io::{self, Write};

use flate2::write::DeflateEncoder;
use flate2::{Compress, Compression, Crc, FlushCompress, Status};

use super::entry::{Entry, Holes, Kind, Links, Refusal, Sink};
use super::fields::{Fields, Times};

/// Entries up to this size are in memory as a whole (bytes).
const WHOLE: u64 = 1 << 20;

/// Size of the pieces in which compressed data is written (bytes).
const PIECE: usize = 64 << 10;

/// Instead of a value that does not fit into 32 bits: it is in a field of its own.
const ELSEWHERE: u32 = u32::MAX;
/// The same for 16 bits.
const ELSEWHERE_SHORT: u16 = u16::MAX;

/// Sizes from here on are written in 64 bits. What deflate adds to data that it cannot compress is less
/// than the distance to the greatest 32-bit value.
const LARGE: u64 = 0xff00_0000;

const STORED: u16 = 0;
const DEFLATED: u16 = 8;

/// Flags of an entry: the sizes follow the data; the name is UTF-8.
const SIZES_FOLLOW: u16 = 1 << 3;
const UTF8: u16 = 1 << 11;

/// Versions of the format that a reader has to know: directories and deflate; 64-bit sizes.
const PLAIN: u16 = 20;
const ZIP64: u16 = 45;
/// Unix, in the upper half of the version that wrote an entry.
const UNIX: u16 = 3 << 8;

/// The attribute of a directory in DOS.
const DOS_DIRECTORY: u32 = 0x10;

/// Kinds of extra fields.
const EXTRA_ZIP64: u16 = 0x0001;
const EXTRA_TIMES: u16 = 0x5455;
const EXTRA_IDS: u16 = 0x7875;

/// Writes a zip archive.
pub(crate) struct Zip<'a> {
    out: &'a mut dyn Write,
    written: u64,
    deflate: Compress,
    /// The entry in work.
    current: Option<Current>,
    /// Contents of an entry in work that is not written before its end.
    whole: Vec<u8>,
    /// Compressed data, at least [`PIECE`] of them.
    buffer: Vec<u8>,
    /// The directory, compressed.
    directory: DeflateEncoder<Vec<u8>>,
    entries: u64,
}

/// An entry of which the header, or nothing yet, is written.
struct Current {
    name: Vec<u8>,
    mode: u32,
    directory: bool,
    mtime: u32,
    atime: Option<u32>,
    uid: u32,
    gid: u32,
    /// Where its header is.
    start: u64,
    method: u16,
    flags: u16,
    /// Whether the sizes of its header have 64 bits.
    large: bool,
    crc: Crc,
    size: u64,
    packed: u64,
}

/// Little-endian values, one after the other.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn short(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn int(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn long(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Kind and length of an extra field.
    fn extra(&mut self, kind: u16, length: u16) {
        self.short(kind);
        self.short(length);
    }
}

/// A value in 32 bits, or the sign that it is elsewhere.
fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(ELSEWHERE)
}

/// Date and time in the notation of DOS, in UTC; the nearest one that there is.
fn dos_time(sec: u32) -> (u16, u16) {
    /// 1980-01-01; the last one that there is comes after all that fit into 32 bits.
    const FIRST: u32 = 315_532_800;
    let sec = sec.max(FIRST);
    let (mut day, second) = (sec / 86_400, sec % 86_400);
    let mut year = 1970;
    let leap = |year: u32| {
        u32::from(year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)))
    };
    while day >= 365 + leap(year) {
        day -= 365 + leap(year);
        year += 1;
    }
    let months = [31, 28 + leap(year), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for days in months {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    let date = (year - 1980) << 9 | month << 5 | (day + 1);
    let time = (second / 3600) << 11 | (second / 60 % 60) << 5 | (second % 60 / 2);
    // Seven, four and five bits; five, six and five.
    (date as u16, time as u16)
}

impl Current {
    /// Times and ids. The directory at the end has no access times.
    fn extra(&self, central: bool) -> Bytes {
        let mut bytes = Bytes::default();
        let atime = self.atime.filter(|_| !central);
        bytes.extra(EXTRA_TIMES, if atime.is_some() { 9 } else { 5 });
        // Which times there are, in both places.
        bytes.0.push(1 | u8::from(self.atime.is_some()) << 1);
        bytes.int(self.mtime);
        if let Some(atime) = atime {
            bytes.int(atime);
        }
        bytes.extra(EXTRA_IDS, 11);
        bytes.0.push(1);
        for id in [self.uid, self.gid] {
            bytes.0.push(4);
            bytes.int(id);
        }
        bytes
    }

    fn needs(&self) -> u16 {
        if self.large { ZIP64 } else { PLAIN }
    }

    /// Flags, method and time, which both headers have.
    fn common(&self, bytes: &mut Bytes) {
        let (date, time) = dos_time(self.mtime);
        for value in [self.flags, self.method, time, date] {
            bytes.short(value);
        }
    }

    /// The header before the data.
    fn header(&self) -> Vec<u8> {
        let mut extra = self.extra(false);
        let mut bytes = Bytes::default();
        bytes.int(0x0403_4b50);
        bytes.short(self.needs());
        self.common(&mut bytes);
        if self.flags & SIZES_FOLLOW == 0 {
            bytes.int(self.crc.sum());
            bytes.int(narrow(self.packed));
            bytes.int(narrow(self.size));
        } else {
            bytes.int(0);
            let size = if self.large { ELSEWHERE } else { 0 };
            bytes.int(size);
            bytes.int(size);
            if self.large {
                extra.extra(EXTRA_ZIP64, 16);
                extra.long(0);
                extra.long(0);
            }
        }
        // Checked when the entry began.
        bytes.short(self.name.len() as u16);
        bytes.short(extra.0.len() as u16);
        bytes.0.extend_from_slice(&self.name);
        bytes.0.extend_from_slice(&extra.0);
        bytes.0
    }

    /// Checksum and sizes after the data.
    fn descriptor(&self) -> Vec<u8> {
        let mut bytes = Bytes::default();
        bytes.int(0x0807_4b50);
        bytes.int(self.crc.sum());
        if self.large {
            bytes.long(self.packed);
            bytes.long(self.size);
        } else {
            bytes.int(narrow(self.packed));
            bytes.int(narrow(self.size));
        }
        bytes.0
    }

    /// The entry of the directory at the end.
    fn record(&self) -> Vec<u8> {
        let mut extra = self.extra(true);
        let large: Vec<u64> = [self.size, self.packed, self.start]
            .into_iter()
            .filter(|&value| value >= ELSEWHERE.into())
            .collect();
        if !large.is_empty() {
            // At most three.
            extra.extra(EXTRA_ZIP64, 8 * large.len() as u16);
            for &value in &large {
                extra.long(value);
            }
        }
        let version = if large.is_empty() {
            self.needs()
        } else {
            ZIP64
        };
        let mut bytes = Bytes::default();
        bytes.int(0x0201_4b50);
        bytes.short(UNIX | version);
        bytes.short(version);
        self.common(&mut bytes);
        bytes.int(self.crc.sum());
        bytes.int(narrow(self.packed));
        bytes.int(narrow(self.size));
        bytes.short(self.name.len() as u16);
        bytes.short(extra.0.len() as u16);
        // Comment, number of the disk, internal attributes.
        for _ in 0..3 {
            bytes.short(0);
        }
        bytes.int(self.mode << 16 | if self.directory { DOS_DIRECTORY } else { 0 });
        bytes.int(narrow(self.start));
        bytes.0.extend_from_slice(&self.name);
        bytes.0.extend_from_slice(&extra.0);
        bytes.0
    }
}

impl<'a> Zip<'a> {
    pub(crate) fn new(out: &'a mut dyn Write) -> Self {
        Self {
            out,
            written: 0,
            deflate: Compress::new(Compression::default(), false),
            current: None,
            whole: Vec::new(),
            buffer: Vec::with_capacity(PIECE),
            directory: DeflateEncoder::new(Vec::new(), Compression::fast()),
            entries: 0,
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Compresses `input` to the output, and ends the stream if there is no more. Returns the number of
    /// compressed bytes.
    fn compress(&mut self, mut input: &[u8], last: bool) -> Result<u64, Refusal> {
        let before = self.written;
        let mut buffer = std::mem::take(&mut self.buffer);
        let flush = if last {
            FlushCompress::Finish
        } else {
            FlushCompress::None
        };
        loop {
            buffer.clear();
            let taken = self.deflate.total_in();
            let status = self.deflate.compress_vec(input, &mut buffer, flush);
            let status = status.map_err(io::Error::other)?;
            let taken = self.deflate.total_in() - taken;
            input = &input[usize::try_from(taken).unwrap_or(input.len())..];
            self.put(&buffer)?;
            if status == Status::StreamEnd
                || (!last && input.is_empty() && buffer.len() < buffer.capacity())
            {
                break;
            }
        }
        self.buffer = buffer;
        Ok(self.written - before)
    }

    /// Writes an entry whose contents are all there.
    fn finish_whole(&mut self, mut current: Current) -> Result<Current, Refusal> {
        let whole = std::mem::take(&mut self.whole);
        current.crc.update(&whole);
        let mut packed = std::mem::take(&mut self.buffer);
        packed.clear();
        if current.method == DEFLATED {
            // What does not end in this room is not smaller.
            packed.reserve(whole.len());
            self.deflate.reset();
            let status = self
                .deflate
                .compress_vec(&whole, &mut packed, FlushCompress::Finish)
                .map_err(io::Error::other)?;
            if status != Status::StreamEnd || packed.len() >= whole.len() {
                current.method = STORED;
            }
        }
        let data = if current.method == STORED {
            &whole
        } else {
            &packed
        };
        current.size = whole.len() as u64;
        current.packed = data.len() as u64;
        self.put(&current.header())?;
        self.put(data)?;
        self.whole = whole;
        self.buffer = packed;
        Ok(current)
    }

    fn finish_streamed(&mut self, mut current: Current) -> Result<Current, Refusal> {
        current.packed += self.compress(&[], true)?;
        self.put(&current.descriptor())?;
        Ok(current)
    }

    /// The end of the archive, after the directory that begins at `start`.
    fn trailer(&self, start: u64) -> Vec<u8> {
        let size = self.written - start;
        let mut bytes = Bytes::default();
        let large = self.entries >= ELSEWHERE_SHORT.into()
            || size >= ELSEWHERE.into()
            || start >= ELSEWHERE.into();
        if large {
            bytes.int(0x0606_4b50);
            // What follows of this record.
            bytes.long(44);
            bytes.short(UNIX | ZIP64);
            bytes.short(ZIP64);
            // There is one disk.
            bytes.int(0);
            bytes.int(0);
            for value in [self.entries, self.entries, size, start] {
                bytes.long(value);
            }
            bytes.int(0x0706_4b50);
            bytes.int(0);
            bytes.long(self.written);
            bytes.int(1);
        }
        bytes.int(0x0605_4b50);
        bytes.short(0);
        bytes.short(0);
        let entries = u16::try_from(self.entries).unwrap_or(ELSEWHERE_SHORT);
        bytes.short(entries);
        bytes.short(entries);
        bytes.int(narrow(size));
        bytes.int(narrow(start));
        bytes.short(0);
        bytes.0
    }
}

impl Sink for Zip<'_> {
    fn name(&self) -> &str {
        "zip"
    }

    fn links(&self) -> Links {
        Links::EachHasContents
    }

    fn holes(&self) -> Holes {
        Holes::Zeros
    }

    fn fields(&self) -> Fields {
        Fields {
            times: Some(Times::seconds(u32::MAX.into())),
            text: true,
            ..Fields::ALL
        }
    }

    fn begin(&mut self, entry: &Entry) -> Result<Option<String>, Refusal> {
        if !matches!(entry.kind, Kind::Directory | Kind::Regular | Kind::Symlink) {
            let kinds = entry.kind.plural();
            return Err(Refusal::Entry(format!("{kinds} have no form in it")));
        }
        let directory = entry.kind == Kind::Directory;
        let mut name = entry.path.clone();
        if directory {
            name.push(b'/');
        }
        let length = name.len();
        if u16::try_from(length).is_err() {
            return Err(Refusal::Entry(format!(
                "path of {length} bytes is too long"
            )));
        }
        let time = |(sec, _): (i64, u32)| {
            u32::try_from(sec).map_err(|_| Refusal::Entry(format!("time {sec} is out of range")))
        };
        let streamed = entry.kind == Kind::Regular && entry.size > WHOLE;
        let packs = entry.kind == Kind::Regular && entry.size > 0;
        let current = Current {
            mode: entry.kind.mode() | entry.mode,
            directory,
            mtime: time(entry.mtime)?,
            atime: entry.atime.map(time).transpose()?,
            uid: entry.uid,
            gid: entry.gid,
            start: self.written,
            method: if packs { DEFLATED } else { STORED },
            flags: if streamed { SIZES_FOLLOW } else { 0 } | if name.is_ascii() { 0 } else { UTF8 },
            large: streamed && entry.size >= LARGE,
            crc: Crc::new(),
            size: 0,
            packed: 0,
            name,
        };
        self.whole.clear();
        if streamed {
            self.put(&current.header())?;
            self.deflate.reset();
        } else if entry.kind == Kind::Symlink {
            self.whole.extend_from_slice(&entry.symlink);
        }
        self.current = Some(current);
        Ok(None)
    }

    fn data(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        if current.flags & SIZES_FOLLOW == 0 {
            self.whole.extend_from_slice(bytes);
        } else {
            current.crc.update(bytes);
            current.size += bytes.len() as u64;
            current.packed += self.compress(bytes, false)?;
        }
        self.current = Some(current);
        Ok(())
    }

    fn end(&mut self) -> Result<Option<String>, Refusal> {
        let Some(current) = self.current.take() else {
            return Ok(None);
        };
        let current = if current.flags & SIZES_FOLLOW == 0 {
            self.finish_whole(current)?
        } else {
            self.finish_streamed(current)?
        };
        self.directory.write_all(&current.record())?;
        self.entries += 1;
        Ok(None)
    }

    fn close(&mut self) -> Result<Option<String>, Refusal> {
        let start = self.written;
        let directory = std::mem::replace(
            &mut self.directory,
            DeflateEncoder::new(Vec::new(), Compression::fast()),
        );
        let packed = directory.finish()?;
        let mut directory = flate2::read::DeflateDecoder::new(&packed[..]);
        self.written += io::copy(&mut directory, self.out)?;
        let trailer = self.trailer(start);
        self.put(&trailer)?;
        self.out.flush()?;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn archive(entries: &[(Entry, Vec<u8>)]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut zip = Zip::new(&mut out);
        for (entry, data) in entries {
            zip.begin(entry).unwrap();
            for piece in data.chunks(300_000) {
                zip.data(piece).unwrap();
            }
            zip.end().unwrap();
        }
        zip.close().unwrap();
        out
    }

    fn file(data: &[u8]) -> Entry {
        Entry {
            size: data.len() as u64,
            ..Entry::sample(Kind::Regular)
        }
    }

    fn short(bytes: &[u8], at: usize) -> u16 {
        u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
    }

    fn int(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    fn long(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn dates_of_dos() {
        for (sec, date, time) in [
            (0, (0, 1, 1), (0, 0, 0)),
            (951_868_799, (20, 2, 29), (23, 59, 29)),
            (951_868_800, (20, 3, 1), (0, 0, 0)),
            (1_735_689_599, (44, 12, 31), (23, 59, 29)),
            (u32::MAX, (126, 2, 7), (6, 28, 7)),
        ] {
            let (d, t) = dos_time(sec);
            assert_eq!((d >> 9, d >> 5 & 15, d & 31), date, "{sec}");
            assert_eq!((t >> 11, t >> 5 & 63, t & 31), time, "{sec}");
        }
    }

    #[test]
    fn small_entries_have_their_sizes_in_front() {
        let data = b"some words, some words, some words".to_vec();
        let out = archive(&[(file(&data), data.clone())]);
        assert_eq!(int(&out, 0), 0x0403_4b50);
        assert_eq!((short(&out, 6), short(&out, 8)), (0, DEFLATED));
        let packed = int(&out, 18) as usize;
        assert_eq!(int(&out, 22) as usize, data.len());
        let at = 30 + usize::from(short(&out, 26)) + usize::from(short(&out, 28));
        let mut back = Vec::new();
        flate2::read::DeflateDecoder::new(&out[at..at + packed])
            .read_to_end(&mut back)
            .unwrap();
        assert_eq!(back, data);
        // Nothing is gained by compressing this.
        let out = archive(&[(file(b"x"), b"x".to_vec())]);
        assert_eq!(
            (short(&out, 8), int(&out, 18), int(&out, 22)),
            (STORED, 1, 1)
        );
    }

    #[test]
    fn sizes_of_large_entries_follow_their_data() {
        let data: Vec<u8> = (0..3_000_000_u32)
            .map(|n| (n.wrapping_mul(n) >> 7) as u8)
            .collect();
        let out = archive(&[(file(&data), data.clone())]);
        assert_eq!(short(&out, 6), SIZES_FOLLOW);
        assert_eq!((int(&out, 18), int(&out, 22)), (0, 0));
        let at = 30 + usize::from(short(&out, 26)) + usize::from(short(&out, 28));
        let mut decoder = flate2::bufread::DeflateDecoder::new(&out[at..]);
        let mut back = Vec::new();
        decoder.read_to_end(&mut back).unwrap();
        assert!(back == data);
        let end = at + decoder.total_in() as usize;
        assert_eq!(int(&out, end), 0x0807_4b50);
        assert_eq!(int(&out, end + 8) as usize, end - at);
        assert_eq!(int(&out, end + 12) as usize, data.len());
    }

    #[test]
    fn large_numbers_have_fields_of_64_bits() {
        let sample = Entry::sample(Kind::Regular);
        let mut current = Current {
            name: sample.path,
            mode: 0,
            directory: false,
            mtime: 0,
            atime: None,
            uid: 0,
            gid: 0,
            start: 1 << 40,
            method: DEFLATED,
            flags: SIZES_FOLLOW,
            large: true,
            crc: Crc::new(),
            size: 1 << 33,
            packed: 5,
        };
        let header = current.header();
        assert_eq!(short(&header, 4), ZIP64);
        assert_eq!((int(&header, 18), int(&header, 22)), (ELSEWHERE, ELSEWHERE));
        let extra = header.len() - 20;
        assert_eq!((short(&header, extra), short(&header, extra + 2)), (1, 16));
        let descriptor = current.descriptor();
        assert_eq!((long(&descriptor, 8), long(&descriptor, 16)), (5, 1 << 33));
        let record = current.record();
        assert_eq!(
            (int(&record, 20), int(&record, 24), int(&record, 42)),
            (5, ELSEWHERE, ELSEWHERE)
        );
        let extra = record.len() - 20;
        assert_eq!((short(&record, extra), short(&record, extra + 2)), (1, 16));
        assert_eq!(
            (long(&record, extra + 4), long(&record, extra + 12)),
            (1 << 33, 1 << 40)
        );
        // Only what needs it.
        current.start = 7;
        current.size = 6;
        current.large = false;
        let record = current.record();
        assert_eq!(record.len(), 46 + 3 + 9 + 15);
        assert_eq!(
            (short(&record, 4), short(&record, 6)),
            (UNIX | PLAIN, PLAIN)
        );
    }

    #[test]
    fn many_entries_need_the_long_trailer() {
        for (count, long_form) in [(65_534_usize, false), (65_535, true)] {
            let one = Entry::sample(Kind::Directory);
            let mut out = Vec::new();
            let mut zip = Zip::new(&mut out);
            for _ in 0..count {
                zip.begin(&one).unwrap();
                zip.end().unwrap();
            }
            zip.close().unwrap();
            let end = out.len() - 22;
            assert_eq!(int(&out, end), 0x0605_4b50);
            assert_eq!(usize::from(short(&out, end + 10)), count.min(0xffff));
            assert_eq!(int(&out, end - 20) == 0x0706_4b50, long_form);
            if long_form {
                let at = long(&out, end - 12) as usize;
                assert_eq!(int(&out, at), 0x0606_4b50);
                assert_eq!(long(&out, at + 32), count as u64);
            }
        }
    }

    #[test]
    fn what_has_no_form_is_refused() {
        for kind in [
            Kind::Fifo,
            Kind::Socket,
            Kind::CharDevice,
            Kind::BlockDevice,
        ] {
            let mut out = Vec::new();
            match Zip::new(&mut out).begin(&Entry::sample(kind)) {
                Err(Refusal::Entry(text)) => assert!(text.contains("no form"), "{text}"),
                other => panic!("{other:?}"),
            }
        }
        let long = Entry {
            path: vec![b'x'; 65_536],
            ..Entry::sample(Kind::Regular)
        };
        let mut out = Vec::new();
        assert!(matches!(
            Zip::new(&mut out).begin(&long),
            Err(Refusal::Entry(_))
        ));
    }
}
