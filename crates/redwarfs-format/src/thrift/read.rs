use std::collections::BTreeMap;

use super::{MAX_NESTING, Type};
use crate::error::{Error, Result};

/// Reads values from a slice, front to back.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    data: &'a [u8],
    position: usize,
    depth: u32,
}

/// Fewest bytes that an element of any type occupies.
const MIN_ELEMENT: usize = 1;

impl<'a> Reader<'a> {
    /// A reader at the start of `data`.
    #[must_use]
    pub fn new(data: &'a [u8]) -> Self {
        Self {
            data,
            position: 0,
            depth: 0,
        }
    }

    /// Number of bytes consumed so far.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// The bytes that have not been consumed.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.data.get(self.position..).unwrap_or_default()
    }

    /// True if everything has been consumed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.position >= self.data.len()
    }

    /// The next `count` bytes.
    pub fn read_raw(&mut self, count: usize) -> Result<&'a [u8]> {
        let bytes = self
            .rest()
            .get(..count)
            .ok_or_else(|| Error::corrupt("Thrift data ends early"))?;
        self.position += count;
        Ok(bytes)
    }

    /// One raw byte.
    pub fn read_u8(&mut self) -> Result<u8> {
        Ok(self.read_raw(1)?.first().copied().unwrap_or_default())
    }

    /// Unsigned LEB128 number of at most `bits` bits (1 to 64).
    pub fn read_varint(&mut self, bits: u32) -> Result<u64> {
        let mut value = 0_u64;
        let mut shift = 0_u32;
        while shift < bits {
            let byte = self.read_u8()?;
            let group = u64::from(byte & 0x7f);
            let room = bits - shift;
            if room < 7 && group >> room != 0 {
                break;
            }
            value |= group << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
            shift += 7;
        }
        Err(Error::corrupt(format!(
            "Thrift number does not fit into {bits} bits"
        )))
    }

    /// Zigzag number of 16 bits.
    pub fn read_i16(&mut self) -> Result<i16> {
        let raw = self.read_varint(16)? as u16;
        Ok((raw >> 1) as i16 ^ -((raw & 1) as i16))
    }

    /// Zigzag number of 32 bits.
    pub fn read_i32(&mut self) -> Result<i32> {
        let raw = self.read_varint(32)? as u32;
        Ok((raw >> 1) as i32 ^ -((raw & 1) as i32))
    }

    /// Zigzag number of 64 bits.
    pub fn read_i64(&mut self) -> Result<i64> {
        let raw = self.read_varint(64)?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    /// Boolean in its form as an element of a container.
    pub fn read_bool_element(&mut self) -> Result<bool> {
        match self.read_u8()? {
            1 => Ok(true),
            2 => Ok(false),
            other => Err(Error::corrupt(format!("invalid Thrift boolean {other}"))),
        }
    }

    /// Bytes of a binary or string value.
    pub fn read_binary(&mut self) -> Result<&'a [u8]> {
        let count = self.read_varint(31)? as usize;
        self.read_raw(count)
    }

    /// Reads a struct: calls `field` with the id and value of every field, in stored order.
    ///
    /// Values that `field` leaves alone are skipped.
    pub fn read_struct<F>(&mut self, mut field: F) -> Result<()>
    where
        F: FnMut(i16, Value<'_, 'a>) -> Result<()>,
    {
        self.nested(|reader| {
            let mut previous = 0_i16;
            loop {
                let header = reader.read_u8()?;
                if header == 0 {
                    return Ok(());
                }
                let ty = Type::from_nibble(header & 0x0f)?;
                let id = match header >> 4 {
                    0 => reader.read_i16()?,
                    delta => previous
                        .checked_add(i16::from(delta))
                        .ok_or_else(|| Error::corrupt("Thrift field id out of range"))?,
                };
                previous = id;
                let flag = (ty == Type::Bool).then_some(header & 0x0f == 1);
                reader.visit(ty, flag, |value| field(id, value))?;
            }
        })
    }

    /// Reads a list or set: calls `element` for every element. Returns their number.
    ///
    /// If the stored element type is not `expected`, the elements are skipped and the result
    /// is 0.
    pub fn read_list<F>(&mut self, expected: Type, mut element: F) -> Result<usize>
    where
        F: FnMut(Value<'_, 'a>) -> Result<()>,
    {
        self.nested(|reader| {
            let header = reader.read_u8()?;
            let count = match header >> 4 {
                15 => reader.read_varint(31)? as usize,
                count => usize::from(count),
            };
            if count == 0 {
                return Ok(0);
            }
            reader.check_count(count)?;
            let ty = Type::from_nibble(header & 0x0f)?;
            for _ in 0..count {
                if ty == expected {
                    reader.visit(ty, None, &mut element)?;
                } else {
                    reader.skip(ty)?;
                }
            }
            Ok(if ty == expected { count } else { 0 })
        })
    }

    /// Reads a map: calls `entry` for each entry, with the reader at the key. `entry` must consume key
    /// and value. Returns the number of entries.
    ///
    /// If the stored types are not the expected ones, the entries are skipped and the result
    /// is 0.
    pub fn read_map<F>(&mut self, key: Type, value: Type, mut entry: F) -> Result<usize>
    where
        F: FnMut(&mut Self) -> Result<()>,
    {
        self.nested(|reader| {
            let count = reader.read_varint(31)? as usize;
            if count == 0 {
                return Ok(0);
            }
            let types = reader.read_u8()?;
            reader.check_count(count.saturating_mul(2))?;
            let stored_key = Type::from_nibble(types >> 4)?;
            let stored_value = Type::from_nibble(types & 0x0f)?;
            let matches = stored_key == key && stored_value == value;
            for _ in 0..count {
                if matches {
                    entry(reader)?;
                } else {
                    reader.skip(stored_key)?;
                    reader.skip(stored_value)?;
                }
            }
            Ok(if matches { count } else { 0 })
        })
    }

    /// Steps over one value of the given type, in its form as an element (a boolean takes one
    /// byte).
    pub fn skip(&mut self, ty: Type) -> Result<()> {
        match ty {
            Type::Bool => self.read_bool_element().map(drop),
            Type::I8 => self.read_raw(1).map(drop),
            Type::I16 => self.read_varint(16).map(drop),
            Type::I32 => self.read_varint(32).map(drop),
            Type::I64 => self.read_varint(64).map(drop),
            Type::Double => self.read_raw(8).map(drop),
            Type::Uuid => self.read_raw(16).map(drop),
            Type::Binary => self.read_binary().map(drop),
            Type::Struct => self.read_struct(|_, _| Ok(())),
            Type::List | Type::Set => self.nested(|reader| {
                let header = reader.read_u8()?;
                let count = match header >> 4 {
                    15 => reader.read_varint(31)? as usize,
                    count => usize::from(count),
                };
                if count == 0 {
                    return Ok(());
                }
                reader.check_count(count)?;
                let ty = Type::from_nibble(header & 0x0f)?;
                (0..count).try_for_each(|_| reader.skip(ty))
            }),
            Type::Map => self.nested(|reader| {
                let count = reader.read_varint(31)? as usize;
                if count == 0 {
                    return Ok(());
                }
                let types = reader.read_u8()?;
                reader.check_count(count.saturating_mul(2))?;
                let key = Type::from_nibble(types >> 4)?;
                let value = Type::from_nibble(types & 0x0f)?;
                (0..count).try_for_each(|_| {
                    reader.skip(key)?;
                    reader.skip(value)
                })
            }),
        }
    }

    /// Runs `read` on the value of type `ty` that starts here and skips the value if `read` does not
    /// touch it. Every value occupies at least one byte, except boolean fields, so an unchanged
    /// position means that the value was not read.
    fn visit<F>(&mut self, ty: Type, flag: Option<bool>, read: F) -> Result<()>
    where
        F: FnOnce(Value<'_, 'a>) -> Result<()>,
    {
        let start = self.position;
        read(Value {
            reader: self,
            ty,
            flag,
        })?;
        if self.position == start && flag.is_none() {
            self.skip(ty)?;
        }
        Ok(())
    }

    fn check_count(&self, count: usize) -> Result<()> {
        if count > self.rest().len() / MIN_ELEMENT {
            return Err(Error::corrupt(
                "Thrift container has more elements than the data has bytes",
            ));
        }
        Ok(())
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= MAX_NESTING {
            return Err(Error::corrupt("Thrift data is nested too deeply"));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }
}

