//! Compressed streams, recognised by their first bytes.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

use flate2::bufread::GzDecoder;

use crate::error::Fault;
use crate::stream::Stream;

/// A way in which a stream is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filter {
    Gzip,
    Bzip2,
    Xz,
    Lzma,
    Lzip,
    Zstd,
    Lz4,
}

/// How often a stream may be compressed.
const MOST_FILTERS: usize = 4;

/// The filter that made a stream with these first bytes.
pub(crate) fn filter_of(start: &[u8]) -> Option<Filter> {
    let magics: [(&[u8], Filter); 6] = [
        (b"\x1f\x8b\x08", Filter::Gzip),
        (b"\xfd7zXZ\0", Filter::Xz),
        (b"LZIP\x01", Filter::Lzip),
        (b"\x28\xb5\x2f\xfd", Filter::Zstd),
        (b"\x04\x22\x4d\x18", Filter::Lz4),
        (b"\x02\x21\x4c\x18", Filter::Lz4),
    ];
    if let Some((_, filter)) = magics.iter().find(|(magic, _)| start.starts_with(magic)) {
        return Some(*filter);
    }
    match start {
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Some(Filter::Bzip2),
        // A skippable frame of zstd or LZ4. Programs that compress in parallel write them for zstd.
        [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Filter::Zstd),
        _ if is_lzma(start) => Some(Filter::Lzma),
        _ => None,
    }
}

/// Whether bytes look like the header of the old format of LZMA, which has no magic.
fn is_lzma(start: &[u8]) -> bool {
    let Some((head, _)) = start.split_first_chunk::<13>() else {
        return false;
    };
    let [properties, dictionary @ ..] = head;
    let [a, b, c, d, size @ ..] = *dictionary;
    let dictionary = u32::from_le_bytes([a, b, c, d]);
    let size = u64::from_le_bytes(size);
    let usual = dictionary.is_power_of_two() || (dictionary / 3).is_power_of_two();
    *properties == 0x5d && usual && dictionary >= 4096 && (size == u64::MAX || size < 1 << 40)
}

/// Undoes all compression of a stream.
pub(crate) fn decompressed(mut stream: Stream<'_>) -> Result<Stream<'_>, Fault> {
    for _ in 0..MOST_FILTERS {
        let Some(filter) = filter_of(stream.peek(16)?) else {
            return Ok(stream);
        };
        stream = undo(filter, stream)?;
    }
    Err(Fault::unsupported(
        "compressed more often than four times; decompress it first",
    ))
}

fn undo(filter: Filter, stream: Stream<'_>) -> Result<Stream<'_>, Fault> {
    let failed = stream.failed();
    let trailing = Rc::<Cell<u64>>::default();
    let decoder: Box<dyn Read + '_> = match filter {
        Filter::Gzip => Box::new(Gzip {
            decoder: Some(GzDecoder::new(stream)),
            trailing: Rc::clone(&trailing),
        }),
        Filter::Bzip2 => Box::new(bzip2::read::MultiBzDecoder::new(stream)),
        Filter::Lz4 => Box::new(Lz4::new(stream)),
        Filter::Zstd => zstd(stream)?,
        Filter::Xz | Filter::Lzma | Filter::Lzip => lzma(filter, stream)?,
    };
    Ok(Stream::new(decoder, None, failed).counting(trailing))
}

/// Members of gzip, one after the other. Tapes and some programs fill up what follows the last one.
struct Gzip<'a> {
    /// `None` after the last member.
    decoder: Option<GzDecoder<Stream<'a>>>,
    trailing: Rc<Cell<u64>>,
}

impl Read for Gzip<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.decoder {
            let got = decoder.read(buf)?;
            if got > 0 || buf.is_empty() {
                return Ok(got);
            }
            let Some(mut stream) = self.decoder.take().map(GzDecoder::into_inner) else {
                break;
            };
            if stream.peek(2)?.starts_with(b"\x1f\x8b") {
                self.decoder = Some(GzDecoder::new(stream));
                continue;
            }
            self.trailing.set(stream.drain()?);
        }
        Ok(0)
    }
}

/// LZ4 frames, one after the other.
struct Lz4<'a> {
    decoder: lz4_flex::frame::FrameDecoder<Stream<'a>>,
}

impl<'a> Lz4<'a> {
    fn new(stream: Stream<'a>) -> Self {
        Self {
            decoder: lz4_flex::frame::FrameDecoder::new(stream),
        }
    }
}

