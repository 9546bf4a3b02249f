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

/// Seconds since 1970-01-01T00:00:00Z of a UTC date; `None` if a field is out of its range.
#[must_use]
pub fn unix_from_utc(
    year: i64,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
) -> Option<i64> {
    const DAYS: [u32; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let in_month = *DAYS.get(month.checked_sub(1)? as usize)? + u32::from(leap && month == 2);
    if !(0..=9_999).contains(&year)
        || day == 0
        || day > in_month
        || hour > 23
        || minute > 59
        || second > 59
    {
        return None;
    }
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let mp = (i64::from(month) + 9) % 12;
    let doy = (153 * mp + 2) / 5 + i64::from(day) - 1;
    let doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
    let days = era * 146_097 + doe - 719_468;
    Some(days * 86_400 + i64::from(hour) * 3_600 + i64::from(minute) * 60 + i64::from(second))
}

/// Seconds since 1970 of a date with an optional time, in UTC unless a zone follows: `YYYY-MM-DD[ HH:MM[:SS][Z|+HH:MM]]`,
/// or the compact form of ISO 8601.
#[must_use]
pub fn parse_date_time(text: &str) -> Option<i64> {
    let compact = !text.split(['T', ' ']).next()?.contains('-');
    let (date, time) = match text.split_once(['T', ' ']) {
        // The compact form has `T` as its only separator.
        Some(_) if compact && text.contains(' ') => return None,
        Some((date, "")) if text.ends_with('T') => (date, ""),
        Some((_, "")) => return None,
        Some((date, time)) => (date, time),
        None if compact => return None,
        None => (text, ""),
    };
    let (year, month, day) = if compact {
        (
            field(date.get(..4)?, 4)?,
            field(date.get(4..6)?, 2)?,
            field(date.get(6..)?, 2)?,
        )
    } else {
        let mut parts = date.split('-');
        let ymd = (
            field(parts.next()?, 4)?,
            field(parts.next()?, 2)?,
            field(parts.next()?, 2)?,
        );
        if parts.next().is_some() {
            return None;
        }
        ymd
    };
    let (mut hour, mut minute, mut second, mut offset) = (0, 0, 0, 0);
    if !time.is_empty() {
        let (time, zone) = match time.find(['Z', '+', '-']) {
            Some(at) => time.split_at(at),
            None => (time, "Z"),
        };
        offset = zone_offset(zone)?;
        let (time, fraction) = match time.split_once('.') {
            Some((time, fraction)) => (time, Some(fraction)),
            None => (time, None),
        };
        let parts: Vec<&str> = if compact {
            [time.get(..2), time.get(2..4), time.get(4..)]
                .into_iter()
                .flatten()
                .filter(|part| !part.is_empty())
                .collect()
        } else {
            time.split(':').collect()
        };
        match parts[..] {
            [h, m] if fraction.is_none() => (hour, minute) = (field(h, 2)?, field(m, 2)?),
            [h, m, s] => (hour, minute, second) = (field(h, 2)?, field(m, 2)?, field(s, 2)?),
            _ => return None,
        }
        if fraction.is_some_and(|f| f.is_empty() || !f.bytes().all(|b| b.is_ascii_digit())) {
            return None;
        }
    }
    let time = unix_from_utc(i64::from(year), month, day, hour, minute, second)?;
    time.checked_sub(offset)
}

/// Seconds that a zone is ahead of UTC: `Z`, or a sign and hours with minutes or without.
fn zone_offset(zone: &str) -> Option<i64> {
    if zone == "Z" {
        return Some(0);
    }
    let (sign, rest) = match zone.strip_prefix('+') {
        Some(rest) => (1, rest),
        None => (-1, zone.strip_prefix('-')?),
    };
    let (hours, minutes) = match rest.split_once(':') {
        Some(parts) => parts,
        None if rest.len() == 2 => (rest, "00"),
        None => (rest.get(..2)?, rest.get(2..)?),
    };
    let (hours, minutes) = (field(hours, 2)?, field(minutes, 2)?);
    (hours < 24 && minutes < 60).then(|| sign * i64::from(hours * 3600 + minutes * 60))
}

fn field(text: &str, digits: usize) -> Option<u32> {
    (text.len() == digits && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
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
    fn impossible_dates_are_refused() {
        for (y, m, d) in [
            (2021, 2, 29),
            (2020, 13, 1),
            (2020, 0, 1),
            (2020, 4, 31),
            (2020, 1, 0),
        ] {
            assert_eq!(unix_from_utc(y, m, d, 0, 0, 0), None, "{y}-{m}-{d}");
        }
        assert_eq!(unix_from_utc(2020, 1, 1, 24, 0, 0), None);
    }

    #[test]
    fn clock_has_microseconds() {
        let text = clock(UNIX_EPOCH + Duration::from_micros(1_234_567));
        assert_eq!(text.len(), 15);
        assert!(text.ends_with(".234567"), "{text}");
    }
}
