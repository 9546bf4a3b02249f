//! `--commit`: the changes of a writable layer as a new snapshot of their image.

use std::io;
use std::path::Path;
use std::sync::Arc;

#[cfg(not(unix))]
use absent::LayerDirectory;
use redwarfs_append::Layered;
#[cfg(unix)]
use redwarfs_fuse::LayerDirectory;
use redwarfs_writer::{DirectorySource, Source as _, Symlinks, XattrFilter};

use super::append::Continued;
use super::args::Args;
use crate::common::error::{EXIT_PARTIAL, display_path};
use crate::common::number::counted;
use crate::common::{Logger, Result, ToolError};

/// The layer, locked until the end.
pub(super) struct Changes<'a> {
    path: &'a Path,
    directory: LayerDirectory,
    layered: Arc<Layered>,
}

fn failure(path: &Path, error: &io::Error) -> ToolError {
    ToolError::new("cannot commit layer").path(path).io(error)
}

impl<'a> Changes<'a> {
    /// Opens the layer that the options name, if they do: the changes of `image`.
    pub(super) fn open(args: &'a Args, image: Option<&Continued<'_>>) -> Result<Option<Self>> {
        let (Some(path), Some(image)) = (args.append.commit.as_deref(), image) else {
            return Ok(None);
        };
        let failed = |error: io::Error| failure(path, &error);
        let refused = |cause| {
            ToolError::new("cannot commit layer")
                .path(path)
                .cause(cause)
        };
        let directory = LayerDirectory::lock(path).map_err(failed)?;
        if directory.may_hide_marks().map_err(failed)? {
            return Err(refused(
                "it may have attributes 'trusted.overlay' that only root can read",
            )
            .hint("commit it as the root user of the system, outside of containers"));
        }
        for (what, written) in written(args, image) {
            if directory.has_changed(written).map_err(failed)? {
                return Err(refused(what)
                    .path(written)
                    .hint("move it to another directory"));
            }
        }
        if directory.has_index().map_err(failed)? {
            return Err(refused(
                "overlayfs has kept an index of hard links in it, which only overlayfs understands",
            )
            .hint("mount it with overlayfs, and append the mount"));
        }
        let base = image.base();
        let own = base.image().generation();
        let own = own.map_err(|error| super::append::failure(image.path(), error.into()))?;
        if image.is_in_place() {
            let writable = directory.check_writable(args.append.empty_layer);
            writable.map_err(failed)?;
        }
        if directory.settle(own).map_err(failed)? {
            return Err(refused("the image has its changes")
                .hint(format!("remove {}", display_path(&directory.upper_path()))));
        }
        if let Some(recorded) = directory.generation().map_err(failed)?
            && own != Some(recorded)
        {
            let cause =
                "its changes were made on top of another image, or of another snapshot of this one";
            return Err(refused(cause)
                .hint("mount both, see whether the tree is right, and append the mount"));
        }
        let upper = changes(&directory).map_err(failed)?;
        let upper = upper.with_symlinks(Symlinks::Keep);
        // The attributes of overlayfs are needed in any case. The build drops what is not to be stored.
        let upper = args.xattrs.read(upper).with_xattrs(XattrFilter::all());
        let layered = Arc::new(Layered::new(base.image().clone(), upper));
        Ok(Some(Self {
            path,
            directory,
            layered,
        }))
    }

    /// The tree.
    pub(super) fn source(&self) -> Arc<Layered> {
        Arc::clone(&self.layered)
    }

    /// Before the image gets the new snapshot: refuses a tree with `errors`, and lets the layer know which snapshot that is.
    /// A snapshot without a part of the tree would hide this part, and the layer would not fit on top of the snapshot.
    pub(super) fn seal(&self, image: &Continued<'_>, errors: u64) -> Result<()> {
        if errors > 0 {
            let errors = counted(errors, "error", "errors");
            return Err(ToolError::new("cannot commit layer")
                .path(self.path)
                .cause(format!("{errors}, so the image gets no snapshot"))
                .hint("mount both, mend or remove what cannot be read, unmount, and commit again")
                .code(EXIT_PARTIAL));
        }
        if image.is_in_place()
            && let Some(made) = image.base().made()
        {
            let intended = self.directory.intend(made, self.layered.has_moved());
            intended.map_err(|error| failure(self.path, &error))?;
        }
        Ok(())
    }

