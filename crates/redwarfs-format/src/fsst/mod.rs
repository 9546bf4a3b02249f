//! FSST, the string compression of the name and symlink tables (format chapter 04 section 8.1).
//!
//! A table of up to 255 symbols, each 1 to 8 bytes long, maps one byte codes to strings. Code
//! 255 announces a literal byte. Strings are compressed one by one and can be decompressed one
//! by one.
//!
//! The method and the training are those of P. Boncz, T. Neumann, V. Leis: "FSST: Fast Random
//! Access String Compression", PVLDB 13(11), 2020.

mod encode;
mod train;

use std::sync::OnceLock;

use crate::error::{Error, Result};
use encode::Encoder;

/// Longest symbol, in bytes.
const MAX_SYMBOL: usize = 8;
/// Most symbols of a table; one code is taken by the escape.
const MAX_SYMBOLS: usize = 255;
/// Announces a literal byte.
const ESCAPE: u8 = 255;

/// Version 20190218, as stored.
const VERSION: [u8; 4] = [0x0a, 0x14, 0x34, 0x01];
const VERSION_AT: usize = 4;
const VARIANT_AT: usize = 8;
const COUNTS_AT: usize = 9;
const SYMBOLS_AT: usize = COUNTS_AT + MAX_SYMBOL;
/// Lengths in the order of codes and of the serialized form.
const LENGTH_ORDER: [usize; MAX_SYMBOL] = [2, 3, 4, 5, 6, 7, 8, 1];

/// One string of a symbol table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Symbol {
    /// The bytes, the first one lowest; those above the length are zero.
    value: u64,
    /// 1 to 8.
    length: u8,
}

impl Symbol {
    const EMPTY: Self = Self {
        value: 0,
        length: 0,
    };

    fn byte(byte: u8) -> Self {
        Self {
            value: u64::from(byte),
            length: 1,
        }
    }

    /// The first up to 8 bytes of `bytes`.
    fn prefix(bytes: &[u8]) -> Self {
        let mut value = [0; MAX_SYMBOL];
        let length = bytes.len().min(MAX_SYMBOL);
        value[..length].copy_from_slice(&bytes[..length]);
        Self {
            value: u64::from_le_bytes(value),
            length: length as u8,
        }
    }

    fn len(self) -> usize {
        usize::from(self.length)
    }

    /// Both strings concatenated, truncated to 8 bytes.
    fn concat(self, next: Self) -> Self {
        if self.len() >= MAX_SYMBOL {
            return self;
        }
        Self {
            value: self.value | next.value << (8 * self.len()),
            length: (self.len() + next.len()).min(MAX_SYMBOL) as u8,
        }
    }

    /// Ones for the bytes that belong to the symbol.
    fn mask(self) -> u64 {
        u64::MAX
            .checked_shr(64 - 8 * u32::from(self.length))
            .unwrap_or(0)
    }
}

/// Symbols with their codes.
#[derive(Debug, Clone)]
pub struct SymbolTable {
    /// Indexed by code; [`Symbol::EMPTY`] from `count` on.
    symbols: Box<[Symbol; 256]>,
    count: usize,
    /// Made when something is compressed for the first time.
    encoder: OnceLock<Box<Encoder>>,
}

impl PartialEq for SymbolTable {
    fn eq(&self, other: &Self) -> bool {
        self.symbols == other.symbols
    }
}

impl Eq for SymbolTable {}

impl SymbolTable {
    /// Makes a table of up to 255 distinct symbols. Codes follow their order, lengths first.
    fn from_symbols(mut list: Vec<Symbol>) -> Self {
        let rank = |symbol: &Symbol| {
            LENGTH_ORDER
                .iter()
                .position(|&length| length == symbol.len())
        };
        list.sort_by_key(|symbol| (rank(symbol), symbol.value.swap_bytes()));
        Self::in_code_order(&list)
    }

    fn in_code_order(list: &[Symbol]) -> Self {
        let mut symbols = Box::new([Symbol::EMPTY; 256]);
        let count = list.len().min(MAX_SYMBOLS);
        symbols[..count].copy_from_slice(&list[..count]);
        Self {
            symbols,
            count,
            encoder: OnceLock::new(),
        }
    }

    fn symbols(&self) -> &[Symbol] {
        &self.symbols[..self.count]
    }

