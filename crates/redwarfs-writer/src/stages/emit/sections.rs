//! Writing the sections of an image front to back.

use std::fmt;
use std::io::Write;

use redwarfs_codec::{CodecSpec, CompressionId, Table};
use redwarfs_format::frozen::{self, Frozen, Widths};
use redwarfs_format::metadata::{EncodedTables, Metadata};
use redwarfs_format::section::{
    GenerationId, Opening, Prelude, SectionHeader, SectionType, encode_section_index,
};

use crate::base::BaseImage;
use crate::error::{Error, Result};
use crate::progress::{Counters, add};

/// What a codec that is slower to read must save of an image: one part in this number.
pub const WORTHWHILE: u64 = 100;
/// Bytes of metadata beyond which trying such a codec takes too long: 0.3 s of CPU time for each MiB (512 MiB, 15 million entries).
const MAX_SLOW: usize = 512 << 20;

/// Codecs of the metadata.
#[derive(Clone, Copy)]
pub struct MetadataCodecs<'a> {
    /// Of the schema.
    pub schema: &'a CodecSpec,
    /// Of the metadata proper.
    pub main: &'a CodecSpec,
    /// Takes the place of `main` if the image gets noticeably smaller.
    pub alternative: Option<&'a CodecSpec>,
    /// Whether there is memory for the alternative, beside so many bytes of metadata and of payload.
    pub has_room: &'a dyn Fn(&CodecSpec, usize, usize) -> bool,
}

impl fmt::Debug for MetadataCodecs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetadataCodecs")
            .field("schema", self.schema)
            .field("main", self.main)
            .field("alternative", &self.alternative)
            .finish_non_exhaustive()
    }
}

/// Encodes metadata as it suits the codec that will compress it.
///
/// # Errors
/// If it is too large.
pub fn freeze_for(metadata: &Metadata, codec: &CodecSpec) -> Result<Frozen> {
    Ok(EncodedTables::new(widths_for(codec)).freeze(metadata)?)
}

/// Tables of metadata for a codec that compresses each one separately.
#[must_use]
pub fn records(tables: &[frozen::Table]) -> Vec<Table> {
    let of = |table: &frozen::Table| Table {
        range: table.start..table.start + table.len,
        record: (table.bits / 8) as usize,
    };
    tables.iter().map(of).collect()
}

/// Widths of integers that suit the codec which will compress the metadata.
pub(super) fn widths_for(codec: &CodecSpec) -> Widths {
    match *codec == CodecSpec::none() {
        true => Widths::Minimal,
        false => Widths::Bytes,
    }
}

/// Writes sections one after the other and remembers where they are.
pub struct Emitter<'a> {
    out: &'a mut dyn Write,
    counters: &'a Counters,
    sections: Vec<(SectionType, u64)>,
    /// Relative to the image, which begins after the header.
    offset: u64,
    written: u64,
    /// What was there before: an image that is continued.
    before: u64,
    /// Number of the next section.
    number: u32,
    /// The identity of the index, when it is written.
    generation: Option<GenerationId>,
}

impl fmt::Debug for Emitter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emitter")
            .field("sections", &self.sections.len())
            .field("offset", &self.offset)
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}

impl<'a> Emitter<'a> {
    /// Starts an image; `counters` count the written bytes.
    pub fn new(out: &'a mut dyn Write, counters: &'a Counters) -> Self {
        Self {
            out,
            counters,
            sections: Vec::new(),
            offset: 0,
            written: 0,
            before: 0,
            number: 0,
            generation: None,
        }
    }

    /// Continues an image behind its end. Its index will list the old blocks, too.
    ///
    /// # Errors
    /// [`Error::Output`] if writing fails.
    pub fn behind(
        base: &dyn BaseImage,
        out: &'a mut dyn Write,
        counters: &'a Counters,
    ) -> Result<Self> {
        let mut emitter = Self {
            out,
            counters,
            sections: base.sections(),
            offset: base.end(),
            written: base.end(),
            before: base.end(),
            number: base.next_number(),
            generation: None,
        };
        let (start, count) = base.start(emitter.number);
        emitter.write(&start)?;
        emitter.offset += start.len() as u64;
        emitter.number = emitter.number.saturating_add(count);
        Ok(emitter)
    }

    /// Continues an image of which all blocks are written: their types and offsets, and where they end.
    pub fn behind_blocks(
        out: &'a mut dyn Write,
        counters: &'a Counters,
        blocks: Vec<(SectionType, u64)>,
        end: u64,
    ) -> Self {
        Self {
            number: blocks.len() as u32,
            sections: blocks,
            offset: end,
            written: end,
            before: end,
            ..Self::new(out, counters)
        }
    }

    /// Begins another generation with the blocks so far.
    pub fn next_generation(&mut self) {
        self.sections.retain(|(ty, _)| *ty == SectionType::BLOCK);
        self.generation = None;
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(Error::Output)?;
        self.written += bytes.len() as u64;
        add(&self.counters.bytes_written, bytes.len() as u64);
        Ok(())
    }

    /// Writes bytes before the image. It may be called repeatedly, before the first section.
    ///
    /// # Errors
    /// [`Error::Output`] if writing fails.
    pub fn leading(&mut self, header: &[u8]) -> Result<()> {
        self.write(header)
    }

