//! Threads, CPUs and memory of this process.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;

use windows_sys::Win32::Foundation::FILETIME;
use windows_sys::Win32::System::Memory::{VirtualLock, VirtualUnlock};
use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::SystemInformation::{
    GROUP_AFFINITY, GetSystemInfo, GlobalMemoryStatusEx, MEMORYSTATUSEX, SYSTEM_INFO,
};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetCurrentThread, GetThreadGroupAffinity, GetThreadTimes,
    SetThreadAffinityMask, SetThreadPriority, THREAD_MODE_BACKGROUND_BEGIN,
    THREAD_PRIORITY_BELOW_NORMAL, THREAD_PRIORITY_LOWEST,
};

/// Bytes of memory that the machine has; 0 if Windows does not tell.
#[must_use]
pub fn physical_memory() -> u64 {
    let mut status = MEMORYSTATUSEX {
        dwLength: size_of::<MEMORYSTATUSEX>() as u32,
        ..MEMORYSTATUSEX::default()
    };
    // SAFETY: the structure has its length in it, as the call demands, and is only used during the call.
    match unsafe { GlobalMemoryStatusEx(&raw mut status) } {
        0 => 0,
        _ => status.ullTotalPhys,
    }
}

/// Resident memory of this process in bytes.
#[must_use]
pub fn memory_in_use() -> Option<u64> {
    let mut counters = PROCESS_MEMORY_COUNTERS::default();
    let length = size_of::<PROCESS_MEMORY_COUNTERS>() as u32;
    // SAFETY: the handle of the own process is a constant; the structure has the given length.
    let known =
        unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), &raw mut counters, length) } != 0;
    known.then_some(counters.WorkingSetSize as u64)
}

/// Size of a page of memory in bytes.
#[must_use]
pub fn page_size() -> usize {
    let mut info = SYSTEM_INFO::default();
    // SAFETY: fills the structure, and cannot fail.
    unsafe { GetSystemInfo(&raw mut info) };
    (info.dwPageSize as usize).max(1)
}

/// CPU time of the calling thread in nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    let mut times = [FILETIME::default(); 4];
    let [created, ended, kernel, user] = &mut times;
    // SAFETY: the handle of the calling thread is a constant; the four structures are filled during the
    // call. After an error they are zeros.
    unsafe { GetThreadTimes(GetCurrentThread(), created, ended, kernel, user) };
    let ticks =
        |time: &FILETIME| u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime);
    (ticks(kernel) + ticks(user)).saturating_mul(100)
}

/// Lowers the priority of the calling thread, as a niceness of `by` does elsewhere: below normal up to 5,
/// lowest up to 10, above that only when nothing else runs. A thread that may not be slowed down keeps
/// its priority.
pub fn lower_priority(by: i32) {
    let priority = match by {
        ..=0 => return,
        1..=5 => THREAD_PRIORITY_BELOW_NORMAL,
        6..=10 => THREAD_PRIORITY_LOWEST,
        _ => THREAD_MODE_BACKGROUND_BEGIN,
    };
    // SAFETY: the handle of the calling thread is a constant, and the priority one that Windows defines.
    let _ = unsafe { SetThreadPriority(GetCurrentThread(), priority) };
}

/// The CPUs of the calling thread, one bit for each of the first 64.
///
/// # Errors
/// The error of the system.
pub fn affinity() -> io::Result<u64> {
    let mut found = GROUP_AFFINITY::default();
    // SAFETY: the handle of the calling thread is a constant; the structure is filled during the call.
    match unsafe { GetThreadGroupAffinity(GetCurrentThread(), &raw mut found) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(found.Mask as u64),
    }
}

/// Lets the calling thread run only on these CPUs.
///
/// # Errors
/// Windows has none of them, or there are none.
pub fn set_affinity(cpus: u64) -> io::Result<()> {
    let mask = usize::try_from(cpus).map_err(|_| io::ErrorKind::InvalidInput)?;
    if mask == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the handle of the calling thread is a constant, and the mask a number.
    match unsafe { SetThreadAffinityMask(GetCurrentThread(), mask) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Keeps the pages of `bytes` in memory.
///
/// # Errors
/// The process may not have so many such pages.
pub fn lock_memory(bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    // SAFETY: the range is a live slice. Locking changes neither its contents nor its validity.
    match unsafe { VirtualLock(bytes.as_ptr().cast(), bytes.len()) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Ends what [`lock_memory`] did.
pub fn unlock_memory(bytes: &[u8]) {
    if !bytes.is_empty() {
        // SAFETY: as for locking. Unlocking pages that are not locked is an error without an effect.
        let _ = unsafe { VirtualUnlock(bytes.as_ptr().cast(), bytes.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_and_the_process_are_known() {
        assert!(physical_memory() > 1 << 20);
        assert!(memory_in_use().is_some_and(|bytes| bytes > 1 << 16));
        assert!(page_size().is_power_of_two());
    }

    #[test]
    fn time_passes() {
        let start = thread_cpu_ns();
        let mut sum = 0_u64;
        // The clock of Windows has steps of up to 16 ms.
        while thread_cpu_ns() == start {
            sum = (0..100_000).fold(sum, |sum: u64, n| std::hint::black_box(sum.wrapping_add(n)));
        }
        assert!(thread_cpu_ns() > start);
    }

    #[test]
    fn threads_run_where_they_may() {
        std::thread::spawn(|| {
            let all = affinity().unwrap();
            let one = all & all.wrapping_neg();
            set_affinity(one).unwrap();
            assert_eq!(affinity().unwrap(), one);
            assert!(set_affinity(0).is_err());
            lower_priority(3);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn memory_can_be_locked() {
        let bytes = vec![1_u8; 8192];
        lock_memory(&bytes).unwrap();
        unlock_memory(&bytes);
        lock_memory(&[]).unwrap();
    }
}
