//! Compressed streams, recognised by their first bytes.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

use bzip2::bufread::BzDecoder;
use flate2::bufread::GzDecoder;
use lz4_flex::frame::FrameDecoder;

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
        (&LZ4, Filter::Lz4),
        (&LZ4_LEGACY, Filter::Lz4),
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
    let gzip = |start: &[u8]| start.starts_with(b"\x1f\x8b");
    let bzip2 = |start: &[u8]| start.starts_with(b"BZ");
    let decoder: Box<dyn Read + '_> = match filter {
        Filter::Gzip => Parts::<GzDecoder<_>>::of(stream, gzip, &trailing)?,
        Filter::Bzip2 => Parts::<BzDecoder<_>>::of(stream, bzip2, &trailing)?,
        Filter::Lz4 => Parts::<FrameDecoder<_>>::of(stream, is_lz4, &trailing)?,
        Filter::Zstd => zstd(stream, &trailing)?,
        Filter::Xz | Filter::Lzma | Filter::Lzip => lzma(filter, stream)?,
    };
    Ok(Stream::new(decoder, None, failed).counting(trailing))
}

/// A decoder of one part of a compressed stream: a member, a stream or a frame.
trait Decoder<'a>: Read + Sized {
    fn new(stream: Stream<'a>) -> Result<Self, Fault>;

    /// The stream with what follows the part.
    fn rest(self) -> Result<Stream<'a>, Fault>;

    /// Skips what is between two parts.
    fn skip_unused(_stream: &mut Stream<'a>) -> Result<(), Fault> {
        Ok(())
    }
}

impl<'a> Decoder<'a> for GzDecoder<Stream<'a>> {
    fn new(stream: Stream<'a>) -> Result<Self, Fault> {
        Ok(Self::new(stream))
    }

    fn rest(self) -> Result<Stream<'a>, Fault> {
        Ok(self.into_inner())
    }
}

impl<'a> Decoder<'a> for BzDecoder<Stream<'a>> {
    fn new(stream: Stream<'a>) -> Result<Self, Fault> {
        Ok(Self::new(stream))
    }

    fn rest(self) -> Result<Stream<'a>, Fault> {
        Ok(self.into_inner())
    }
}

/// Bytes of a frame of LZ4, whose decoder does not tell whether the frame ends or the bytes do.
struct Lz4Frame<'a> {
    stream: Stream<'a>,
    /// Whether the frame has no end mark.
    unmarked: bool,
    ended: bool,
}

impl Read for Lz4Frame<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = Read::read(&mut self.stream, buf)?;
        self.ended |= got == 0 && !buf.is_empty();
        Ok(got)
    }
}

impl<'a> Decoder<'a> for FrameDecoder<Lz4Frame<'a>> {
    fn new(mut stream: Stream<'a>) -> Result<Self, Fault> {
        let unmarked = stream.peek(4)? == LZ4_LEGACY;
        Ok(Self::new(Lz4Frame {
            stream,
            unmarked,
            ended: false,
        }))
    }

    fn rest(self) -> Result<Stream<'a>, Fault> {
        let frame = self.into_inner();
        match frame.ended && !frame.unmarked {
            true => Err(Fault::Truncated),
            false => Ok(frame.stream),
        }
    }

    fn skip_unused(stream: &mut Stream<'a>) -> Result<(), Fault> {
        while let &[0x50..=0x5f, 0x2a, 0x4d, 0x18, a, b, c, d] = stream.peek(8)? {
            stream.skip(8 + u64::from(u32::from_le_bytes([a, b, c, d])))?;
        }
        Ok(())
    }
}

/// Parts of a compressed stream, one after the other. Tapes and some programs fill up what follows the
/// last one.
struct Parts<D> {
    /// `None` after the last part.
    decoder: Option<D>,
    /// Whether bytes begin another part.
    is_next: fn(&[u8]) -> bool,
    trailing: Rc<Cell<u64>>,
}

impl<'a, D: Decoder<'a> + 'a> Parts<D> {
    fn of(
        stream: Stream<'a>,
        is_next: fn(&[u8]) -> bool,
        trailing: &Rc<Cell<u64>>,
    ) -> Result<Box<dyn Read + 'a>, Fault> {
        Ok(Box::new(Self {
            decoder: Some(D::new(stream)?),
            is_next,
            trailing: Rc::clone(trailing),
        }))
    }
}

