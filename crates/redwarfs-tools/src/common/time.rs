//! Local wall-clock time for messages and listings.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A broken-down local time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime {
    /// Year, e.g. 2024.
    pub year: i64,
    /// Month, 1..=12.
    pub month: u32,
    /// Day of the month, 1..=31.
    pub day: u32,
    /// Hour, 0..=23.
    pub hour: u32,
    /// Minute, 0..=59.
    pub minute: u32,
    /// Second, 0..=60.
    pub second: u32,
    /// Seconds east of UTC.
    pub offset: i32,
}

impl LocalTime {
    /// Converts seconds since 1970-01-01T00:00:00Z in the time zone of the process; UTC if the
    /// system cannot convert the value.
    #[must_use]
    pub fn from_unix(seconds: i64) -> Self {
        super::os::local_time(seconds).unwrap_or_else(|| Self::utc_from_unix(seconds))
    }

    /// Converts seconds since 1970-01-01T00:00:00Z to UTC (proleptic Gregorian calendar).
    #[must_use]
    pub fn utc_from_unix(seconds: i64) -> Self {
        let days = seconds.div_euclid(86_400);
        let of_day = seconds.rem_euclid(86_400);
        // Days-to-civil conversion by H. Hinnant, "chrono-Compatible Low-Level Date Algorithms".
        let z = days + 719_468;
        let era = z.div_euclid(146_097);
        let doe = z.rem_euclid(146_097);
        let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
        let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
        let mp = (5 * doy + 2) / 153;
        let month = if mp < 10 { mp + 3 } else { mp - 9 };
        Self {
            year: yoe + era * 400 + i64::from(month <= 2),
            month: month as u32,
            day: (doy - (153 * mp + 2) / 5 + 1) as u32,
            hour: (of_day / 3_600) as u32,
            minute: (of_day / 60 % 60) as u32,
            second: (of_day % 60) as u32,
            offset: 0,
        }
    }

    /// `YYYY-MM-DD HH:MM:SS`.
    #[must_use]
    pub fn date_time(&self) -> String {
        format!(
            "{:04}-{:02}-{:02} {:02}:{:02}:{:02}",
            self.year, self.month, self.day, self.hour, self.minute, self.second
        )
    }
}

/// `HH:MM:SS.uuuuuu` of `now` in local time.
#[must_use]
pub fn clock(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let t = LocalTime::from_unix(i64::try_from(since.as_secs()).unwrap_or(0));
    format!(
        "{:02}:{:02}:{:02}.{:06}",
        t.hour,
        t.minute,
        t.second,
        since.subsec_micros()
    )
}

#[cfg(test)]
mod tests {
    use redwarfs_format::date_time::unix_from_utc;

    use super::*;

    #[test]
    fn utc_conversion_both_ways() {
        let cases = [
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_589_723_045, "2020-05-17 13:44:05"),
            (4_107_542_399, "2100-02-28 23:59:59"),
        ];
        for (unix, text) in cases {
            let t = LocalTime::utc_from_unix(unix);
            assert_eq!(t.date_time(), text);
            assert_eq!(
                unix_from_utc(t.year, t.month, t.day, t.hour, t.minute, t.second),
                Some(unix)
            );
        }
        assert_eq!(
            LocalTime::utc_from_unix(-1).date_time(),
            "1969-12-31 23:59:59"
        );
    }

    #[test]
    fn clock_has_microseconds() {
        let text = clock(UNIX_EPOCH + Duration::from_micros(1_234_567));
        assert_eq!(text.len(), 15);
        assert!(text.ends_with(".234567"), "{text}");
    }
}
