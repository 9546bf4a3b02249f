//! Dates and times as users write them.

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
/// or the compact form of ISO 8601. A date means the beginning of the day, and fractions of a second do not count. `None` if
/// the text has another form.
#[must_use]
pub fn parse(text: &str) -> Option<i64> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn texts_are_times() {
        for (text, wanted) in [
            ("1970-01-02", Some(86_400)),
            ("1970-01-01 00:01", Some(60)),
            ("1970-01-01T00:01:02.999Z", Some(62)),
            ("1970-01-01T01:00:00+01:00", Some(0)),
            ("19700101T010000-0030", Some(5_400)),
            ("19700102T", Some(86_400)),
            ("1970-01-01T00:00:00.Z", None),
            ("1970-01-01 ", None),
            ("19700102", None),
            ("monday", None),
            ("", None),
        ] {
            assert_eq!(parse(text), wanted, "{text}");
        }
    }
}
