//! `--salvage`: what is left of an image of which anything may be damaged or missing.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redwarfs_io::{FileSource, LockedFile, Source};
use redwarfs_reader::OpenOptions;
use redwarfs_salvage::{DamagedFile, Error, Missing, Salvage};

use crate::common::error::io_cause;
use crate::common::json::JsonWriter;
use crate::common::number::{counted, format_size};
use crate::common::recovery::{
    Access, FindError, SidecarChoice, failure as recovery_failure, find, repairing,
};
use crate::common::{Logger, Result, ToolError};

/// Name of the repaired copy, of the report, and of the directories.
const REPAIRED: &str = "repaired.dwarfs";
const REPORT: &str = "report.json";
const FILES: &str = "files";
const BLOCKS: &str = "blocks";

const WHAT: &str = "cannot salvage";

/// What is found in a file, and the directory for what is not whole.
pub(super) struct Salvaging<'a> {
    pub(super) found: Salvage,
    parts: &'a Path,
    stop: Arc<AtomicBool>,
    damaged: Vec<DamagedFile>,
}

fn failed(path: &Path, error: &Error) -> ToolError {
    match error {
        Error::Io(e) => ToolError::new(WHAT).path(path).io(e),
        other => ToolError::new(WHAT).path(path).cause(other),
    }
}

impl<'a> Salvaging<'a> {
    /// Searches `input`, after it was repaired as far as recovery data can do that. `parts` must not exist.
    pub(super) fn begin(
        input: &Path,
        parts: &'a Path,
        sidecar: &SidecarChoice,
        options: &OpenOptions,
        stop: Arc<AtomicBool>,
        logger: &Logger,
    ) -> Result<Self> {
        let source: Arc<dyn Source> = Arc::new(
            FileSource::open(input).map_err(|e| ToolError::new(WHAT).cause(io_cause(&e)))?,
        );
        fs::create_dir(parts).map_err(|e| ToolError::new(WHAT).path(parts).io(&e))?;
        let copy = parts.join(REPAIRED);
        let repaired = repaired(&source, input, sidecar, &copy, &stop, logger)?;
        let source = repaired.unwrap_or(source);
        let found = Salvage::of(source, options, &|_| {}, &stop).map_err(|e| failed(input, &e))?;
        say_what(&found, logger);
        Ok(Self {
            found,
            parts,
            stop,
            damaged: Vec::new(),
        })
    }

    /// Writes what is not whole. Whether anything is lost.
    pub(super) fn finish(mut self, logger: &Logger) -> Result<bool> {
        let lost = match self.found.image() {
            Some(_) => self.files(logger)?,
            None => self.blocks(logger)?,
        };
        self.report(lost)
            .map_err(|e| ToolError::new(WHAT).path(self.parts.join(REPORT)).io(&e))?;
        Ok(lost)
    }

    fn files(&mut self, logger: &Logger) -> Result<bool> {
        let dir = self.parts.join(FILES);
        let damaged = &mut self.damaged;
        let written = self
            .found
            .write_parts(&dir, &mut |file| {
                logger.error(format_args!(
                    "damaged: {}: {} of {} bytes are lost",
                    redwarfs_extractor::display_path(&file.path),
                    file.lost(),
                    file.size
                ));
                damaged.push(file.clone());
                Ok(())
            })
            .map_err(|e| failed(&dir, &e))?;
        if self.damaged.is_empty() {
            // Nothing to see there.
            let _ = fs::remove_dir(&dir);
            return Ok(self.found.newer_damaged().next().is_some());
        }
        logger.warn(format_args!(
            "{} partly there, in {}: {} of them, {} are missing; {} lost completely",
            counted(written.files, "file is", "files are"),
            dir.display(),
            format_size(written.bytes),
            format_size(written.lost),
            counted(written.gone, "file is", "files are"),
        ));
        if written.unnamed > 0 {
            logger.warn(format_args!(
                "{} not written: their names cannot be names here",
                counted(written.unnamed, "file was", "files were")
            ));
        }
        if written.too_large > 0 {
            logger.warn(format_args!(
                "{} not written: the file system cannot hold files of their size",
                counted(written.too_large, "file was", "files were")
            ));
        }
        Ok(true)
    }

