//! A stream of zstd.

use std::io::{self, Write};

use zstd_safe::zstd_sys::ZSTD_EndDirective as Directive;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer};

/// The default of zstd.
const LEVEL: i32 = 3;

/// A stream of zstd.
pub(super) struct Zstd<'a> {
    context: CCtx<'static>,
    out: &'a mut dyn Write,
    buffer: Vec<u8>,
}

fn failed(code: usize) -> io::Error {
    io::Error::other(zstd_safe::get_error_name(code))
}

impl<'a> Zstd<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> io::Result<Self> {
        let mut context = CCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
        for parameter in [
            CParameter::CompressionLevel(LEVEL),
            CParameter::ChecksumFlag(true),
        ] {
            context.set_parameter(parameter).map_err(failed)?;
        }
        Ok(Self {
            context,
            out,
            buffer: Vec::with_capacity(CCtx::out_size()),
        })
    }

    /// Compresses `bytes`, and ends the stream if that is what `directive` says.
    fn pass(&mut self, bytes: &[u8], directive: Directive) -> io::Result<()> {
        let mut input = InBuffer::around(bytes);
        loop {
            self.buffer.clear();
            let mut output = OutBuffer::around(&mut self.buffer);
            let rest = self
                .context
                .compress_stream2(&mut output, &mut input, directive)
                .map_err(failed)?;
            self.out.write_all(&self.buffer)?;
            let done = match directive {
                Directive::ZSTD_e_end => rest == 0,
                _ => input.pos() == bytes.len(),
            };
            if done {
                return Ok(());
            }
        }
    }

    /// Ends the stream.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.pass(&[], Directive::ZSTD_e_end)?;
        self.out.flush()
    }
}

impl Write for Zstd<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pass(bytes, Directive::ZSTD_e_continue)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pass(&[], Directive::ZSTD_e_flush)
    }
}
