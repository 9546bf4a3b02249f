//! Continuing an image: what it is, and where the new bytes go.

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redwarfs_append::{Base, BaseOptions, Error, InPlace, Trust};
use redwarfs_format::metadata::Timestamp;
use redwarfs_format::section::{SectionType, snapshot_time_name};
use redwarfs_io::{FileSource, Source as _};
use redwarfs_reader::{CheckOptions, ImageOffset};

use super::args::Args;
use super::output::Target;
use crate::common::cut;
use crate::common::env::concurrency;
use crate::common::error::{cause_at, display_path};
use crate::common::number::format_size;
use crate::common::open::refuse_joined;
use crate::common::protect::{Precheck, Protected};
use crate::common::{Logger, Result, ToolError, remote};

/// Bytes of the old image that are copied at once.
const PIECE: usize = 1 << 20;

/// An image that the build continues.
pub(super) struct Continued<'a> {
    path: Cow<'a, Path>,
    place: AppendTarget<'a>,
}

enum AppendTarget<'a> {
    /// Behind the image, in its file.
    Here(InPlace),
    /// Behind a copy of the image.
    Copy(Base, &'a Path),
    /// In a file of its own.
    Delta(Base, &'a Path),
}

/// Refuses options that do not go with an append.
pub(super) fn check(args: &Args) -> Result<()> {
    if args.append.append.is_none() {
        return Ok(());
    }
    let refused = |what| ToolError::new(format!("--append does not go with {what}"));
    if args.hollow {
        return Err(refused("--hollow"));
    }
    if args.header.is_some() {
        return Err(refused("--header"));
    }
    if args.no_section_index {
        return Err(refused("--no-section-index"));
    }
    if args.recovery.is_some() && args.append.delta_out.is_some() {
        return Err(ToolError::new("--recovery does not go with --delta-out")
            .hint("it is for a file that has the whole image"));
    }
    Ok(())
}

impl<'a> Continued<'a> {
    /// Opens the image that the options name, if they do. `time` is that of the new snapshot.
    pub(super) fn open(args: &'a Args, time: u64) -> Result<Option<Self>> {
        let Some(path) = args.append.append.as_deref() else {
            return Ok(None);
        };
        let path = remote::local("cannot append", path)?;
        refuse_joined("cannot append", &path)?;
        let sec = i64::try_from(time).unwrap_or(i64::MAX);
        let named = args.append.snapshot_name.as_ref();
        let name = named.map_or_else(|| snapshot_time_name(sec), String::clone);
        let mut options = BaseOptions::new(name, Timestamp { sec, nsec: 0 });
        options.numbered = named.is_none();
        // The source knows what a layer has not changed.
        if args.append.checksum || args.append.commit.is_some() {
            options.trust = Trust::Nothing;
        }
        let failed = |error| failure(&path, error);
        let read = |options| {
            let source = FileSource::open(&path).map_err(|e| failed(Error::Io(e)))?;
            Base::open(Arc::new(source), options).map_err(failed)
        };
        let place = match (&args.append.delta_out, &args.output) {
            (Some(delta), _) => AppendTarget::Delta(read(options)?, delta),
            (None, Some(output)) => AppendTarget::Copy(read(options)?, output),
            (None, None) => AppendTarget::Here(InPlace::open(&path, options).map_err(failed)?),
        };
        Ok(Some(Self { path, place }))
    }

    /// The image as the build sees it.
    pub(super) fn base(&self) -> &Base {
        match &self.place {
            AppendTarget::Here(place) => place.base(),
            AppendTarget::Copy(base, _) | AppendTarget::Delta(base, _) => base,
        }
    }

    /// Whether the image itself gets the snapshot.
    pub(super) fn is_in_place(&self) -> bool {
        matches!(self.place, AppendTarget::Here(_))
    }

    /// The file that is written.
    pub(super) fn output(&self) -> &Path {
        match &self.place {
            AppendTarget::Here(_) => &self.path,
            AppendTarget::Copy(_, output) | AppendTarget::Delta(_, output) => output,
        }
    }

    /// The image.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Warns of a new snapshot that neither the recovery data nor the signature covers.
    pub(super) fn warn_if_open(&self, args: &Args, logger: &Logger) {
        let trailers = &self.base().image().container().trailers;
        let protected = trailers.iter().any(|s| s.ty == SectionType::RECOVERY);
        if protected && args.recovery.is_none() {
            logger.warn(format_args!(
                "{}: its recovery data does not protect the new snapshot: --recovery=PERCENT adds more",
                display_path(&self.path)
            ));
        }
        if trailers.iter().any(|s| s.ty == SectionType::SIGNATURE) {
            logger.warn(format_args!(
                "{}: its signature does not cover the new snapshot: dwarfsck --sign signs it, too",
                display_path(&self.path)
            ));
        }
    }

    /// Refuses to protect damage. Only recovery data for everything covers what older recovery data protects.
    pub(super) fn refuse_damage(&self, args: &Args, stop: &AtomicBool) -> Result<()> {
        let Some(amount) = args.recovery else {
            return Ok(());
        };
        let protected = match amount.merge {
            true => Protected::Compare,
            false => Protected::Leave,
        };
        let mut options = CheckOptions::default();
        options.threads = args.num_workers.map_or_else(concurrency, |n| n as usize);
        let advice = "without --recovery, the image is continued as it is";
        let image = self.base().image();
        Precheck::of(image, self.path(), options, protected, advice, stop)?.check(&|_| {}, stop)
    }

    /// Starts the output.
    pub(super) fn target(
        &self,
        args: &Args,
        stop: &Arc<AtomicBool>,
        logger: &Logger,
    ) -> Result<Target<'_>> {
        let path = self.path();
        let open = |output| Target::open(output, args.force, &[path], stop, logger);
        match &self.place {
            AppendTarget::Here(place) => {
                let writer = place.writer().map_err(|e| failure(path, e))?;
                Ok(Target::append(path, writer))
            }
            AppendTarget::Copy(_, output) => open(output),
            AppendTarget::Delta(_, output) => Ok(open(output)?.without_image()),
        }
    }

    /// Writes what the output has before the new bytes.
    pub(super) fn copy(&self, out: &mut dyn Write) -> io::Result<()> {
        let AppendTarget::Copy(base, _) = &self.place else {
            return Ok(());
        };
        let (source, end) = (base.image().source(), base.end_in_file());
        let mut buffer = vec![0; PIECE];
        let mut at = 0;
        while at < end {
            let length = usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE));
            let part = buffer.get_mut(..length).unwrap_or_default();
            source.read_exact_at(at, part)?;
            out.write_all(part)?;
            at += length as u64;
        }
        Ok(())
    }

    /// Describes the new snapshot. `size` is that of the image with it.
    pub(super) fn line(&self, size: u64) -> String {
        let base = self.base();
        let added = size.saturating_sub(base.image().container().size);
        format!(
            "snapshot: {} '{}', {} added",
            base.number(),
            base.name(),
            format_size(added)
        )
    }
}

pub(super) fn failure(path: &Path, error: Error) -> ToolError {
    let failure = ToolError::new("cannot append").path(path);
    match &error {
        Error::Io(e) => failure.cause(cause_at(path, e)),
        Error::Unfit(_) => {
            let other = "mkdwarfs --recompress=none makes an image with an index, and without what follows it";
            let advice = cut::advice(path, ImageOffset::Auto);
            failure
                .cause(&error)
                .hint(advice.unwrap_or_else(|| other.to_owned()))
        }
        Error::Exists(_) | Error::Name { .. } => failure
            .cause(&error)
            .hint("--snapshot-name chooses another name"),
        _ => failure.cause(&error),
    }
}
