use super::Type;

/// Collects encoded values.
#[derive(Debug, Default, Clone)]
pub struct Writer {
    out: Vec<u8>,
}

impl Writer {
    /// An empty writer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The written bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    /// Appends raw bytes.
    pub fn write_raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Appends an unsigned LEB128 number.
    pub fn write_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.out.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.out.push(value as u8);
    }

    /// Appends a scalar or string in its form as an element of a container.
    pub fn write<T: Encode + ?Sized>(&mut self, value: &T) {
        value.encode(self);
    }

    /// Appends a struct; `fields` puts its fields.
    pub fn write_struct(&mut self, fields: impl FnOnce(&mut StructWriter<'_>)) {
        fields(&mut StructWriter {
            writer: self,
            previous: 0,
        });
        self.out.push(0);
    }

    /// Appends a list or set of `items`, which `write` encodes as elements of type `ty`.
    pub fn write_list<I, F>(&mut self, ty: Type, items: I, mut write: F)
    where
        I: IntoIterator<IntoIter: ExactSizeIterator>,
        F: FnMut(&mut Self, I::Item),
    {
        let items = items.into_iter();
        let count = items.len();
        if count < 15 {
            self.out.push((count as u8) << 4 | ty.nibble());
        } else {
            self.out.push(0xf0 | ty.nibble());
            self.write_varint(count as u64);
        }
        for item in items {
            write(self, item);
        }
    }

    /// Appends a map of `entries`; `write` encodes one key and its value.
    pub fn write_map<I, F>(&mut self, key: Type, value: Type, entries: I, mut write: F)
    where
        I: IntoIterator<IntoIter: ExactSizeIterator>,
        F: FnMut(&mut Self, I::Item),
    {
        let entries = entries.into_iter();
        let count = entries.len();
        self.write_varint(count as u64);
        if count == 0 {
            return;
        }
        self.out.push(key.nibble() << 4 | value.nibble());
        for entry in entries {
            write(self, entry);
        }
    }
}

/// Puts the fields of one struct. Ids may come in any order; ascending order is shortest.
#[derive(Debug)]
pub struct StructWriter<'w> {
    writer: &'w mut Writer,
    previous: i16,
}

impl StructWriter<'_> {
    /// A scalar or string.
    pub fn put<T: Encode + ?Sized>(&mut self, id: i16, value: &T) {
        match value.flag() {
            Some(flag) => self.header(id, if flag { 1 } else { 2 }),
            None => {
                self.header(id, T::TYPE.nibble());
                value.encode(self.writer);
            }
        }
    }

    /// A scalar or string if there is one.
    pub fn put_opt<T: Encode>(&mut self, id: i16, value: Option<&T>) {
        if let Some(value) = value {
            self.put(id, value);
        }
    }

    /// A nested struct.
    pub fn put_struct(&mut self, id: i16, fields: impl FnOnce(&mut StructWriter<'_>)) {
        self.header(id, Type::Struct.nibble());
        self.writer.write_struct(fields);
    }

    /// A list, see [`Writer::write_list`].
    pub fn put_list<I, F>(&mut self, id: i16, ty: Type, items: I, write: F)
    where
        I: IntoIterator<IntoIter: ExactSizeIterator>,
        F: FnMut(&mut Writer, I::Item),
    {
        self.header(id, Type::List.nibble());
        self.writer.write_list(ty, items, write);
    }

    /// A set, see [`Writer::write_list`].
    pub fn put_set<I, F>(&mut self, id: i16, ty: Type, items: I, write: F)
    where
        I: IntoIterator<IntoIter: ExactSizeIterator>,
        F: FnMut(&mut Writer, I::Item),
    {
        self.header(id, Type::Set.nibble());
        self.writer.write_list(ty, items, write);
    }

    /// A map, see [`Writer::write_map`].
    pub fn put_map<I, F>(&mut self, id: i16, key: Type, value: Type, entries: I, write: F)
    where
        I: IntoIterator<IntoIter: ExactSizeIterator>,
        F: FnMut(&mut Writer, I::Item),
    {
        self.header(id, Type::Map.nibble());
        self.writer.write_map(key, value, entries, write);
    }

    fn header(&mut self, id: i16, nibble: u8) {
        let delta = i32::from(id) - i32::from(self.previous);
        if (1..=15).contains(&delta) {
            self.writer.out.push((delta as u8) << 4 | nibble);
        } else {
            self.writer.out.push(nibble);
            self.writer.write(&id);
        }
        self.previous = id;
    }
}

/// Types that can be written as a single value.
pub trait Encode {
    /// The wire type.
    const TYPE: Type;

    /// Appends the value in its form as an element of a container.
    fn encode(&self, writer: &mut Writer);

    /// The value if it is a boolean, which becomes part of the header when it is a field.
    #[doc(hidden)]
    fn flag(&self) -> Option<bool> {
        None
    }
}

macro_rules! encode {
    ($($ty:ty, $wire:ident, |$value:ident, $writer:ident| $write:expr;)*) => {$(
        impl Encode for $ty {
            const TYPE: Type = Type::$wire;
            fn encode(&self, $writer: &mut Writer) {
                let $value = self;
                $write;
            }
        }
    )*};
}

encode! {
    i8, I8, |v, w| w.out.push(*v as u8);
    u8, I8, |v, w| w.out.push(*v);
    i16, I16, |v, w| w.write_varint(u64::from(((*v << 1) ^ (*v >> 15)) as u16));
    u16, I16, |v, w| w.write(&(*v as i16));
    i32, I32, |v, w| w.write_varint(u64::from(((*v << 1) ^ (*v >> 31)) as u32));
    u32, I32, |v, w| w.write(&(*v as i32));
    i64, I64, |v, w| w.write_varint(((*v << 1) ^ (*v >> 63)) as u64);
    u64, I64, |v, w| w.write(&(*v as i64));
    [u8], Binary, |v, w| { w.write_varint(v.len() as u64); w.write_raw(v) };
    Vec<u8>, Binary, |v, w| w.write(v.as_slice());
    str, Binary, |v, w| w.write(v.as_bytes());
    String, Binary, |v, w| w.write(v.as_bytes());
}

impl Encode for bool {
    const TYPE: Type = Type::Bool;
    fn encode(&self, writer: &mut Writer) {
        writer.out.push(if *self { 1 } else { 2 });
    }
    fn flag(&self) -> Option<bool> {
        Some(*self)
    }
}