    fn blocks(&self, logger: &Logger) -> Result<bool> {
        let dir = self.parts.join(BLOCKS);
        let written = self
            .found
            .write_blocks(
                &dir,
                &mut |name, file| {
                    logger.verbose(format_args!(
                        "recognised {name}, by its {}",
                        file.certainty.name()
                    ));
                    Ok(())
                },
                &self.stop,
            )
            .map_err(|e| failed(&dir, &e))?;
        logger.warn(format_args!(
            "there is no usable metadata, so no names: {} ({}) and {} recognised in them, in {}; {} lost",
            counted(written.blocks, "block", "blocks"),
            format_size(written.bytes),
            counted(written.files, "file", "files"),
            dir.display(),
            counted(written.lost, "block is", "blocks are"),
        ));
        Ok(true)
    }

    fn report(&self, lost: bool) -> io::Result<()> {
        let mut file = File::create_new(self.parts.join(REPORT))?;
        let mut json = JsonWriter::pretty(&mut file);
        json.begin_object()?;
        write_found(&mut json, &self.found)?;
        json.key("files")?;
        json.begin_array()?;
        for file in &self.damaged {
            write_file(&mut json, file)?;
        }
        json.end_array()?;
        json.boolean_at("lost", lost)?;
        json.end_object()?;
        json.finish()?;
        file.flush()
    }
}

/// Says what the tree is, and what is wrong with it.
fn say_what(found: &Salvage, logger: &Logger) {
    for why in found.passed_over() {
        logger.warn(why);
    }
    for at in found.newer_damaged() {
        logger.warn(format_args!(
            "metadata at offset {at} is damaged: what comes out is an older state"
        ));
    }
    if found.unreadable() > 0 {
        logger.warn("some places of the file cannot be read, and count as damaged");
    }
    if let Some(lost) = found.lost_blocks().filter(|lost| !lost.is_empty()) {
        let count = found
            .image()
            .map_or(0, |image| image.container().block_count());
        logger.warn(format_args!("{} of {count} blocks are lost", lost.len()));
    }
}

/// A file with recovery data as far as that can repair it: a repaired copy, or the file with repairs in memory if
/// something stays damaged. None if there is nothing to repair.
fn repaired(
    source: &Arc<dyn Source>,
    input: &Path,
    sidecar: &SidecarChoice,
    copy: &Path,
    stop: &AtomicBool,
    logger: &Logger,
) -> Result<Option<Arc<dyn Source>>> {
    let what = "cannot repair";
    let failed = |e: redwarfs_recovery::Error| ToolError::new(what).path(copy).cause(e);
    let found = match find(source.as_ref(), input, sidecar, Access::Read, stop) {
        Ok(found) => found,
        // A sidecar that was named has to be one.
        Err(e) if sidecar.is_some() => return Err(e.failure(what)),
        Err(FindError::Data(path, redwarfs_recovery::Error::NotFound)) if path == input => {
            return Ok(None);
        }
        Err(e) => {
            logger.warn(e.failure("cannot use recovery data"));
            return Ok(None);
        }
    };
    let damage = found.data.check(source.as_ref(), &|_| {}, stop);
    let damage = damage.map_err(failed)?;
    if damage.is_none() {
        return Ok(None);
    }
    // Then it cannot help, and what is there comes out without it.
    let at_start = match found.data.lost_at_start() {
        Ok(lost) => lost,
        Err(error) => {
            logger.warn(recovery_failure("cannot use recovery data", input, &error));
            return Ok(None);
        }
    };
    let lost = damage.lost_groups();
    if lost > 0 {
        logger.warn(format_args!(
            "there is recovery data, but it cannot repair everything: {lost} of {} groups have more damage",
            damage.all_groups()
        ));
        let repairing = repairing(Arc::clone(source), &found, logger).map_err(failed)?;
        return Ok(Some(repairing));
    }
    let io = |e: io::Error| ToolError::new(what).path(copy).io(&e);
    copy_of(source.as_ref(), at_start, copy).map_err(io)?;
    let file = LockedFile::open(copy).map_err(io)?;
    let found = find(&file, input, sidecar, Access::Read, stop).map_err(|e| e.failure(what))?;
    let damage = found.data.check(&file, &|_| {}, stop).map_err(failed)?;
    found.data.repair(&file, &damage, stop).map_err(failed)?;
    logger.info(format_args!(
        "the recovery data repaired everything: {} is the image as it was",
        copy.display()
    ));
    let repaired = FileSource::open(copy).map_err(io)?;
    Ok(Some(Arc::new(repaired)))
}