    /// After the image has the new snapshot: removes the changes, if that was asked for, and lets the layer be about
    /// this snapshot.
    pub(super) fn finish(&self, args: &Args, image: &Continued<'_>, logger: &Logger) -> Result<()> {
        if !image.is_in_place() {
            return Ok(());
        }
        let failed = |what: &str, error| {
            ToolError::new(format!(
                "the image has the changes, but cannot {what} layer"
            ))
            .path(self.path)
            .io(&error)
        };
        if args.append.empty_layer {
            match self.layered.changed() {
                None => return self.directory.empty().map_err(|e| failed("empty", e)),
                Some(changed) => logger.warn(format_args!(
                    "{}: the layer stays as it is, because a program has changed {} meanwhile",
                    display_path(self.path),
                    self.layered.display_path(&changed)
                )),
            }
        }
        if self.layered.has_moved() {
            // On top of the new snapshot, it would show other files.
            logger.info(format_args!(
                "{}: the layer belongs to the snapshot before, because it renames directories of it",
                display_path(self.path)
            ));
            return Ok(());
        }
        if let Some(new) = image.base().made() {
            let recorded = self.directory.record(new);
            recorded.map_err(|e| failed("record that in the", e))?;
        }
        Ok(())
    }
}

/// What is written, and must not be a part of the changes.
fn written<'p>(args: &'p Args, image: &'p Continued<'_>) -> Vec<(&'static str, &'p Path)> {
    let mut written = vec![("the image is among its changes", image.path())];
    if !image.is_in_place() {
        written.push(("the output is among its changes", image.output()));
    }
    let checkpoint = args.checkpoint.as_deref();
    written.extend(checkpoint.map(|path| ("the checkpoint is among its changes", path)));
    written
}

/// The directory with the changes.
#[cfg(unix)]
fn changes(directory: &LayerDirectory) -> io::Result<DirectorySource> {
    Ok(DirectorySource::at(
        directory.upper()?,
        directory.upper_path(),
    ))
}

#[cfg(not(unix))]
fn changes(directory: &LayerDirectory) -> io::Result<DirectorySource> {
    match *directory {}
}

#[cfg(not(unix))]
mod absent {
    //! Systems without writable layers.

    use std::io;
    use std::path::{Path, PathBuf};

    use redwarfs_format::section::GenerationId;

    /// No layer can be opened.
    pub(super) enum LayerDirectory {}

    impl LayerDirectory {
        pub(super) fn lock(_: &Path) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn upper_path(&self) -> PathBuf {
            match *self {}
        }

        pub(super) fn has_changed(&self, _: &Path) -> io::Result<bool> {
            match *self {}
        }

        pub(super) fn may_hide_marks(&self) -> io::Result<bool> {
            match *self {}
        }

        pub(super) fn check_writable(&self, _: bool) -> io::Result<()> {
            match *self {}
        }

        pub(super) fn settle(&self, _: Option<GenerationId>) -> io::Result<bool> {
            match *self {}
        }

        pub(super) fn intend(&self, _: GenerationId, _: bool) -> io::Result<()> {
            match *self {}
        }

        pub(super) fn has_index(&self) -> io::Result<bool> {
            match *self {}
        }

        pub(super) fn generation(&self) -> io::Result<Option<GenerationId>> {
            match *self {}
        }

        pub(super) fn record(&self, _: GenerationId) -> io::Result<()> {
            match *self {}
        }

        pub(super) fn empty(&self) -> io::Result<()> {
            match *self {}
        }
    }
}
