//! `--salvage`: what is left of an image of which anything may be damaged or missing.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_io::{Origin, Source};
use redwarfs_reader::OpenOptions;
use redwarfs_recovery::Error as RecoveryError;
use redwarfs_salvage::{DamagedFile, Error, Missing, Salvage};

use crate::common::error::io_cause;
use crate::common::json::JsonWriter;
use crate::common::number::{counted, format_size};
use crate::common::output::{commit, create_medium};
use crate::common::recovery::{
    Access, FindError, Found, SidecarChoice, failure as recovery_failure, find, open, repairing,
    say_zeros,
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

/// The error of a file that cannot be salvaged.
pub(crate) fn failed(path: &Path, error: &Error) -> ToolError {
    match error {
        Error::Snapshot { .. } => ToolError::new(WHAT)
            .path(path)
            .cause(error)
            .hint("without --snapshot, the newest tree that is intact comes out"),
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
        let source: Arc<dyn Source> = Arc::new(open(input, WHAT)?);
        let repair = Repair {
            input,
            sidecar,
            stop: &stop,
            logger,
        };
        let recovery = repair.find(source.as_ref())?;
        let made = Origin::of(input).and_then(|origin| origin.create_dir(parts));
        made.map_err(|e| ToolError::new(WHAT).cause(io_cause(&e)))?;
        let search = || {
            let repaired = match &recovery {
                Some(recovery) => repair.repaired(&source, recovery, &parts.join(REPAIRED))?,
                None => None,
            };
            let source = repaired.unwrap_or_else(|| Arc::clone(&source));
            Salvage::of(source, options, &|_| {}, &stop).map_err(|e| failed(input, &e))
        };
        let found = search().inspect_err(|_| {
            // It stays if a repaired copy is in it.
            let _ = fs::remove_dir(parts);
        })?;
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
        let are = if lost.len() == 1 { "is" } else { "are" };
        logger.warn(format_args!(
            "{} of {} {are} lost",
            lost.len(),
            counted(u64::from(count), "block", "blocks")
        ));
    }
}

/// What repairs a file before it is searched.
struct Repair<'a> {
    input: &'a Path,
    sidecar: &'a SidecarChoice,
    stop: &'a AtomicBool,
    logger: &'a Logger,
}

const NO_COPY: &str = "cannot make a repaired copy";

impl Repair<'_> {
    /// The recovery data of the file, if there is any that can be used.
    fn find(&self, source: &dyn Source) -> Result<Option<Found>> {
        match find(source, self.input, self.sidecar, Access::Read, self.stop) {
            Ok(found) => Ok(Some(found)),
            // A sidecar that was named has to be one.
            Err(e) if self.sidecar.is_some() => Err(e.failure("cannot repair")),
            Err(FindError::Data(path, RecoveryError::NotFound)) if path == self.input => Ok(None),
            Err(FindError::Data(_, RecoveryError::Interrupted)) => Err(self.interrupted()),
            Err(e) => {
                self.logger.warn(e.failure("cannot use recovery data"));
                Ok(None)
            }
        }
    }

    fn interrupted(&self) -> ToolError {
        failed(self.input, &Error::Interrupted)
    }

    /// The file as far as recovery data can repair it: a repaired copy, or the file with repairs in memory if there can be
    /// none. None if there is nothing to repair, or the recovery data is of no use.
    fn repaired(
        &self,
        source: &Arc<dyn Source>,
        recovery: &Found,
        copy: &Path,
    ) -> Result<Option<Arc<dyn Source>>> {
        let useless = |error: RecoveryError| match error {
            RecoveryError::Interrupted => Err(self.interrupted()),
            other => {
                let warning = recovery_failure("cannot use recovery data", self.input, &other);
                self.logger.warn(warning);
                Ok(None)
            }
        };
        let damage = match recovery.data.check(source.as_ref(), &|_| {}, self.stop) {
            Ok(damage) if damage.is_none() => return Ok(None),
            Ok(damage) => damage,
            Err(error) => return useless(error),
        };
        let lost = damage.lost_groups();
        if lost > 0 {
            self.logger.warn(format_args!(
                "there is recovery data, but it cannot repair everything: {lost} of {} groups have more damage",
                damage.all_groups()
            ));
        } else {
            match self.copy(source.as_ref(), recovery, copy) {
                Ok(repaired) => return Ok(Some(repaired)),
                Err(_) if self.stop.load(Ordering::Relaxed) => return Err(self.interrupted()),
                Err(error) => {
                    self.logger.warn(error);
                    self.logger.warn("the file is repaired in memory instead");
                }
            }
        }
        match repairing(Arc::clone(source), recovery, self.logger) {
            Ok(repairing) => Ok(Some(repairing)),
            Err(error) => useless(error),
        }
    }

    /// Makes a repaired copy. Nothing is left of one that cannot be completed.
    fn copy(&self, source: &dyn Source, recovery: &Found, copy: &Path) -> Result<Arc<dyn Source>> {
        let failed = |e: RecoveryError| recovery_failure(NO_COPY, copy, &e);
        let (out, file) = create_medium(copy, self.input, NO_COPY, self.logger)?;
        let copied = recovery.data.copy(source, &file, &|_| {}, self.stop);
        let copied = copied.map_err(failed)?;
        // The start that the file has lost is there again.
        let found = find(&file, self.input, self.sidecar, Access::Read, self.stop);
        let found = found.map_err(|e| e.failure(NO_COPY))?;
        let damage = found.data.check(&file, &|_| {}, self.stop);
        let damage = damage.map_err(failed)?;
        let repaired = found.data.repair(&file, &damage, self.stop);
        repaired.map_err(failed)?;
        let zeros = copied.zeros(&found.data, &file).map_err(failed)?;
        drop(file);
        commit(out, NO_COPY)?;
        say_zeros(recovery, &zeros, copy, self.logger);
        let (what, is) = match zeros.is_empty() {
            true => ("everything", "is the image as it was"),
            false => ("what it protects", "has the result"),
        };
        self.logger.info(format_args!(
            "the recovery data repaired {what}: {} {is}",
            copy.display()
        ));
        Ok(Arc::new(open(copy, NO_COPY)?))
    }
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