/// Copies a file behind `lost` zeros. What cannot be read becomes zeros.
fn copy_of(source: &dyn Source, lost: u64, copy: &Path) -> io::Result<()> {
    const PIECE: u64 = 1 << 20;
    const SMALL: usize = 4096;
    let mut out = File::create_new(copy)?;
    io::copy(&mut io::Read::take(io::repeat(0), lost), &mut out)?;
    let len = source.len()?;
    let mut at = 0;
    while at < len {
        let mut piece = vec![0; usize::try_from(PIECE.min(len - at)).unwrap_or(0)];
        if source.read_exact_at(at, &mut piece).is_err() {
            for (number, small) in (0_u64..).zip(piece.chunks_mut(SMALL)) {
                let place = at + number * SMALL as u64;
                if source.read_exact_at(place, small).is_err() {
                    small.fill(0);
                }
            }
        }
        out.write_all(&piece)?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// What was found in a file, as members of an object.
pub(crate) fn write_found<W: Write>(json: &mut JsonWriter<W>, found: &Salvage) -> io::Result<()> {
    let sections = found.sections();
    json.key("sections")?;
    json.begin_array()?;
    for section in sections {
        json.begin_object()?;
        json.boolean_at("intact", section.intact)?;
        json.number_at("number", section.header.number)?;
        json.number_at("offset", section.at)?;
        json.key("type")?;
        json.string(&section.header.ty.to_string())?;
        json.end_object()?;
    }
    json.end_array()?;
    if let (Some(at), Some(lost)) = (found.tree_at(), found.lost_blocks()) {
        json.key("tree")?;
        json.begin_object()?;
        json.boolean_at("indexed", found.is_indexed())?;
        json.key("lost_blocks")?;
        json.begin_array()?;
        for block in lost {
            json.number(u64::from(block.0))?;
        }
        json.end_array()?;
        json.number_at("offset", at)?;
        json.end_object()?;
    }
    Ok(())
}

/// A damaged file.
pub(crate) fn write_file<W: Write>(json: &mut JsonWriter<W>, file: &DamagedFile) -> io::Result<()> {
    json.begin_object()?;
    json.key("missing")?;
    json.begin_array()?;
    for Missing { offset, length } in &file.missing {
        json.begin_object()?;
        json.number_at("length", *length)?;
        json.number_at("offset", *offset)?;
        json.end_object()?;
    }
    json.end_array()?;
    json.key("path")?;
    json.string(&String::from_utf8_lossy(&file.path))?;
    json.number_at("size", file.size)?;
    json.end_object()
}

/// The path that `--salvage` names.
pub(super) fn directory(text: &str) -> std::result::Result<PathBuf, String> {
    match text.is_empty() {
        true => Err("must be the name of a new directory".to_owned()),
        false => Ok(PathBuf::from(text)),
    }
}