    /// Number of the next section.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Bytes written so far, including the bytes before the image.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Writes a section whose header, which must have the [number](Self::number) that is next,
    /// and payload are ready.
    ///
    /// # Errors
    /// [`Error::Output`] if writing fails, [`Error::Limit`] if the image gets too large.
    pub fn sealed(&mut self, header: &SectionHeader, payload: &[u8]) -> Result<()> {
        if self.offset >> 48 != 0 || self.number == u32::MAX {
            return Err(Error::Limit("the image would be too large".into()));
        }
        tracing::trace!(
            at = self.offset,
            bytes = payload.len(),
            compression = %header.compression,
            "section {} {}",
            self.sections.len(),
            header.ty
        );
        self.sections.push((header.ty, self.offset));
        self.number += 1;
        self.write(&header.encode())?;
        self.write(payload)?;
        self.offset += SectionHeader::LEN as u64 + payload.len() as u64;
        Ok(())
    }

    /// Compresses and writes a section.
    ///
    /// # Errors
    /// As [`sealed`](Self::sealed), and if compressing fails.
    pub fn section(&mut self, ty: SectionType, codec: &CodecSpec, raw: Vec<u8>) -> Result<()> {
        let compressed = codec.compressor().compress(&raw)?;
        let payload = compressed.data.unwrap_or(raw);
        let header = SectionHeader::seal(self.number(), ty, compressed.id, &payload);
        self.sealed(&header, &payload)
    }

    /// Compresses and writes the sections of frozen metadata: with the codec that is an
    /// alternative, if that saves one part in [`WORTHWHILE`] of the image, or of what is new in it.
    ///
    /// # Errors
    /// As [`section`](Self::section).
    pub fn metadata(&mut self, frozen: Frozen, codecs: &MetadataCodecs<'_>) -> Result<()> {
        self.section(
            SectionType::METADATA_V2_SCHEMA,
            codecs.schema,
            frozen.schema,
        )?;
        let tables = records(&frozen.tables);
        let len = frozen.data.len();
        let mut best = codecs
            .main
            .compressor()
            .compress_tables(&frozen.data, &tables, len)?;
        let size = best.data.as_ref().map_or(len, Vec::len);
        // What it must save of everything that is new in the image.
        let least = (self.written - self.before + size as u64) / WORTHWHILE;
        let limit = usize::try_from(least).map_or(0, |least| size.saturating_sub(least));
        if let Some(codec) = codecs.alternative.filter(|codec| codec.is_available())
            && limit > 0
            && len <= MAX_SLOW
            && (codecs.has_room)(codec, len, size)
        {
            let other = codec
                .compressor()
                .compress_tables(&frozen.data, &tables, limit)?;
            if other.data.is_some() {
                best = other;
            }
        }
        let payload = best.data.unwrap_or(frozen.data);
        let header =
            SectionHeader::seal(self.number(), SectionType::METADATA_V2, best.id, &payload);
        self.sealed(&header, &payload)
    }

    /// Writes the section index; only hidden sections may follow.
    ///
    /// # Errors
    /// As [`sealed`](Self::sealed).
    pub fn index(&mut self) -> Result<()> {
        let mut entries = std::mem::take(&mut self.sections);
        entries.push((SectionType::SECTION_INDEX, self.offset));
        let payload = encode_section_index(&entries);
        entries.pop();
        self.sections = entries;
        self.generation = Some(GenerationId::of(&payload));
        let header = SectionHeader::seal(
            self.number(),
            SectionType::SECTION_INDEX,
            CompressionId::NONE,
            &payload,
        );
        self.sealed(&header, &payload)
    }

    /// Offset and identity of the index, when it is written.
    #[must_use]
    pub fn generation(&self) -> Option<(u64, GenerationId)> {
        let mut sections = self.sections.iter();
        let (_, at) = sections.rfind(|(ty, _)| *ty == SectionType::SECTION_INDEX)?;
        Some((*at, self.generation?))
    }

    /// Offsets of the headers of all blocks.
    pub(crate) fn blocks(&self) -> Vec<u64> {
        let sections = self.sections.iter();
        let blocks = sections.filter(|(ty, _)| *ty == SectionType::BLOCK);
        blocks.map(|(_, at)| *at).collect()
    }

    /// Where the next section begins, from the start of the image.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Writes a hidden section behind the index, which comes first.
    ///
    /// # Errors
    /// As [`sealed`](Self::sealed), and [`Error::Limit`] without an index.
    pub fn trailer(&mut self, ty: SectionType, prelude: &Prelude, body: &[u8]) -> Result<()> {
        let mut sections = self.sections.iter();
        let index = sections.rposition(|(ty, _)| *ty == SectionType::SECTION_INDEX);
        let listed = self.sections.iter().take(index.map_or(0, |at| at + 1));
        let opening = Opening::of_sections(listed.copied())
            .ok_or_else(|| Error::Limit("a hidden section needs a section index".into()))?;
        let number = self.number();
        let (header, payload) = opening.seal_trailer(self.offset, number, ty, prelude, body);
        self.sealed(&header, &payload)
    }

    /// Flushes the output.
    ///
    /// # Errors
    /// [`Error::Output`] if that fails.
    pub fn finish(&mut self) -> Result<()> {
        self.out.flush().map_err(Error::Output)
    }
}