/// A field's value or a container's element that is ready to be read.
///
/// The `store` methods follow the protocol's rule for fields of unexpected type: the destination keeps
/// its value, and the field is skipped.
#[derive(Debug)]
pub struct Value<'r, 'a> {
    reader: &'r mut Reader<'a>,
    ty: Type,
    flag: Option<bool>,
}

impl<'r, 'a> Value<'r, 'a> {
    /// The type announced by the data.
    #[must_use]
    pub fn ty(&self) -> Type {
        self.ty
    }

    /// The reader, placed at the value's first byte. For a boolean field, which has no bytes,
    /// use [`Value::store`] instead.
    #[must_use]
    pub fn into_reader(self) -> &'r mut Reader<'a> {
        self.reader
    }

    /// Reads a scalar, string or byte string into `slot`. An `Option` becomes `Some`.
    pub fn store<T: Decode>(self, slot: &mut T) -> Result<()> {
        if self.ty == T::TYPE {
            *slot = match self.flag {
                Some(flag) => T::from_flag(flag),
                None => T::decode(self.reader)?,
            };
        }
        Ok(())
    }

    /// Reads a struct: `field` is called as by [`Reader::read_struct`].
    ///
    /// Returns false, without calling `field`, if the value is not a struct.
    pub fn store_struct<F>(self, field: F) -> Result<bool>
    where
        F: FnMut(i16, Value<'_, 'a>) -> Result<()>,
    {
        if self.ty != Type::Struct {
            return Ok(false);
        }
        self.reader.read_struct(field)?;
        Ok(true)
    }

