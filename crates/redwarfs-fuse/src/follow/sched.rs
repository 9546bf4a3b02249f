//! Policies and CPUs of threads.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io::Write;

use rustix::fs::{Mode, OFlags};
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};

pub(super) type ThreadId = Pid;

/// The scheduling policies that following uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    /// `SCHED_OTHER`.
    Normal,
    /// `SCHED_IDLE`.
    Idle,
}

/// A set of CPUs.
#[derive(Debug, Clone)]
pub(super) struct Processors(CpuSet);

impl Processors {
    pub(super) fn only(number: usize) -> Self {
        let mut set = CpuSet::new();
        set.set(number);
        Self(set)
    }

    /// All possible CPUs.
    pub(super) fn all() -> Self {
        let mut set = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|number| set.set(number));
        Self(set)
    }

    /// The first one.
    #[cfg(test)]
    pub(super) fn first(&self) -> Option<usize> {
        (0..CpuSet::MAX_CPU).find(|number| self.has(*number))
    }

    pub(super) fn has(&self, number: usize) -> bool {
        number < CpuSet::MAX_CPU && self.0.is_set(number)
    }

    pub(super) fn count(&self) -> usize {
        self.0.count() as usize
    }
}

pub(super) fn this_thread() -> ThreadId {
    gettid()
}

/// The CPUs on which a thread may run.
pub(super) fn processors(thread: ThreadId) -> Option<Processors> {
    sched_getaffinity(Some(thread)).ok().map(Processors)
}

/// Binds a thread to CPUs. Returns whether this was possible.
pub(super) fn set_processors(thread: ThreadId, processors: &Processors) -> bool {
    sched_setaffinity(Some(thread), &processors.0).is_ok()
}

/// The policy of a thread, if it is one of [`Policy`].
pub(super) fn policy(thread: ThreadId) -> Option<Policy> {
    // SAFETY: the call takes a number and returns one. It is made by number, because not every C library
    // has a function for it.
    let code =
        unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread.as_raw_nonzero().get()) };
    match i32::try_from(code).ok()? & !libc::SCHED_RESET_ON_FORK {
        libc::SCHED_OTHER => Some(Policy::Normal),
        libc::SCHED_IDLE => Some(Policy::Idle),
        _ => None,
    }
}

/// Sets the policy of a thread. Returns whether this was possible. New threads of that thread inherit it.
pub(super) fn set_policy(thread: ThreadId, policy: Policy) -> bool {
    let policy = match policy {
        Policy::Normal => libc::SCHED_OTHER,
        Policy::Idle => libc::SCHED_IDLE,
    };
    // The only member of the kernel's `struct sched_param`, which must be 0 for both policies.
    let parameters: libc::c_int = 0;
    // SAFETY: the third argument is read only, during the call.
    let code = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            thread.as_raw_nonzero().get(),
            policy,
            &raw const parameters,
        )
    };
    code == 0
}

/// Gives the calling thread a real-time policy (`SCHED_FIFO`, the lowest priority), so that no other thread
/// runs on its CPU. Returns whether this was possible.
#[cfg(test)]
pub(super) fn become_real_time() -> bool {
    let parameters: libc::c_int = 1;
    // SAFETY: the third argument is read only, during the call.
    let code = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            libc::SCHED_FIFO,
            &raw const parameters,
        )
    };
    code == 0
}

/// The CPU on which a thread runs or ran last. The thread may belong to any visible process. The function
/// does not allocate: the reading thread may have been stopped while it holds the lock of the allocator.
pub(super) fn processor_of(thread: u32) -> Option<usize> {
    if thread == 0 {
        return None;
    }
    let mut path = [0; 32];
    let mut rest = &mut path[..];
    write!(rest, "/proc/{thread}/stat").ok()?;
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    // More than all numbers and a name can take.
    let mut stat = [0; 1536];
    let len = rustix::io::read(&file, &mut stat).ok()?;
    parse_processor(stat.get(..len)?)
}

/// Finds the field `processor`, the 39th, in the text of `/proc/PID/stat`. The second field, the name,
/// may have any bytes.
fn parse_processor(stat: &[u8]) -> Option<usize> {
    let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(stat.get(name_ends + 1..)?).ok()?;
    fields.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_behind_any_name() {
        let fields = (3..=52).map(|n| format!(" {n}")).collect::<String>();
        for name in ["cat", "a) b (c", ") 1 2"] {
            let stat = format!("17 ({name}){fields}\n");
            assert_eq!(parse_processor(stat.as_bytes()), Some(39));
        }
        assert_eq!(parse_processor(b"17 (cat) S 1"), None);
        assert_eq!(parse_processor(b""), None);
        assert_eq!(processor_of(0), None);
    }

    #[test]
    fn a_thread_is_where_it_is_bound_to() {
        std::thread::spawn(|| {
            let all = processors(this_thread()).unwrap();
            let at = (0..CpuSet::MAX_CPU).rfind(|n| all.has(*n)).unwrap();
            assert!(set_processors(this_thread(), &Processors::only(at)));
            assert_eq!(processors(this_thread()).unwrap().count(), 1);
            let thread = this_thread().as_raw_nonzero().get() as u32;
            assert_eq!(processor_of(thread), Some(at));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn the_policy_of_a_thread_is_its_own() {
        std::thread::spawn(|| {
            assert_eq!(policy(this_thread()), Some(Policy::Normal));
            assert!(set_policy(this_thread(), Policy::Idle));
            assert_eq!(policy(this_thread()), Some(Policy::Idle));
        })
        .join()
        .unwrap();
    }
}
