//! Numbers as the tools print and read them: sizes, durations, ratios.

use std::time::Duration;

use super::suggest::unknown;

/// What may follow a size and a duration; there are longer forms of them, too.
const SIZES: [&str; 4] = ["k", "m", "g", "t"];
const TIMES: [&str; 7] = ["ns", "us", "ms", "s", "m", "h", "d"];

/// `value` with at most `digits` significant digits, trailing zeros dropped, never an exponent.
fn significant(value: f64, digits: usize) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    // Rounding may carry into a new digit (9.9996 -> 10.00): decide after rounding once.
    let magnitude = |v: f64| v.abs().log10().floor() as i32;
    let places = |m: i32| usize::try_from(digits as i32 - 1 - m).unwrap_or(0);
    let first = places(magnitude(value));
    let rounded: f64 = format!("{value:.first$}").parse().unwrap_or(value);
    let places = if rounded == 0.0 {
        first
    } else {
        places(magnitude(rounded))
    };
    let text = format!("{rounded:.places$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// The logarithm of the size of a block, of `-S`.
///
/// # Errors
/// What it has to be.
pub fn block_size_bits(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bits @ 10..=30) if !text.starts_with('+') => Ok(bits),
        _ => Err(format!("block size must be between 10 and 30: {text}")),
    }
}

/// A size in binary units with 4 significant digits: `0 B`, `58.59 KiB`, `1 MiB`.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (bytes.checked_ilog2().unwrap_or(0) / 10) as usize;
    let value = bytes as f64 / (1_u64 << (10 * unit)) as f64;
    format!("{} {}", significant(value, 4), UNITS[unit.min(6)])
}

/// A rate: a size per second, followed by `/s`.
#[must_use]
pub fn format_rate(bytes_per_second: u64) -> String {
    format!("{}/s", format_size(bytes_per_second))
}

/// A duration with 4 significant digits, truncated: `3.86ms`, `226ms`, `2m 17.5s`, `0s`.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let ns = duration.as_nanos();
    if ns == 0 {
        return "0s".to_owned();
    }
    if ns < 60_000_000_000 {
        let (unit, name) = match ns {
            1_000_000_000.. => (1_000_000_000, "s"),
            1_000_000.. => (1_000_000, "ms"),
            1_000.. => (1_000, "us"),
            _ => (1, "ns"),
        };
        return format!("{}{name}", truncated(ns, unit, 4));
    }
    let mut budget = 4_usize;
    let mut rest = ns;
    let mut parts = Vec::new();
    for (unit, name) in [(86_400, "d"), (3_600, "h"), (60, "m")] {
        let unit = unit * 1_000_000_000_u128;
        let count = rest / unit;
        if count == 0 {
            continue;
        }
        let text = count.to_string();
        if text.len() > budget && !parts.is_empty() {
            return parts.join(" ");
        }
        budget = budget.saturating_sub(text.len());
        parts.push(format!("{text}{name}"));
        rest %= unit;
    }
    let seconds = truncated(rest, 1_000_000_000, budget);
    if (rest / 1_000_000_000).to_string().len() <= budget && seconds != "0" {
        parts.push(format!("{seconds}s"));
    }
    parts.join(" ")
}

/// `value / unit` cut (not rounded) to `digits` digits in all, trailing zeros dropped.
fn truncated(value: u128, unit: u128, digits: usize) -> String {
    let whole = (value / unit).to_string();
    let places = digits.saturating_sub(whole.len());
    let mut fraction = String::new();
    let mut rest = value % unit;
    for _ in 0..places {
        rest *= 10;
        fraction.push(char::from(b'0' + u8::try_from(rest / unit).unwrap_or(9)));
        rest %= unit;
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() {
        whole
    } else {
        format!("{whole}.{fraction}")
    }
}

/// The ratio `part / whole` with 3 significant digits: `7.55%`, `12ppm`, `1.23x`, `0x`, `N/A`.
#[must_use]
pub fn format_ratio(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "N/A".to_owned();
    }
    if part == 0 {
        return "0x".to_owned();
    }
    let ratio = part as f64 / whole as f64;
    let scaled = |factor: f64, low: f64, high: f64, unit: &str| {
        let value = ratio * factor;
        (value >= low && value < high).then(|| format!("{}{unit}", significant(value, 3)))
    };
    scaled(1e2, 0.1, 100.0, "%")
        .or_else(|| scaled(1e6, 1.0, 1e3, "ppm"))
        .or_else(|| scaled(1e9, 1.0, 1e3, "ppb"))
        .unwrap_or_else(|| {
            if ratio < 1e-3 {
                format!("{ratio:.2e}x")
            } else {
                format!("{}x", significant(ratio, 3))
            }
        })
}