impl<'a, D: Decoder<'a>> Read for Parts<D> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.decoder {
            let got = decoder.read(buf)?;
            if got > 0 || buf.is_empty() {
                return Ok(got);
            }
            let Some(mut stream) = self.decoder.take().map(D::rest).transpose()? else {
                break;
            };
            D::skip_unused(&mut stream)?;
            if (self.is_next)(stream.peek(4)?) {
                self.decoder = Some(D::new(stream)?);
                continue;
            }
            self.trailing.set(stream.drain()?);
        }
        Ok(0)
    }
}

/// Magic of a frame of LZ4.
const LZ4: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
/// Magic of the old format of LZ4.
const LZ4_LEGACY: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];

/// Whether bytes are the magic of a frame of LZ4, or the beginning of one.
fn is_lz4(start: &[u8]) -> bool {
    !start.is_empty() && (LZ4.starts_with(start) || LZ4_LEGACY.starts_with(start))
}

/// Whether bytes are the magic of a frame that decoders of zstd skip, or the beginning of one.
#[cfg(feature = "zstd")]
fn is_skippable(start: &[u8]) -> bool {
    match start {
        [0x50..=0x5f, rest @ ..] => [0x2a, 0x4d, 0x18].starts_with(rest),
        _ => false,
    }
}

#[cfg(feature = "zstd")]
fn zstd<'a>(stream: Stream<'a>, trailing: &Rc<Cell<u64>>) -> Result<Box<dyn Read + 'a>, Fault> {
    let decoder = zstandard::Decoder::new(stream, Rc::clone(trailing))?;
    Ok(Box::new(decoder))
}

#[cfg(not(feature = "zstd"))]
fn zstd<'a>(_stream: Stream<'a>, _trailing: &Rc<Cell<u64>>) -> Result<Box<dyn Read + 'a>, Fault> {
    Err(Fault::unsupported(
        "compressed with zstd, which this program was built without",
    ))
}

#[cfg(feature = "zstd")]
mod zstandard {
    use std::cell::Cell;
    use std::io::{self, Read};
    use std::rc::Rc;

    use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

    use super::is_skippable;
    use crate::error::Fault;
    use crate::stream::Stream;

    /// Log2 of the largest window in bytes, which is memory of the decoder. `zstd` has the same default.
    const WINDOW: u32 = 27;

    /// Frames of zstd, one after the other.
    pub(super) struct Decoder<'a> {
        context: DCtx<'static>,
        stream: Stream<'a>,
        /// Whether the decoder is between two frames.
        complete: bool,
        ended: bool,
        trailing: Rc<Cell<u64>>,
    }

    impl<'a> Decoder<'a> {
        pub(super) fn new(stream: Stream<'a>, trailing: Rc<Cell<u64>>) -> Result<Self, Fault> {
            let memory = || Fault::unsupported("there is no memory for the zstd decoder");
            let mut context = DCtx::try_create().ok_or_else(memory)?;
            context
                .set_parameter(DParameter::WindowLogMax(WINDOW))
                .map_err(|_| memory())?;
            Ok(Self {
                context,
                stream,
                complete: true,
                ended: false,
                trailing,
            })
        }
    }

    /// Whether bytes are the magic of a frame, or the beginning of one.
    fn is_frame(start: &[u8]) -> bool {
        let magic = [0x28, 0xb5, 0x2f, 0xfd];
        is_skippable(start) || (!start.is_empty() && magic.starts_with(start))
    }

    impl Read for Decoder<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            while !self.ended {
                if self.complete && !is_frame(self.stream.peek(4)?) {
                    self.trailing.set(self.stream.drain()?);
                    self.ended = true;
                    break;
                }
                self.stream.peek(1)?;
                let bytes = self.stream.buffered();
                let at_end = bytes.is_empty();
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
                let (written, read) = (output.pos(), input.pos());
                self.stream.consume(read);
                self.complete = hint == 0;
                if written > 0 || buf.is_empty() {
                    return Ok(written);
                }
                if at_end && !self.complete {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Ok(0)
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