    /// Reads a list into `slot`, replacing its content. `element` makes one item from one
    /// value of type `ty`.
    pub fn store_list<T, F>(self, ty: Type, slot: &mut Vec<T>, mut element: F) -> Result<()>
    where
        F: FnMut(Value<'_, 'a>) -> Result<T>,
    {
        if self.ty == Type::List {
            slot.clear();
            self.reader.read_list(ty, |value| {
                slot.push(element(value)?);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Reads a set of scalars or strings; `insert` receives each element in stored order.
    ///
    /// Returns false, without calling `insert`, if the value is not a set.
    pub fn store_set<T, F>(self, mut insert: F) -> Result<bool>
    where
        T: Decode,
        F: FnMut(T) -> Result<()>,
    {
        if self.ty != Type::Set {
            return Ok(false);
        }
        self.reader
            .read_list(T::TYPE, |value| insert(T::decode(value.reader)?))?;
        Ok(true)
    }

    /// Reads a map with scalar keys into `slot`, replacing its content. `read` makes one item
    /// from the reader placed at a value of type `ty`. Of equal keys the first wins.
    pub fn store_map<K, V, F>(self, ty: Type, slot: &mut BTreeMap<K, V>, mut read: F) -> Result<()>
    where
        K: Decode + Ord,
        F: FnMut(&mut Reader<'a>) -> Result<V>,
    {
        if self.ty == Type::Map {
            slot.clear();
            self.reader.read_map(K::TYPE, ty, |reader| {
                let key = K::decode(reader)?;
                let value = read(reader)?;
                slot.entry(key).or_insert(value);
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Types that can be read from a single value.
pub trait Decode: Sized {
    /// The wire type.
    const TYPE: Type;

    /// Reads the value in its form as an element of a container.
    fn decode(reader: &mut Reader<'_>) -> Result<Self>;

    /// Makes the value of a boolean field. Only called if [`Decode::TYPE`] is [`Type::Bool`].
    #[doc(hidden)]
    fn from_flag(_: bool) -> Self {
        unreachable!("called for boolean types only, which override it")
    }
}

macro_rules! decode {
    ($($ty:ty, $wire:ident, |$reader:ident| $read:expr;)*) => {$(
        impl Decode for $ty {
            const TYPE: Type = Type::$wire;
            fn decode($reader: &mut Reader<'_>) -> Result<Self> {
                Ok($read)
            }
        }
    )*};
}

decode! {
    i8, I8, |r| r.read_u8()? as i8;
    u8, I8, |r| r.read_u8()?;
    i16, I16, |r| r.read_i16()?;
    u16, I16, |r| r.read_i16()? as u16;
    i32, I32, |r| r.read_i32()?;
    u32, I32, |r| r.read_i32()? as u32;
    i64, I64, |r| r.read_i64()?;
    u64, I64, |r| r.read_i64()? as u64;
    Vec<u8>, Binary, |r| r.read_binary()?.to_vec();
    String, Binary, |r| String::from_utf8_lossy(r.read_binary()?).into_owned();
}

impl Decode for bool {
    const TYPE: Type = Type::Bool;
    fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        reader.read_bool_element()
    }
    fn from_flag(flag: bool) -> Self {
        flag
    }
}

impl<T: Decode> Decode for Option<T> {
    const TYPE: Type = T::TYPE;
    fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        T::decode(reader).map(Some)
    }
    fn from_flag(flag: bool) -> Self {
        Some(T::from_flag(flag))
    }
}