/// A percentage with two decimals: `28.29%`, or `N/A` of nothing.
#[must_use]
pub fn format_percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "N/A".to_owned();
    }
    format!("{:.2}%", part as f64 * 100.0 / whole as f64)
}

/// An integer with a comma between groups of three digits.
#[must_use]
pub fn format_grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A number with its noun: `1 file`, `1,300 files`.
#[must_use]
pub fn counted(count: u64, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        _ => format!("{} {many}", format_grouped(count)),
    }
}

/// A part of a size, in the unit of the whole where that is a number to read: `1.2 of 2.801 GiB`.
#[must_use]
pub fn format_size_pair(part: u64, whole: u64) -> String {
    let (part, whole) = (format_size(part), format_size(whole));
    let unit = whole.split(' ').next_back().unwrap_or_default();
    match part.strip_suffix(&format!(" {unit}")) {
        Some(number) => format!("{number} of {whole}"),
        None => format!("{part} of {whole}"),
    }
}

/// Parses a size: a decimal integer with an optional suffix `k m g t` (either case, powers of
/// 1024).
///
/// # Errors
/// Text for the user.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, suffix) = split_number(text);
    if digits.is_empty() {
        return Err(format!("cannot parse size value: {text}"));
    }
    let shift = match suffix {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        "t" | "T" => 40,
        other => {
            return Err(unknown(
                format_args!("unsupported size suffix: {other}"),
                SIZES,
            ));
        }
    };
    let out_of_range = || format!("size value out of range: {text}");
    let value: u64 = digits.parse().map_err(|_| out_of_range())?;
    value.checked_mul(1 << shift).ok_or_else(out_of_range)
}

/// Parses a duration: an integer, optional spaces, an optional unit (`ns us ms s m h d` or a long
/// form). Without a unit the number counts seconds; a unit alone counts as one.
///
/// # Errors
/// Text for the user.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (digits, suffix) = split_number(text);
    let suffix = suffix.trim_start_matches(' ');
    if digits.is_empty() && suffix.is_empty() {
        return Err("empty time value".to_owned());
    }
    let nanos: u64 = match suffix {
        "ns" | "nsec" => 1,
        "us" | "usec" => 1_000,
        "ms" | "msec" => 1_000_000,
        "" | "s" | "sec" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" | "hour" => 3_600_000_000_000,
        "d" | "day" => 86_400_000_000_000,
        other => {
            return Err(unknown(
                format_args!("unsupported time suffix: {other}"),
                TIMES,
            ));
        }
    };
    let out_of_range = || format!("time value out of range: {text}");
    let count: u64 = if digits.is_empty() {
        1
    } else {
        digits.parse().map_err(|_| out_of_range())?
    };
    count
        .checked_mul(nanos)
        .map(Duration::from_nanos)
        .ok_or_else(out_of_range)
}

