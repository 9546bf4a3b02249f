//! `--commit`: the changes of a writable layer as a new snapshot of their image.

use std::io;
use std::path::Path;
use std::sync::Arc;

#[cfg(not(unix))]
use absent::LayerDirectory;
use redwarfs_append::Layered;
use redwarfs_format::section::GenerationId;
#[cfg(unix)]
use redwarfs_fuse::LayerDirectory;
use redwarfs_reader::OpenOptions;
use redwarfs_writer::{DirectorySource, Symlinks, XattrFilter};

use super::append::Continued;
use super::args::Args;
use crate::common::open::{Spelling, open_image};
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
        if directory.has_index().map_err(failed)? {
            return Err(refused(
                "overlayfs has kept an index of hard links in it, which only overlayfs understands",
            )
            .hint("mount it with overlayfs, and append the mount"));
        }
        let base = image.base();
        let own = base.image().generation();
        let own = own.map_err(|error| super::append::failure(image.path(), error.into()))?;
        if let Some(recorded) = directory.generation().map_err(failed)?
            && own != Some(recorded)
        {
            let cause =
                "its changes were made on top of another image, or of another snapshot of this one";
            return Err(refused(cause)
                .hint("mount both, see whether the tree is right, and append the mount"));
        }
        let upper = DirectorySource::new(directory.upper())
            .map_err(failed)?
            .with_symlinks(Symlinks::Keep);
        // The attributes of overlayfs are needed in any case. The build drops what is not to be stored.
        let upper = args.xattrs.read(upper).with_xattrs(XattrFilter::all());
        let layered = Arc::new(Layered::new(base.image().clone(), upper));
        base.is_below(Arc::clone(&layered));
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

    /// After the image has the new snapshot: removes the changes, if that was asked for, and lets the layer be about
    /// this snapshot. Something that could not be read is only in the layer, so that the layer stays as it is after `errors`.
    pub(super) fn finish(
        &self,
        args: &Args,
        image: &Continued<'_>,
        errors: u64,
        logger: &Logger,
    ) -> Result<()> {
        let stays = |why: &str| {
            logger.warn(format_args!(
                "{}: the layer stays as it is: {why}",
                self.path.display()
            ));
        };
        if !image.is_in_place() {
            return Ok(());
        }
        if errors > 0 {
            stays("some of it could not be read");
            return Ok(());
        }
        if args.append.empty_layer {
            return self.directory.empty().map_err(|error| {
                ToolError::new("the image has the changes, but cannot empty layer")
                    .path(self.path)
                    .io(&error)
            });
        }
        if self.layered.has_moved() {
            // On top of the new snapshot, it would show other files.
            logger.info(format_args!(
                "{}: the layer belongs to the snapshot before, because it renames directories of it",
                self.path.display()
            ));
            return Ok(());
        }
        if let Some(new) = newest(image.path())? {
            let recorded = self.directory.record(new);
            recorded.map_err(|error| failure(self.path, &error))?;
        }
        Ok(())
    }
}

/// The identity of the newest snapshot.
fn newest(path: &Path) -> Result<Option<GenerationId>> {
    let spelling = Spelling {
        auto: "--append",
        size: None,
    };
    let image = open_image(path, &OpenOptions::default(), spelling)?;
    let generation = image.generation();
    generation.map_err(|error| super::append::failure(path, error.into()))
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

        pub(super) fn upper(&self) -> PathBuf {
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
