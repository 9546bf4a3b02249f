//! Local time on Unix.
#![allow(unsafe_code)]

use crate::common::time::LocalTime;

/// Seconds since 1970 in the time zone of the process; `None` if the system cannot convert them.
pub(crate) fn local_time(seconds: i64) -> Option<LocalTime> {
    // Has the type of times without naming it, which is deprecated for musl.
    #[allow(clippy::useless_conversion)] // Some processors with 32 bits have a smaller type.
    let time = libc::timeval {
        tv_sec: seconds.try_into().ok()?,
        tv_usec: 0,
    };
    // SAFETY: `tm` is a plain C structure for which all zeros is a valid value.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the call; localtime_r keeps neither.
    let done = unsafe { libc::localtime_r(&raw const time.tv_sec, &raw mut tm) };
    if done.is_null() {
        return None;
    }
    Some(LocalTime {
        year: i64::from(tm.tm_year) + 1900,
        month: u32::try_from(tm.tm_mon + 1).ok()?,
        day: u32::try_from(tm.tm_mday).ok()?,
        hour: u32::try_from(tm.tm_hour).ok()?,
        minute: u32::try_from(tm.tm_min).ok()?,
        second: u32::try_from(tm.tm_sec).ok()?,
        offset: i32::try_from(tm.tm_gmtoff).ok()?,
    })
}
