//! Without queues: for CPUs that the io_uring crate does not support.

use std::io;
use std::sync::Arc;

use crate::device::Device;
use crate::driver::Driver;

/// Whether queues are supported on this CPU.
pub(crate) const AVAILABLE: bool = false;

/// The queues; no value of this type exists.
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
