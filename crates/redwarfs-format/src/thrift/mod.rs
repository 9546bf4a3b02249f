//! Reader and writer for the subset of the Thrift compact protocol that images use
//! (format chapter 02).
//!
//! The reader walks a slice and hands out one [`Value`] per field or element. A value that the
//! caller does not consume is skipped, so unknown fields need no code:
//!
//! ```
//! use redwarfs_format::thrift::{Reader, Writer};
//!
//! let mut writer = Writer::new();
//! writer.write_struct(|s| {
//!     s.put(1, &7_i16);
//!     s.put(2, "not read below");
//!     s.put(5, &true);
//! });
//! let bytes = writer.into_bytes();
//!
//! let (mut number, mut flag) = (0_i16, false);
//! let mut reader = Reader::new(&bytes);
//! reader.read_struct(|id, value| match id {
//!     1 => value.store(&mut number),
//!     5 => value.store(&mut flag),
//!     _ => Ok(()),
//! })?;
//! assert!(reader.is_empty() && number == 7 && flag);
//! # Ok::<(), redwarfs_format::Error>(())
//! ```

mod read;
mod write;

pub use read::{Decode, Reader, Value};
pub use write::{Encode, StructWriter, Writer};

use crate::error::{Error, Result};

/// How deep structs, lists, sets and maps may be nested in each other. The deepest known
/// structure (a schema) needs 5 levels.
pub const MAX_NESTING: u32 = 32;

/// Wire type of a field or element.
///
/// In the encoding, booleans have two nibbles (1 and 2); both are [`Type::Bool`] here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Type {
    /// Boolean, nibble 1 (true) or 2 (false).
    Bool = 1,
    /// 8-bit integer.
    I8 = 3,
    /// 16-bit integer.
    I16 = 4,
    /// 32-bit integer.
    I32 = 5,
    /// 64-bit integer.
    I64 = 6,
    /// 64-bit IEEE 754 number; only skipped, never used.
    Double = 7,
    /// Bytes or a string.
    Binary = 8,
    /// List.
    List = 9,
    /// Set, encoded like a list.
    Set = 10,
    /// Map.
    Map = 11,
    /// Struct.
    Struct = 12,
    /// 16 bytes; only skipped, never used.
    Uuid = 13,
}

impl Type {
    fn from_nibble(nibble: u8) -> Result<Self> {
        Ok(match nibble {
            1 | 2 => Self::Bool,
            3 => Self::I8,
            4 => Self::I16,
            5 => Self::I32,
            6 => Self::I64,
            7 => Self::Double,
            8 => Self::Binary,
            9 => Self::List,
            10 => Self::Set,
            11 => Self::Map,
            12 => Self::Struct,
            13 => Self::Uuid,
            _ => return Err(Error::corrupt(format!("invalid Thrift type {nibble}"))),
        })
    }

    fn nibble(self) -> u8 {
        self as u8
    }
}

#[cfg(test)]
mod tests;
