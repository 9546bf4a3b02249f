//! Errors of appending and of changing snapshots.

/// Why an image is not continued, or its table not changed. The file is unchanged then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is no image, or damaged.
    #[error(transparent)]
    Format(#[from] redwarfs_format::Error),
    /// It is an image that cannot be continued.
    #[error("{0}")]
    Unfit(&'static str),
    /// The name cannot be that of a snapshot.
    #[error("'{name}' cannot be the name of a snapshot: {why}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There is a snapshot with this name.
    #[error("there is a snapshot '{0}' already")]
    Exists(String),
    /// The newest generation cannot be deleted.
    #[error("snapshot '{0}' is the newest one: roll back to an older one instead")]
    Newest(String),
    /// A pinned snapshot cannot be deleted.
    #[error("snapshot '{0}' is pinned")]
    Pinned(String),
    /// The file cannot be cut off behind an archived snapshot.
    #[error("snapshot '{0}' is in an archive, where others are beside it")]
    Archived(String),
    /// What followed an archive is gone, so that the newest generation is the archive.
    #[error(
        "what followed its archive of snapshots is missing, and the archive is no tree that can be continued"
    )]
    OnlyArchive,
    /// There is recovery data, which would count holes as damage.
    #[error("the image has recovery data, which would bring back what is given up")]
    Recovery,
    /// The medium fails.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Building generations anew fails.
    #[error(transparent)]
    Rewrite(#[from] redwarfs_rewrite::Error),
    /// Writing a section fails.
    #[error(transparent)]
    Write(#[from] redwarfs_writer::Error),
}

/// Result of an operation on generations.
pub type Result<T, E = Error> = std::result::Result<T, E>;
