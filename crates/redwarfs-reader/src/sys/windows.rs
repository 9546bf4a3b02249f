//! Memory and threads on Windows.

use std::io;

use memmap2::{MmapMut, MmapRaw};
pub(crate) use redwarfs_windows::process::{lock_memory, page_size, unlock_memory};

use crate::options::CpuSet;

/// Windows has priorities instead of policies, and threads do not inherit them.
pub(crate) type Policy = ();

pub(crate) fn policy() -> Policy {}

pub(crate) fn take_policy((): Policy) {}

/// The CPUs on which the calling thread may run, without those beyond the first 64.
pub(crate) fn affinity() -> io::Result<CpuSet> {
    let mask = redwarfs_windows::process::affinity()?;
    Ok((0..64).filter(|cpu| mask >> cpu & 1 != 0).collect())
}

/// Lets the calling thread run only on these CPUs.
pub(crate) fn set_affinity(cpus: &CpuSet) -> io::Result<()> {
    let mask = cpus.iter().filter(|&cpu| cpu < 64);
    redwarfs_windows::process::set_affinity(mask.fold(0, |mask, cpu| mask | 1 << cpu))
}

/// Windows makes each page when it is used.
pub(crate) fn populate(_map: &MmapRaw, _start: usize, _len: usize) {}

/// Large pages need a privilege that users do not have.
pub(crate) fn prefer_large_pages(_map: &MmapMut) {}

/// Memory returns to the system when its owner frees it.
pub(crate) fn discard(_bytes: &mut [u8]) {}

/// Which pages of this process are swapped out: Windows does not tell.
#[derive(Debug)]
pub(crate) struct PageMap(std::convert::Infallible);

impl PageMap {
    pub(crate) fn open() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn any_swapped(&self, _bytes: &[u8]) -> io::Result<bool> {
        match self.0 {}
    }
}
