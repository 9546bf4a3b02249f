//! Times of files, and local time.
#![allow(unsafe_code)]

/// A time in units of 100 nanoseconds since 1601.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(i64);

/// Units in a second.
const TICKS: i64 = 10_000_000;
/// Seconds from 1601 to 1970.
const EPOCH: i64 = 11_644_473_600;

impl Time {
    /// From the number of units.
    #[must_use]
    pub fn from_ticks(ticks: i64) -> Self {
        Self(ticks)
    }

    /// From seconds since 1970, and nanoseconds. Times that Windows cannot hold become the nearest one.
    #[must_use]
    pub fn from_unix(seconds: i64, nanoseconds: u32) -> Self {
        let whole = seconds.saturating_add(EPOCH).saturating_mul(TICKS);
        Self(whole.saturating_add(i64::from(nanoseconds / 100)))
    }

    /// The number of units.
    #[must_use]
    pub fn ticks(self) -> i64 {
        self.0
    }

    /// Seconds since 1970, and nanoseconds.
    #[must_use]
    pub fn to_unix(self) -> (i64, u32) {
        let nanoseconds = self.0.rem_euclid(TICKS) * 100;
        // Below 10^9.
        (self.0.div_euclid(TICKS) - EPOCH, nanoseconds as u32)
    }
}

/// Year, month, day, hour, minute and second in the time zone of the user, for seconds since 1970;
/// `None` if Windows cannot convert them.
#[cfg(windows)]
#[must_use]
pub fn local(seconds: i64) -> Option<[u16; 6]> {
    use std::ptr;

    use windows_sys::Win32::Foundation::{FILETIME, SYSTEMTIME};
    use windows_sys::Win32::System::Time::{FileTimeToSystemTime, SystemTimeToTzSpecificLocalTime};

    let ticks = seconds.checked_add(EPOCH)?.checked_mul(TICKS)?;
    let ticks = u64::try_from(ticks).ok()?;
    let time = FILETIME {
        dwLowDateTime: ticks as u32,
        dwHighDateTime: (ticks >> 32) as u32,
    };
    let (mut utc, mut local) = (SYSTEMTIME::default(), SYSTEMTIME::default());
    // SAFETY: all pointers are valid during the calls, which keep none of them. A null pointer for the time
    // zone means the one of the user.
    let done = unsafe {
        FileTimeToSystemTime(&raw const time, &raw mut utc) != 0
            && SystemTimeToTzSpecificLocalTime(ptr::null(), &raw const utc, &raw mut local) != 0
    };
    done.then_some([
        local.wYear,
        local.wMonth,
        local.wDay,
        local.wHour,
        local.wMinute,
        local.wSecond,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_1970() {
        let at = |seconds: i64, ticks: i64| Time::from_ticks((seconds + EPOCH) * TICKS + ticks);
        assert_eq!(at(0, 0).to_unix(), (0, 0));
        assert_eq!(at(5, 9_999_999).to_unix(), (5, 999_999_900));
        assert_eq!(at(-5, 1).to_unix(), (-5, 100));
        assert_eq!(Time::from_ticks(0).to_unix(), (-EPOCH, 0));
    }

    #[test]
    fn units_are_kept() {
        for time in [
            (0, 0),
            (5, 999_999_900),
            (-5, 100),
            (-EPOCH, 0),
            (1 << 33, 700),
        ] {
            assert_eq!(Time::from_unix(time.0, time.1).to_unix(), time);
        }
        assert_eq!(Time::from_unix(0, 99).ticks(), EPOCH * TICKS);
        assert_eq!(Time::from_unix(i64::MAX, 0).ticks(), i64::MAX);
        assert_eq!(Time::from_unix(i64::MIN, 0).ticks(), i64::MIN);
    }

    #[cfg(windows)]
    #[test]
    fn local_time_is_within_a_day() {
        let [year, month, day, hour, ..] = local(1_000_000_000).unwrap();
        assert_eq!((year, month), (2001, 9));
        assert!((8..=9).contains(&day) && hour < 24);
        assert_eq!(local(i64::MAX), None);
        assert_eq!(local(-EPOCH - 1), None);
    }
}
