//! In place of the writable layer, in a build without the feature `layer`.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use crate::mount_state::MountState;
use crate::options::MountOptions;
use crate::proto::{Body, Header, InitIn};
use crate::session::Answers;
use crate::ticket::Ticket;

fn absent() -> io::Error {
    let why = "this program was built without writable layers";
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// There is none.
#[derive(Debug)]
pub(crate) enum WritableDriver {}

impl WritableDriver {
    /// # Errors
    /// This build has no writable layers.
    pub(crate) fn new(
        _state: &Arc<MountState>,
        _options: &MountOptions,
        _directory: &Path,
        _keeps: bool,
    ) -> io::Result<Self> {
        Err(absent())
    }
}

impl Answers for WritableDriver {
    fn init(&self, _: &Header, _: &InitIn, _: Option<u16>, _: &mut Vec<u8>) {
        match *self {}
    }

    fn serve(&self, _: Ticket, _: &Header, _: Body<'_>, _: &mut Vec<u8>) {
        match *self {}
    }
}

/// A layer that is ready for the kernel.
#[derive(Debug)]
pub(crate) struct ForKernel {
    pub(crate) in_user: io::Result<bool>,
    pub(crate) lock: OwnedFd,
}

impl ForKernel {
    /// # Errors
    /// This build has no writable layers.
    pub(crate) fn open(
        _state: &Arc<MountState>,
        _directory: &Path,
        _keeps: bool,
    ) -> io::Result<Self> {
        Err(absent())
    }
}

/// Whether the process may give files to others: of interest for a layer only.
pub(crate) fn is_privileged() -> bool {
    false
}