    /// Decodes a serialized table.
    ///
    /// The first four bytes are hints for encoders and are not looked at.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for another version or the zero-terminated variant,
    /// [`Error::Corrupt`] if there are too many symbols or the length is wrong.
    pub fn parse(table: &[u8]) -> Result<Self> {
        let Some((head, bytes)) = table.split_at_checked(SYMBOLS_AT) else {
            return Err(Error::corrupt("symbol table is too short"));
        };
        if head[VERSION_AT..VARIANT_AT] != VERSION {
            return Err(Error::Unsupported("version of the symbol table".into()));
        }
        if head[VARIANT_AT] != 0 {
            return Err(Error::Unsupported("variant of the symbol table".into()));
        }
        let mut list = Vec::with_capacity(MAX_SYMBOLS);
        let mut rest = bytes;
        for length in LENGTH_ORDER {
            for _ in 0..head[COUNTS_AT + length - 1] {
                let Some((symbol, tail)) = rest.split_at_checked(length) else {
                    return Err(Error::corrupt("symbol table ends early"));
                };
                list.push(Symbol::prefix(symbol));
                rest = tail;
            }
        }
        if list.len() > MAX_SYMBOLS {
            return Err(Error::corrupt(format!(
                "symbol table has {} symbols",
                list.len()
            )));
        }
        if !rest.is_empty() {
            return Err(Error::corrupt("symbol table is too long"));
        }
        Ok(Self::in_code_order(&list))
    }

    /// Serializes the table.
    #[must_use]
    pub fn encode_table(&self) -> Vec<u8> {
        let mut table = vec![0; SYMBOLS_AT];
        table[0] = 1;
        table[1] = self.count as u8;
        table[VERSION_AT..VARIANT_AT].copy_from_slice(&VERSION);
        for symbol in self.symbols() {
            table[COUNTS_AT + symbol.len() - 1] += 1;
            table.extend_from_slice(&symbol.value.to_le_bytes()[..symbol.len()]);
        }
        table
    }

    /// Learns a table from strings that resemble what will be compressed, ideally all of it.
    /// The result depends on nothing but the strings and their order.
    ///
    /// Large inputs are sampled; time is bounded by a constant plus one pass over `samples`.
    #[must_use]
    pub fn train(samples: &[&[u8]]) -> Self {
        train::train(samples)
    }

    /// As [`train`](Self::train), for strings of any type.
    pub(crate) fn train_on<S: AsRef<[u8]>>(samples: &[S]) -> Self {
        train::train(samples)
    }

    /// Appends the compressed form of `input` to `out`: at each position the longest symbol.
    /// It is at most twice as long as `input`.
    pub fn compress(&self, input: &[u8], out: &mut Vec<u8>) {
        self.encoder().compress(input, out);
    }

    fn encoder(&self) -> &Encoder {
        self.encoder
            .get_or_init(|| Box::new(Encoder::new(self.symbols())))
    }

    /// Appends the decompressed form of `input` to `out`. It is at most eight times as long as
    /// `input`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a code without symbol or an escape at the end of the input; `out`
    /// has unspecified bytes appended then.
    pub fn decompress(&self, input: &[u8], out: &mut Vec<u8>) -> Result<()> {
        /// Codes between adjustments of the output's length.
        const BATCH: usize = 64;
        let mut rest = input;
        while !rest.is_empty() {
            let mut end = out.len();
            // A store of eight bytes whatever the symbol's length is faster than an exact one.
            out.resize(end + BATCH.min(rest.len()) * MAX_SYMBOL, 0);
            for _ in 0..BATCH {
                let Some((&code, tail)) = rest.split_first() else {
                    break;
                };
                rest = tail;
                let mut symbol = self.symbols[usize::from(code)];
                if symbol.length == 0 {
                    if code != ESCAPE {
                        return Err(Error::corrupt(format!("code {code} without symbol")));
                    }
                    let Some((&literal, tail)) = rest.split_first() else {
                        return Err(Error::corrupt("compressed string ends in an escape"));
                    };
                    rest = tail;
                    symbol = Symbol::byte(literal);
                }
                out[end..end + MAX_SYMBOL].copy_from_slice(&symbol.value.to_le_bytes());
                end += symbol.len();
            }
            out.truncate(end);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
