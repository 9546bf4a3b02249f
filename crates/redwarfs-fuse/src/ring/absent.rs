//! No queues: for CPUs that the crate for the system calls does not know.

use std::io;
use std::sync::Arc;

use crate::device::Device;
use crate::driver::Driver;

/// There can be no queues on this CPU.
pub(crate) const AVAILABLE: bool = false;

/// There are none.
#[derive(Debug)]
pub(crate) enum Queues {}

impl Queues {
    /// # Errors
    /// Always.
    pub(crate) fn prepare(_device: &Arc<Device>) -> io::Result<Self> {
        Err(io::Error::other("not on this CPU"))
    }

    pub(crate) fn max_background(&self) -> u16 {
        match *self {}
    }

    pub(crate) fn start(self, _driver: &Arc<Driver>) -> io::Result<Self> {
        match self {}
    }
}
