//! Memory and threads on Unix.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use memmap2::{Advice, MmapMut, MmapRaw};

use crate::options::CpuSet;

/// A scheduling policy, as the system numbers them; -1 if it is not known.
pub(crate) type Policy = libc::c_int;

/// The CPUs on which the calling thread may run.
pub(crate) fn affinity() -> io::Result<CpuSet> {
    let set = rustix::thread::sched_getaffinity(None)?;
    let most = CpuSet::CAPACITY.min(rustix::thread::CpuSet::MAX_CPU);
    Ok((0..most).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Lets the calling thread run only on these CPUs.
pub(crate) fn set_affinity(cpus: &CpuSet) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for cpu in cpus.iter() {
        set.set(cpu);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// The scheduling policy of the calling thread.
pub(crate) fn policy() -> Policy {
    #[cfg(target_os = "linux")]
    // SAFETY: takes a number, 0 for the calling thread, and returns one.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) } as libc::c_int;
    #[cfg(target_os = "linux")]
    return match policy {
        -1 => -1,
        policy => policy & !libc::SCHED_RESET_ON_FORK,
    };
    #[cfg(not(target_os = "linux"))]
    -1
}

/// Gives the calling thread the ordinary policy, if `policy` is that and it has inherited another.
pub(crate) fn take_policy(policy: Policy) {
    #[cfg(target_os = "linux")]
    if policy == libc::SCHED_OTHER && self::policy() != policy {
        // The priority, the only member of `struct sched_param` of the kernel.
        let parameters: libc::c_int = 0;
        // SAFETY: the third argument is only read, during the call. If the system refuses, the thread
        // keeps its niceness.
        unsafe {
            libc::syscall(
                libc::SYS_sched_setscheduler,
                0,
                policy,
                &raw const parameters,
            )
        };
    }
}

/// Gives the calling thread the policy for what runs only when nothing else does.
#[cfg(all(test, target_os = "linux"))]
pub(crate) fn idle() {
    let parameters: libc::c_int = 0;
    // SAFETY: as in `take_policy`.
    let refused = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            libc::SCHED_IDLE,
            &raw const parameters,
        )
    };
    assert_eq!(refused, 0);
}

/// Keeps the pages of `bytes` in memory until they are unmapped.
///
/// # Errors
/// Those of `mlock`: `ENOMEM` or `EPERM` beyond the limit of the process, `EAGAIN`.
pub(crate) fn lock_memory(bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    // SAFETY: the range is a live slice. Locking changes neither its contents nor its validity, also if
    // other data shares the pages at its ends.
    unsafe { rustix::mm::mlock(bytes.as_ptr().cast_mut().cast(), bytes.len()) }?;
    Ok(())
}

/// Ends what [`lock_memory`] did.
pub(crate) fn unlock_memory(bytes: &[u8]) {
    if !bytes.is_empty() {
        // SAFETY: as for locking; unlocking pages that are not locked is allowed.
        let _ = unsafe { rustix::mm::munlock(bytes.as_ptr().cast_mut().cast(), bytes.len()) };
    }
}

/// Size of a page in bytes.
pub(crate) fn page_size() -> usize {
    rustix::param::page_size()
}

/// Makes pages of a mapping present at once. Systems that cannot do that make each one when it is used.
pub(crate) fn populate(map: &MmapRaw, start: usize, len: usize) {
    let _ = map.advise_range(Advice::PopulateWrite, start, len);
}

/// Lets a mapping have large pages, where there are any.
pub(crate) fn prefer_large_pages(map: &MmapMut) {
    let _ = map.advise(Advice::HugePage);
}

/// Returns the whole pages in `bytes` to the system. They are not needed, but their owner will still
/// free them. Their contents are then zeros, or unchanged.
pub(crate) fn discard(bytes: &mut [u8]) {
    let page = rustix::param::page_size();
    let start = bytes.as_mut_ptr();
    let skip = start.align_offset(page);
    let len = bytes.len().saturating_sub(skip) / page * page;
    if len > 0 {
        let advice = rustix::mm::Advice::LinuxDontNeed;
        // SAFETY: whole pages within a live slice that is borrowed exclusively: no other data is in
        // them. They stay mapped, and their contents stay the same or become zero, which is as if they
        // had been written to: any bytes are valid ones. If it is refused, nothing is lost.
        let _ = unsafe { rustix::mm::madvise(start.add(skip).cast(), len, advice) };
    }
}

/// Which pages of this process are swapped out, from `/proc/self/pagemap`.
///
/// `mincore` does not help: for anonymous memory it reports pages that are not mapped, which includes
/// pages that were never touched. An entry of the page map has a bit for swapped pages, which is
/// readable without privileges.
#[derive(Debug)]
pub(crate) struct PageMap {
    file: File,
    page: usize,
}

/// Bit of an entry: the page is in swap.
const SWAPPED: u64 = 1 << 62;
/// Entries that are read at a time.
const ENTRIES: usize = 512;

impl PageMap {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self {
            file: File::open("/proc/self/pagemap")?,
            page: rustix::param::page_size(),
        })
    }

    /// Whether any page of `bytes` is swapped out.
    pub(crate) fn any_swapped(&self, bytes: &[u8]) -> io::Result<bool> {
        if bytes.is_empty() {
            return Ok(false);
        }
        let start = bytes.as_ptr().addr() / self.page;
        let end = (bytes.as_ptr().addr() + (bytes.len() - 1)) / self.page + 1;
        let mut buffer = [0; ENTRIES * 8];
        let mut at = start;
        while at < end {
            let n = (end - at).min(ENTRIES);
            let (part, _) = buffer.split_at_mut(n * 8);
            self.file.read_exact_at(part, at as u64 * 8)?;
            let (entries, _) = part.as_chunks::<8>();
            if entries
                .iter()
                .any(|entry| u64::from_ne_bytes(*entry) & SWAPPED != 0)
            {
                return Ok(true);
            }
            at += n;
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_are_discarded() {
        let page = rustix::param::page_size();
        let mut bytes = vec![7; 5 * page];
        let (before, rest) = bytes.split_at_mut(100);
        let (middle, after) = rest.split_at_mut(3 * page);
        discard(middle);
        assert!(before.iter().chain(&*after).all(|&byte| byte == 7));
        let zeros = middle.iter().filter(|&&byte| byte == 0).count();
        assert!(zeros % page == 0 && zeros >= 2 * page, "{zeros}");
    }

    #[test]
    fn memory_in_use_is_not_swapped() {
        let Ok(map) = PageMap::open() else {
            redwarfs_testkit::skip("memory_in_use_is_not_swapped", "there is no page map");
            return;
        };
        let bytes = vec![1_u8; 3 << 20];
        lock_memory(&bytes[..1 << 14]).unwrap();
        assert!(!map.any_swapped(&bytes[..1 << 14]).unwrap());
        unlock_memory(&bytes[..1 << 14]);
        assert!(!map.any_swapped(&[]).unwrap());
        assert!(map.any_swapped(&bytes).is_ok());
    }
}