impl Read for Lz4<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.decoder.read(buf) {
                // The end of a frame; another one may follow.
                Ok(0) if !buf.is_empty() => {
                    let more = self.decoder.get_mut().peek(1);
                    match more.map(<[u8]>::is_empty) {
                        Ok(true) => return Ok(0),
                        Ok(false) => {}
                        Err(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    }
                }
                other => return other,
            }
        }
    }
}

#[cfg(feature = "zstd")]
fn zstd(stream: Stream<'_>) -> Result<Box<dyn Read + '_>, Fault> {
    Ok(Box::new(zstandard::Decoder::new(stream)?))
}

#[cfg(not(feature = "zstd"))]
fn zstd(_stream: Stream<'_>) -> Result<Box<dyn Read + '_>, Fault> {
    Err(Fault::unsupported(
        "compressed with zstd, which this program was built without",
    ))
}

#[cfg(feature = "zstd")]
mod zstandard {
    use std::io::{self, Read};

    use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

    use crate::error::Fault;
    use crate::stream::Stream;

    /// Log2 of the largest window in bytes, which is memory of the decoder. `zstd` has the same default.
    const WINDOW: u32 = 27;

    /// Frames of zstd, one after the other.
    pub(super) struct Decoder<'a> {
        context: DCtx<'static>,
        stream: Stream<'a>,
        input: Vec<u8>,
        taken: usize,
        filled: usize,
        /// Whether the decoder is between two frames.
        complete: bool,
        ended: bool,
    }

    impl<'a> Decoder<'a> {
        pub(super) fn new(stream: Stream<'a>) -> Result<Self, Fault> {
            let memory = || Fault::unsupported("there is no memory for the zstd decoder");
            let mut context = DCtx::try_create().ok_or_else(memory)?;
            context
                .set_parameter(DParameter::WindowLogMax(WINDOW))
                .map_err(|_| memory())?;
            Ok(Self {
                context,
                stream,
                input: vec![0; DCtx::in_size()],
                taken: 0,
                filled: 0,
                complete: true,
                ended: false,
            })
        }
    }

    impl Read for Decoder<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            loop {
                if self.taken == self.filled && !self.ended {
                    self.taken = 0;
                    self.filled = Read::read(&mut self.stream, &mut self.input)?;
                    self.ended = self.filled == 0;
                }
                if self.ended && self.complete {
                    return Ok(0);
                }
                let bytes = self.input.get(self.taken..self.filled).unwrap_or_default();
                let mut input = InBuffer::around(bytes);
                let mut output = OutBuffer::around(&mut *buf);
                let hint = self
                    .context
                    .decompress_stream(&mut output, &mut input)
                    .map_err(|code| {
                        let name = zstd_safe::get_error_name(code);
                        let name = match name.contains("requires too much memory") {
                            true => "zstd window larger than 128 MiB; decompress the archive first",
                            false => name,
                        };
                        io::Error::new(io::ErrorKind::InvalidData, name)
                    })?;
                let written = output.pos();
                let read = input.pos();
                self.taken += read;
                self.complete = hint == 0;
                if written > 0 || buf.is_empty() {
                    return Ok(written);
                }
                if self.ended && read == 0 && !self.complete {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
    }
}

/// Memory of a decoder in bytes: `xz -9` needs 65 MiB.
#[cfg(feature = "lzma")]
const LZMA_MEMORY: u64 = 512 << 20;

#[cfg(feature = "lzma")]
fn lzma(filter: Filter, stream: Stream<'_>) -> Result<Box<dyn Read + '_>, Fault> {
    use liblzma::stream::{CONCATENATED, Stream as Coder};
    let coder = match filter {
        Filter::Lzma => Coder::new_lzma_decoder(LZMA_MEMORY),
        Filter::Lzip => Coder::new_lzip_decoder(LZMA_MEMORY, CONCATENATED),
        _ => Coder::new_stream_decoder(LZMA_MEMORY, CONCATENATED),
    };
    let coder = coder.map_err(|e| Fault::unsupported(e.to_string()))?;
    Ok(Box::new(liblzma::read::XzDecoder::new_stream(
        stream, coder,
    )))
}

#[cfg(not(feature = "lzma"))]
fn lzma(_filter: Filter, _stream: Stream<'_>) -> Result<Box<dyn Read + '_>, Fault> {
    Err(Fault::unsupported(
        "compressed with LZMA, which this program was built without",
    ))
}