fn split_number(text: &str) -> (&str, &str) {
    let end = text
        .bytes()
        .position(|b| !b.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_parts() {
        assert_eq!(counted(0, "file", "files"), "0 files");
        assert_eq!(counted(1, "file", "files"), "1 file");
        assert_eq!(counted(1234, "file", "files"), "1,234 files");
        assert_eq!(format_size_pair(1 << 29, 3 << 30), "512 MiB of 3 GiB");
        assert_eq!(format_size_pair(1 << 30, 3 << 30), "1 of 3 GiB");
        assert_eq!(format_size_pair(5, 7), "5 of 7 B");
        assert_eq!(format_size_pair(5 << 10, 7 << 20), "5 KiB of 7 MiB");
    }

    #[test]
    fn sizes_out() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (60_000, "58.59 KiB"),
            (300_032, "293 KiB"),
            (1 << 20, "1 MiB"),
            (794_931, "776.3 KiB"),
            (6_033_510, "5.754 MiB"),
            (1_048_575, "1024 KiB"),
            (u64::MAX, "16 EiB"),
        ];
        for (bytes, want) in cases {
            assert_eq!(format_size(bytes), want);
        }
        assert_eq!(format_rate(0), "0 B/s");
    }

    #[test]
    fn durations_out() {
        let cases = [
            (0, "0s"),
            (999, "999ns"),
            (8_753, "8.753us"),
            (3_860_000, "3.86ms"),
            (226_000_000, "226ms"),
            (1_152_999_999, "1.152s"),
            (59_999_999_999, "59.99s"),
            (60_000_000_000, "1m"),
            (137_540_000_000, "2m 17.5s"),
            (4_980_000_000_000, "1h 23m"),
            (750_500_000_000, "12m 30s"),
        ];
        for (ns, want) in cases {
            assert_eq!(format_duration(Duration::from_nanos(ns)), want, "{ns}");
        }
    }

    #[test]
    fn ratios_out() {
        let cases = [
            (1, 0, "N/A"),
            (0, 1, "0x"),
            (755, 10_000, "7.55%"),
            (701, 1000, "70.1%"),
            (1, 1, "1x"),
            (123, 100, "1.23x"),
            (1, 1000, "0.1%"),
            (12, 1_000_000, "12ppm"),
            (5, 1_000_000_000, "5ppb"),
            (1, 10_000_000_000, "1.00e-10x"),
        ];
        for (part, whole, want) in cases {
            assert_eq!(format_ratio(part, whole), want, "{part}/{whole}");
        }
    }

    #[test]
    fn percentages() {
        assert_eq!(format_percent(1, 1), "100.00%");
        assert_eq!(format_percent(20_794, 73_509), "28.29%");
        assert_eq!(format_percent(0, 5), "0.00%");
        assert_eq!(format_percent(0, 0), "N/A");
    }

    #[test]
    fn grouping() {
        for (value, want) in [
            (0, "0"),
            (999, "999"),
            (3294, "3,294"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(format_grouped(value), want);
        }
    }

    #[test]
    fn sizes_in() {
        let cases = [
            ("0", Ok(0)),
            ("12k", Ok(12 << 10)),
            ("3M", Ok(3 << 20)),
            ("1g", Ok(1 << 30)),
            ("2T", Ok(2 << 40)),
            ("5q", Err("unsupported size suffix: q (one of k, m, g, t)")),
            ("abc", Err("cannot parse size value: abc")),
            ("", Err("cannot parse size value: ")),
            ("-1", Err("cannot parse size value: -1")),
            (
                "99999999999999999999",
                Err("size value out of range: 99999999999999999999"),
            ),
            (
                "18446744073709551615k",
                Err("size value out of range: 18446744073709551615k"),
            ),
        ];
        for (text, want) in cases {
            assert_eq!(parse_size(text), want.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn sizes_of_blocks() {
        assert_eq!(block_size_bits("10"), Ok(10));
        assert_eq!(block_size_bits("30"), Ok(30));
        for bad in ["9", "31", "-12", "+12", "x", ""] {
            let error = block_size_bits(bad).unwrap_err();
            assert!(error.starts_with("block size must be"), "{bad}: {error}");
        }
    }

    #[test]
    fn durations_in() {
        let ok = [
            ("5", 5_000_000_000_u64),
            ("5 s", 5_000_000_000),
            ("1500ms", 1_500_000_000),
            ("7usec", 7_000),
            ("min", 60_000_000_000),
            ("2h", 7_200_000_000_000),
            ("1day", 86_400_000_000_000),
            ("0", 0),
            ("12ns", 12),
        ];
        for (text, want) in ok {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_nanos(want)),
                "{text}"
            );
        }
        assert_eq!(
            parse_duration("1.5s"),
            Err("unsupported time suffix: .5s (one of ns, us, ms, s, m, h, d)".to_owned())
        );
        for bad in ["", "-1", "5x", "99999999999999999999"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
