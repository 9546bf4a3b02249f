//! Extended headers of tar: records of keys and values.

use std::collections::BTreeMap;
use std::rc::Rc;

use redwarfs_writer::Timestamp;

use super::header::size;
use crate::error::Fault;

/// Records by their keys.
#[derive(Debug, Clone, Default)]
pub(super) struct Records {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The sparse map of GNU's version 0.0, whose keys repeat.
    pairs: Vec<(u64, u64)>,
    /// The offset that waits for its size.
    offset: Option<u64>,
    /// Bytes of keys, values and pairs.
    size: usize,
    /// What holds where these records say nothing.
    global: Option<Rc<Records>>,
}

fn bad() -> Fault {
    Fault::damaged("an extended header is no list of records")
}

impl Records {
    /// Adds the records of a header: `length key=value\n`, one after the other.
    pub(super) fn add(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        while !bytes.is_empty() {
            // Some programs fill the block.
            if bytes.iter().all(|&b| b == 0) {
                break;
            }
            let digits = bytes.iter().position(|&b| b == b' ').ok_or_else(bad)?;
            let length = bytes.get(..digits).and_then(decimal).ok_or_else(bad)?;
            let length = usize::try_from(length).map_err(|_| bad())?;
            let (record, rest) = bytes.split_at_checked(length).ok_or_else(bad)?;
            let record = record.get(digits + 1..).ok_or_else(bad)?;
            let record = record.strip_suffix(b"\n").ok_or_else(bad)?;
            let equals = record.iter().position(|&b| b == b'=').ok_or_else(bad)?;
            let (key, value) = record.split_at_checked(equals).ok_or_else(bad)?;
            self.put(key, value.get(1..).unwrap_or_default())?;
            bytes = rest;
        }
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        let number = || decimal(value).ok_or_else(bad_map);
        match key {
            b"GNU.sparse.offset" => self.offset = Some(number()?),
            b"GNU.sparse.numbytes" => {
                let offset = self.offset.take().ok_or_else(bad_map)?;
                self.pairs.push((offset, number()?));
                self.size += size_of::<(u64, u64)>();
            }
            _ => self.insert(key.to_vec(), value.to_vec()),
        }
        Ok(())
    }

    fn insert(&mut self, key: Vec<u8>, value: Vec<u8>) {
        let length = key.len();
        self.size += length + value.len();
        if let Some(old) = self.values.insert(key, value) {
            self.size -= length + old.len();
        }
    }

    /// Takes over what `other` says.
    pub(super) fn update(&mut self, other: Self) {
        for (key, value) in other.values {
            self.insert(key, value);
        }
    }

    /// These records, and `global` where they say nothing.
    pub(super) fn over(self, global: &Rc<Self>) -> Self {
        Self {
            global: Some(Rc::clone(global)),
            ..self
        }
    }

    /// Bytes that the records take.
    pub(super) fn len(&self) -> usize {
        self.size
    }

    /// A value. An empty one stands for the value of the header.
    pub(super) fn get(&self, key: &str) -> Option<&[u8]> {
        let value = self.values.get(key.as_bytes());
        let value = value.or_else(|| self.global.as_ref()?.values.get(key.as_bytes()));
        value.map(Vec::as_slice).filter(|value| !value.is_empty())
    }

