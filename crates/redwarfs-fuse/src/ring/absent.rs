//! No queues: for processors that the crate for the system calls does not know.

use std::io;
use std::sync::Arc;

use crate::device::Device;
use crate::driver::Driver;

/// There can be queues on this processor.
pub(crate) const AVAILABLE: bool = false;
/// Without queues nothing is on its way in them.
pub(crate) const MAX_BACKGROUND: u16 = 0;

/// There is none.
#[derive(Debug)]
pub(crate) enum Slot {}

/// There is none.
#[derive(Debug)]
pub(crate) enum Queue {}

impl Queue {
    pub(crate) fn answer<'a>(
        &self,
        slot: Slot,
        _unique: u64,
        _error: i32,
        _parts: impl Iterator<Item = &'a [u8]>,
    ) {
        match slot {}
    }
}

/// There are none.
#[derive(Debug)]
pub(crate) enum Queues {}

impl Queues {
    /// # Errors
    /// Always.
    pub(crate) fn prepare(_device: &Arc<Device>) -> io::Result<Self> {
        Err(io::Error::other("not on this processor"))
    }

    pub(crate) fn start(self, _driver: &Arc<Driver>) -> io::Result<Self> {
        match self {}
    }
}
