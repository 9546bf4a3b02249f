//! Numbers for people.

use std::time::Duration;

/// A number of bytes with up to four digits: `404 B`, `58.59 KiB`.
pub(crate) fn bytes(count: u64) -> String {
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].iter();
    let mut unit = units.next();
    while value >= 1024.0
        && let Some(next) = units.next()
    {
        value /= 1024.0;
        unit = Some(next);
    }
    format!("{} {}", short(value), unit.unwrap_or(&""))
}

/// A duration below a minute with up to four digits: `21.5us`, `1.152s`.
pub(crate) fn duration(time: Duration) -> String {
    let ns = time.as_nanos() as f64;
    let (value, unit) = match time.as_nanos() {
        0 => return String::from("0s"),
        1_000_000_000.. => (ns / 1e9, "s"),
        1_000_000.. => (ns / 1e6, "ms"),
        1_000.. => (ns / 1e3, "us"),
        _ => (ns, "ns"),
    };
    format!("{}{unit}", short(value))
}

/// Four digits without trailing zeros.
fn short(value: f64) -> String {
    let places = match value {
        1000.0.. => 0,
        100.0.. => 1,
        10.0.. => 2,
        _ => 3,
    };
    let text = format!("{value:.places$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for (count, text) in [
            (0, "0 B"),
            (404, "404 B"),
            (1024, "1 KiB"),
            (59_996, "58.59 KiB"),
            (300_032, "293 KiB"),
            (1 << 20, "1 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
        for (ns, text) in [
            (0, "0s"),
            (7, "7ns"),
            (21_500, "21.5us"),
            (3_860_000, "3.86ms"),
            (1_152_000_000, "1.152s"),
            (90_000_000_000, "90s"),
        ] {
            assert_eq!(duration(Duration::from_nanos(ns)), text);
        }
    }
}
