//! Messages between a program and its process that runs the library: a byte with the kind, the length of
//! the rest in four bytes, and the rest.

use std::io::{self, Read, Write};

/// No message is longer (bytes).
pub const LONGEST: u32 = 64 << 20;

/// Sends a message.
///
/// # Errors
/// Those of writing; [`io::ErrorKind::InvalidInput`] for a body that is too long.
pub fn send(out: &mut dyn Write, kind: u8, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len())
        .ok()
        .filter(|&length| length <= LONGEST)
        .ok_or(io::ErrorKind::InvalidInput)?;
    let mut head = [kind, 0, 0, 0, 0];
    head[1..].copy_from_slice(&length.to_le_bytes());
    out.write_all(&head)?;
    out.write_all(body)
}

/// Reads a message into `body`, and returns its kind; `None` at the end.
///
/// # Errors
/// Those of reading; [`io::ErrorKind::InvalidData`] for a message that is too long.
pub fn receive(input: &mut dyn Read, body: &mut Vec<u8>) -> io::Result<Option<u8>> {
    let mut head = [0; 5];
    match input.read(&mut head[..1])? {
        0 => return Ok(None),
        _ => input.read_exact(&mut head[1..])?,
    }
    let [kind, length @ ..] = head;
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    body.resize(length as usize, 0);
    input.read_exact(body)?;
    Ok(Some(kind))
}

/// Appends values to a message.
#[derive(Debug, Default)]
pub struct Body(Vec<u8>);

impl Body {
    /// The message.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// A number.
    pub fn number(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }

    /// Bytes of any number.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Bytes or none.
    pub fn optional(&mut self, bytes: Option<&[u8]>) {
        self.number(bytes.is_some().into());
        self.bytes(bytes.unwrap_or_default());
    }

    /// Seconds and nanoseconds.
    pub fn time(&mut self, (sec, nsec): (i64, u32)) {
        self.number(sec.cast_unsigned());
        self.number(nsec.into());
    }
}

/// Takes values from a message. Each method returns `None` if the message has no such value.
#[derive(Debug)]
pub struct Values<'a>(&'a [u8]);

impl<'a> Values<'a> {
    /// The values of a message.
    #[must_use]
    pub fn new(message: &'a [u8]) -> Self {
        Self(message)
    }

    /// Whether all values were taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A number.
    pub fn number(&mut self) -> Option<u64> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*value))
    }

    /// A number of 32 bits.
    pub fn small(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    /// Bytes.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (value, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(value)
    }

    /// Bytes or none.
    pub fn optional(&mut self) -> Option<Option<&'a [u8]>> {
        let there = self.number()? == 1;
        self.bytes().map(|bytes| there.then_some(bytes))
    }

    /// Seconds and nanoseconds.
    pub fn time(&mut self) -> Option<(i64, u32)> {
        Some((self.number()?.cast_signed(), self.small()?))
    }

    /// Text.
    pub fn text(&mut self) -> Option<String> {
        self.bytes()
            .map(|b| String::from_utf8_lossy(b).into_owned())
    }
}
