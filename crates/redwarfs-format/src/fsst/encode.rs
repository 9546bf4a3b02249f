use super::{ESCAPE, MAX_SYMBOL, Symbol};

/// The longest match at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    Symbol { code: u8, length: u8 },
    Literal(u8),
}

impl Match {
    pub(super) fn len(self) -> usize {
        match self {
            Self::Symbol { length, .. } => usize::from(length),
            Self::Literal(_) => 1,
        }
    }
}

/// Finds the longest symbol by the first two bytes of the input.
#[derive(Debug, Clone)]
pub(super) struct Encoder {
    /// Symbols of three or more bytes, grouped by their first two bytes, longest first within
    /// a group.
    long: Vec<Long>,
    /// Indexed by the first two bytes.
    prefixes: Vec<Prefix>,
    /// Indexed by the first byte: symbols of one byte.
    single: [Option<u8>; 256],
}

#[derive(Debug, Clone, Copy)]
struct Long {
    value: u64,
    mask: u64,
    length: u8,
    code: u8,
}

#[derive(Debug, Clone, Copy, Default)]
struct Prefix {
    /// First element of `long` with this prefix.
    first: u8,
    /// Number of elements with this prefix.
    count: u8,
    /// What to use if none of them matches: code and length, or length 0 for a literal.
    code: u8,
    length: u8,
}

impl Encoder {
    pub(super) fn new(symbols: &[Symbol]) -> Self {
        let mut encoder = Self {
            long: Vec::new(),
            prefixes: vec![Prefix::default(); 1 << 16],
            single: [None; 256],
        };
        // Of equal symbols, which a foreign table may contain, the lowest code is used.
        for (code, symbol) in (0..=u8::MAX).zip(symbols).rev() {
            match symbol.length {
                1 => encoder.single[(symbol.value & 0xff) as usize] = Some(code),
                0 | 2 => {}
                length => encoder.long.push(Long {
                    value: symbol.value,
                    mask: symbol.mask(),
                    length,
                    code,
                }),
            }
        }
        for (byte, code) in encoder.single.iter().enumerate() {
            if let Some(code) = *code {
                for second in 0..256 {
                    let prefix = &mut encoder.prefixes[second << 8 | byte];
                    (prefix.code, prefix.length) = (code, 1);
                }
            }
        }
        for (code, symbol) in (0..=u8::MAX).zip(symbols).rev() {
            if symbol.length == 2 {
                let prefix = &mut encoder.prefixes[prefix_of(symbol.value)];
                (prefix.code, prefix.length) = (code, 2);
            }
        }
        encoder
            .long
            .sort_by_key(|long| (prefix_of(long.value), u8::MAX - long.length, long.code));
        for (index, long) in (0..=u8::MAX).zip(&encoder.long) {
            let prefix = &mut encoder.prefixes[prefix_of(long.value)];
            if prefix.count == 0 {
                prefix.first = index;
            }
            prefix.count += 1;
        }
        encoder
    }

    /// The longest symbol at the start of `input`, which must not be empty.
    #[inline]
    pub(super) fn longest(&self, input: &[u8]) -> Match {
        let (word, available) = match input.first_chunk::<MAX_SYMBOL>() {
            Some(&bytes) => (u64::from_le_bytes(bytes), MAX_SYMBOL),
            None => {
                let start = Symbol::prefix(input);
                (start.value, start.len())
            }
        };
        let first = (word & 0xff) as u8;
        if available < 2 {
            return match self.single[usize::from(first)] {
                Some(code) => Match::Symbol { code, length: 1 },
                None => Match::Literal(first),
            };
        }
        let prefix = self.prefixes[prefix_of(word)];
        let from = usize::from(prefix.first);
        for long in &self.long[from..from + usize::from(prefix.count)] {
            if (word ^ long.value) & long.mask == 0 && usize::from(long.length) <= available {
                return Match::Symbol {
                    code: long.code,
                    length: long.length,
                };
            }
        }
        match prefix.length {
            0 => Match::Literal(first),
            length => Match::Symbol {
                code: prefix.code,
                length,
            },
        }
    }

    pub(super) fn compress(&self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            let found = self.longest(input);
            match found {
                Match::Symbol { code, .. } => out.push(code),
                Match::Literal(byte) => out.extend_from_slice(&[ESCAPE, byte]),
            }
            input = &input[found.len()..];
        }
    }
}

/// Index of the first two bytes of a word.
fn prefix_of(word: u64) -> usize {
    (word & 0xffff) as usize
}