    /// The values of all keys that begin with `prefix`, with the rest of the key.
    pub(super) fn under<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let prefix = prefix.as_bytes();
        let of = move |records: &'a Self| {
            let from = records.values.range(prefix.to_vec()..);
            from.take_while(move |(key, _)| key.starts_with(prefix))
        };
        let global = self.global.as_deref().into_iter().flat_map(of);
        let global = global.filter(|(key, _)| !self.values.contains_key(*key));
        let all = of(self).chain(global);
        all.filter_map(move |(key, value)| Some((key.strip_prefix(prefix)?, value.as_slice())))
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<i128>, Fault> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let (negative, digits) = match value.strip_prefix(b"-") {
            Some(digits) => (true, digits),
            None => (false, value),
        };
        let value = decimal(digits)
            .ok_or_else(|| Fault::damaged(format!("the value of '{key}' is no number")))?;
        let value = i128::from(value);
        Ok(Some(if negative { -value } else { value }))
    }

    pub(super) fn size(&self, key: &str) -> Result<Option<u64>, Fault> {
        self.number(key)?.map(size).transpose()
    }

    pub(super) fn time(&self, key: &str) -> Result<Option<Timestamp>, Fault> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match time(value) {
            Some(time) => Ok(Some(time)),
            None => Err(Fault::damaged(format!("the value of '{key}' is no time"))),
        }
    }

    /// The sparse map of GNU's versions 0.0 and 0.1, if there is one.
    pub(super) fn map(&self) -> Result<Option<Vec<(u64, u64)>>, Fault> {
        if let Some(list) = self.get("GNU.sparse.map") {
            let numbers: Option<Vec<u64>> = list.split(|&b| b == b',').map(decimal).collect();
            let numbers = numbers
                .filter(|n| n.len().is_multiple_of(2))
                .ok_or_else(bad_map)?;
            let pairs = numbers.chunks_exact(2);
            return Ok(Some(pairs.map(|pair| (pair[0], pair[1])).collect()));
        }
        let any = !self.pairs.is_empty() || self.get("GNU.sparse.numblocks").is_some();
        Ok((any && self.get("GNU.sparse.major").is_none()).then(|| self.pairs.clone()))
    }
}

fn bad_map() -> Fault {
    Fault::damaged("a sparse map is no list of numbers")
}

/// A number of decimal digits.
pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| match digit {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// Seconds with a fraction of any length; digits after the ninth are ignored.
fn time(value: &[u8]) -> Option<Timestamp> {
    let (negative, value) = match value.strip_prefix(b"-") {
        Some(value) => (true, value),
        None => (false, value),
    };
    let mut parts = value.splitn(2, |&b| b == b'.');
    let whole = i64::try_from(decimal(parts.next()?)?).ok()?;
    let fraction = parts.next().unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let nsec = fraction.iter().chain([b'0'; 9].iter()).take(9);
    let nsec = nsec.fold(0u32, |value, digit| value * 10 + u32::from(digit - b'0'));
    Some(match (negative, nsec) {
        (false, nsec) => Timestamp { sec: whole, nsec },
        (true, 0) => Timestamp { sec: -whole, nsec },
        // The fraction counts forward from the second before.
        (true, nsec) => Timestamp {
            sec: -whole - 1,
            nsec: 1_000_000_000 - nsec,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_forward_from_the_second_before() {
        let at = |sec, nsec| Some(Timestamp { sec, nsec });
        for (text, want) in [
            ("0", at(0, 0)),
            ("1.5", at(1, 500_000_000)),
            ("-1.5", at(-2, 500_000_000)),
            ("-1", at(-1, 0)),
            ("-0.000000001", at(-1, 999_999_999)),
            ("7.1234567899", at(7, 123_456_789)),
            ("7.", at(7, 0)),
            ("", None),
            ("-", None),
            ("1,5", None),
            ("1.x", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(time(text.as_bytes()), want, "{text}");
        }
    }

    #[test]
    fn records_must_be_as_long_as_they_say() {
        let mut records = Records::default();
        records
            .add(b"11 path=abc\n10 mtime=1\n")
            .expect_err("too long");
        let mut records = Records::default();
        records
            .add(b"12 path=abc\n7 a=b=c\n")
            .expect_err("too short");
        let mut records = Records::default();
        records
            .add(b"12 path=abc\n12 n=\nb=c=d\n8 a=b=c\n\0\0")
            .unwrap();
        assert_eq!(records.get("path"), Some(&b"abc"[..]));
        assert_eq!(records.get("a"), Some(&b"b=c"[..]));
        assert_eq!(records.get("n"), Some(&b"\nb=c=d"[..]));
        for text in [
            "x path=abc\n",
            "12 path=abcd",
            "12path=abcd\n",
            "5 ab\n",
            "-1 a=b\n",
        ] {
            assert!(Records::default().add(text.as_bytes()).is_err(), "{text}");
        }
    }
}
