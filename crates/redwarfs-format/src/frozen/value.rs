//! The type tree: how each kind of value is resolved, read, measured and written.

use super::bits::{BitSource, store_bits};
use super::describe::TypeInfo;
use super::encoded::EncodedMembers;
use super::freezer::{Table, Widths};
use super::schema::{Layout, Schema};
use crate::error::{Error, Result};

/// Position of an object: byte part and additional bit offset (section 2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pos {
    /// Byte offset from the start of the data; distances refer to it.
    pub byte: u64,
    /// Bit offset relative to `byte`; may exceed 7.
    pub bit: u64,
}

impl Pos {
    /// Position of a member of the object at this position.
    #[inline]
    #[must_use]
    pub fn member(self, kid: &Kid) -> Pos {
        Pos {
            byte: self.byte.saturating_add(u64::from(kid.byte)),
            bit: self.bit.saturating_add(u64::from(kid.bit)),
        }
    }

    /// Absolute bit address; saturates, which is outside of any data.
    #[inline]
    #[must_use]
    pub fn address(self) -> u64 {
        self.byte.saturating_mul(8).saturating_add(self.bit)
    }
}

/// One place of the type tree: its width and the positions of its members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Number of bits occupied.
    pub bits: u32,
    /// Number of bytes occupied, 0 if bit-packed.
    pub size: u32,
    /// Members in the order of the type's definition; distance, count, item for lists.
    pub kids: Vec<Kid>,
    /// All elements of this list were measured once, and will not change.
    pub(super) settled: bool,
}

/// A member of a composite [`Node`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kid {
    /// Member id.
    pub id: i16,
    /// Byte offset inside the object (0 if the schema gives a bit offset).
    pub byte: u32,
    /// Bit offset inside the object (0 if the schema gives a byte offset).
    pub bit: u32,
    /// The member itself; the empty layout if the schema omits it.
    pub node: Node,
}

impl Node {
    /// The member with this id.
    #[must_use]
    pub fn kid(&self, id: i16) -> Option<&Kid> {
        self.kids.iter().find(|k| k.id == id)
    }

    /// Widens the node to `bits` if it is narrower.
    pub fn grow(&mut self, bits: u32, m: &mut Measure) {
        if bits > self.bits {
            self.bits = bits;
            m.changed = true;
        }
    }
}

/// Resolves a schema against types.
#[derive(Debug)]
pub struct Shaper<'a> {
    schema: &'a Schema,
}

impl<'a> Shaper<'a> {
    /// A resolver for one schema.
    #[must_use]
    pub fn new(schema: &'a Schema) -> Self {
        Self { schema }
    }

    /// Node of an integer or boolean.
    ///
    /// # Errors
    /// `Corrupt` if the layout is wider than `max_bits`.
    pub fn scalar(&self, layout: Option<&Layout>, max_bits: u32) -> Result<Node> {
        let Some(layout) = layout else {
            return Ok(Node::default());
        };
        if u32::from(layout.bits) > max_bits || layout.size > max_bits.div_ceil(8) {
            return Err(Error::corrupt(format!(
                "metadata schema: integer of {} bits in {} bytes where at most {max_bits} bits are possible",
                layout.bits, layout.size
            )));
        }
        Ok(Node {
            bits: u32::from(layout.bits),
            size: layout.size,
            ..Node::default()
        })
    }

    /// Node of a value with members, given their ids and resolvers.
    ///
    /// # Errors
    /// Those of the members.
    pub(crate) fn composite(
        &self,
        layout: Option<&Layout>,
        members: &[Member<'a>],
    ) -> Result<Node> {
        let mut kids = Vec::with_capacity(members.len());
        for &(id, shape) in members {
            let field = layout.and_then(|l| l.field(id));
            let inner = field.and_then(|f| self.schema.layouts.get(usize::from(f.layout_id)));
            let offset = field.map_or(0, |f| i32::from(f.offset));
            let (byte, bit) = if offset >= 0 {
                (offset.unsigned_abs(), 0)
            } else {
                (0, offset.unsigned_abs())
            };
            kids.push(Kid {
                id,
                byte,
                bit,
                node: shape(self, inner)?,
            });
        }
        let (bits, size) = layout.map_or((0, 0), |l| (u32::from(l.bits), l.size));
        Ok(Node {
            bits,
            size,
            kids,
            settled: false,
        })
    }

    /// The root node of a value of type `T`.
    ///
    /// # Errors
    /// `Corrupt` if the schema does not suit the type.
    pub fn root<T: Value>(&self) -> Result<Node> {
        T::shape(self, self.schema.layouts.get(usize::from(self.schema.root)))
    }
}

/// Id of a member and the function that resolves it.
pub(super) type Member<'a> = (i16, fn(&Shaper<'a>, Option<&Layout>) -> Result<Node>);

/// State of one layout pass (section 6.3).
#[derive(Debug, Default)]
pub struct Measure {
    pub(super) cursor: u64,
    pub(super) changed: bool,
    pub(super) widths: Widths,
    /// Lists that are around the value.
    pub(super) depth: u32,
    /// Members of the outermost struct that were encoded before.
    pub(super) members: EncodedMembers,
    /// The outermost struct has not begun.
    pub(super) outside: bool,
}

impl Measure {
    /// Takes an area; returns its distance from `base` and its start. An area of 0 bytes is at `base`.
    /// In the first passes the width of elements is unknown, so their strings are measured from there,
    /// and these widths remain.
    pub(super) fn take(&mut self, size: u64, base: u64, align: u64) -> (u64, u64) {
        if size == 0 {
            return (0, base);
        }
        self.cursor += align - 1;
        let start = self.cursor;
        self.cursor += size;
        (start.saturating_sub(base), start)
    }

    /// Bits for an integer that needs `bits`.
    fn width(&self, bits: u32) -> u32 {
        match self.widths {
            Widths::Bytes if self.depth > 0 => bits.next_multiple_of(8),
            _ => bits,
        }
    }

    /// A struct begins. Returns whether it is the outermost one.
    pub(crate) fn begin(&mut self) -> bool {
        std::mem::take(&mut self.outside)
    }

    /// Gives member `kid` the bit offset `at` if it occupies bits; returns the next free bit.
    pub(crate) fn place(kid: &mut Kid, at: u32) -> u32 {
        if kid.node.bits == 0 {
            return at;
        }
        kid.bit = at;
        at + kid.node.bits
    }
}

/// Output of the final pass.
#[derive(Debug, Default)]
pub struct Sink {
    pub(super) out: Vec<u8>,
    pub(super) tables: Vec<Table>,
    /// As those of [`Measure`].
    pub(super) members: EncodedMembers,
    pub(super) outside: bool,
}

impl Sink {
    /// As [`Measure::begin`].
    pub(crate) fn begin(&mut self) -> bool {
        std::mem::take(&mut self.outside)
    }

    pub(super) fn put(&mut self, pos: Pos, width: u32, value: u64) {
        store_bits(&mut self.out, pos.address(), width, value);
    }

    pub(super) fn take(&mut self, size: u64, base: u64, align: u64) -> (u64, u64) {
        let cursor = self.out.len() as u64;
        if size == 0 {
            return (0, cursor);
        }
        let start = cursor.next_multiple_of(align);
        self.out.resize((start + size) as usize, 0);
        (start.saturating_sub(base), start)
    }
}

/// A type that can be stored.
pub trait Value: Sized {
    /// True if no value of this type owns an area, so that measuring it once is enough.
    const FLAT: bool;

    /// The parts of the type.
    fn describe() -> TypeInfo;

    /// Bytes of the data that the value has copied from areas.
    fn copied(&self) -> u64 {
        0
    }

    /// Resolves the layout of a place of this type; `None` is the empty layout.
    ///
    /// # Errors
    /// `Corrupt` if the layout does not suit the type.
    fn shape(shaper: &Shaper<'_>, layout: Option<&Layout>) -> Result<Node>;

    /// Reads the value at `pos`.
    ///
    /// # Errors
    /// `Corrupt` if a part lies outside of the data.
    fn read(source: &BitSource<'_>, node: &Node, pos: Pos) -> Result<Self>;

    /// Widens `node` for this value in an object whose byte part is `base`.
    fn measure(&self, m: &mut Measure, node: &mut Node, base: u64);

    /// Writes the value at `pos`.
    fn write(&self, sink: &mut Sink, node: &Node, pos: Pos);

    /// Node without any width, the start of measuring.
    ///
    /// # Errors
    /// None in practice: the empty layout suits every type.
    fn blank() -> Result<Node> {
        Self::shape(&Shaper::new(&Schema::default()), None)
    }
}

macro_rules! unsigned {
    ($($ty:ty),*) => {$(
        impl Value for $ty {
            const FLAT: bool = true;
            fn describe() -> TypeInfo {
                TypeInfo::Unsigned(<$ty>::BITS)
            }
            fn shape(shaper: &Shaper<'_>, layout: Option<&Layout>) -> Result<Node> {
                shaper.scalar(layout, <$ty>::BITS)
            }
            #[inline]
            #[allow(clippy::cast_possible_truncation, reason = "shape() limits the width")]
            fn read(source: &BitSource<'_>, node: &Node, pos: Pos) -> Result<Self> {
                Ok(source.load(pos.address(), node.bits)? as $ty)
            }
            #[inline]
            fn measure(&self, m: &mut Measure, node: &mut Node, _base: u64) {
                node.grow(m.width(<$ty>::BITS - self.leading_zeros()), m);
            }
            #[inline]
            fn write(&self, sink: &mut Sink, node: &Node, pos: Pos) {
                sink.put(pos, node.bits, u64::from(*self));
            }
        }
    )*};
}
unsigned!(u8, u32, u64);

impl Value for bool {
    const FLAT: bool = true;

    fn describe() -> TypeInfo {
        TypeInfo::Bool
    }

    fn shape(shaper: &Shaper<'_>, layout: Option<&Layout>) -> Result<Node> {
        shaper.scalar(layout, 64)
    }

    fn read(source: &BitSource<'_>, node: &Node, pos: Pos) -> Result<Self> {
        Ok(source.load(pos.address(), node.bits.min(1))? != 0)
    }

    fn measure(&self, m: &mut Measure, node: &mut Node, _base: u64) {
        node.grow(u32::from(*self), m);
    }

    fn write(&self, sink: &mut Sink, node: &Node, pos: Pos) {
        sink.put(pos, node.bits, u64::from(*self));
    }
}

impl<T: Value> Value for Option<T> {
    const FLAT: bool = T::FLAT;

    fn describe() -> TypeInfo {
        TypeInfo::Optional(Box::new(T::describe()))
    }

    fn copied(&self) -> u64 {
        self.as_ref().map_or(0, T::copied)
    }

    fn shape(shaper: &Shaper<'_>, layout: Option<&Layout>) -> Result<Node> {
        shaper.composite(
            layout,
            &[(1, |s, l| bool::shape(s, l)), (2, |s, l| T::shape(s, l))],
        )
    }

    fn read(source: &BitSource<'_>, node: &Node, pos: Pos) -> Result<Self> {
        let [isset, value] = &node.kids[..] else {
            return Ok(None);
        };
        if bool::read(source, &isset.node, pos.member(isset))? {
            T::read(source, &value.node, pos.member(value)).map(Some)
        } else {
            Ok(None)
        }
    }

    fn measure(&self, m: &mut Measure, node: &mut Node, base: u64) {
        let [isset, value] = &mut node.kids[..] else {
            return;
        };
        self.is_some().measure(m, &mut isset.node, base);
        let mut end = Measure::place(isset, 0);
        if let Some(inner) = self {
            inner.measure(m, &mut value.node, base);
            end = Measure::place(value, end);
        }
        node.grow(end, m);
    }

    fn write(&self, sink: &mut Sink, node: &Node, pos: Pos) {
        let [isset, value] = &node.kids[..] else {
            return;
        };
        self.is_some().write(sink, &isset.node, pos.member(isset));
        if let Some(inner) = self {
            inner.write(sink, &value.node, pos.member(value));
        }
    }
}

impl<A: Value, B: Value> Value for (A, B) {
    const FLAT: bool = A::FLAT && B::FLAT;

    fn describe() -> TypeInfo {
        TypeInfo::Pair(Box::new((A::describe(), B::describe())))
    }

    fn shape(shaper: &Shaper<'_>, layout: Option<&Layout>) -> Result<Node> {
        shaper.composite(
            layout,
            &[(1, |s, l| A::shape(s, l)), (2, |s, l| B::shape(s, l))],
        )
    }

    fn read(source: &BitSource<'_>, node: &Node, pos: Pos) -> Result<Self> {
        let [a, b] = &node.kids[..] else {
            return Err(Error::corrupt("metadata pair without members"));
        };
        Ok((
            A::read(source, &a.node, pos.member(a))?,
            B::read(source, &b.node, pos.member(b))?,
        ))
    }

    fn measure(&self, m: &mut Measure, node: &mut Node, base: u64) {
        let [a, b] = &mut node.kids[..] else { return };
        self.0.measure(m, &mut a.node, base);
        let end = Measure::place(a, 0);
        self.1.measure(m, &mut b.node, base);
        let end = Measure::place(b, end);
        node.grow(end, m);
    }

    fn write(&self, sink: &mut Sink, node: &Node, pos: Pos) {
        let [a, b] = &node.kids[..] else { return };
        self.0.write(sink, &a.node, pos.member(a));
        self.1.write(sink, &b.node, pos.member(b));
    }
}

/// Declares a struct together with its encoding: ids, types and packing order stand in one table.
macro_rules! frozen_struct {
    (
        $(#[$meta:meta])*
        pub struct $name:ident as $text:literal {
            $( $(#[$fmeta:meta])* $id:literal $field:ident : $ty:ty, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$fmeta])* pub $field: $ty, )*
        }

        impl $crate::frozen::Value for $name {
            const FLAT: bool = true $( && <$ty as $crate::frozen::Value>::FLAT )*;

            fn describe() -> $crate::frozen::TypeInfo {
                $crate::frozen::TypeInfo::Struct($crate::frozen::StructInfo {
                    name: $text,
                    members: vec![ $( $crate::frozen::MemberInfo {
                        id: $id,
                        name: stringify!($field),
                        ty: <$ty as $crate::frozen::Value>::describe(),
                    } ),* ],
                })
            }

            fn copied(&self) -> u64 {
                if Self::FLAT {
                    return 0;
                }
                0u64 $( .saturating_add($crate::frozen::Value::copied(&self.$field)) )*
            }

            fn shape(
                shaper: &$crate::frozen::Shaper<'_>,
                layout: Option<&$crate::frozen::Layout>,
            ) -> $crate::error::Result<$crate::frozen::Node> {
                shaper.composite(
                    layout,
                    &[ $( ($id, |s, l| <$ty as $crate::frozen::Value>::shape(s, l)) ),* ],
                )
            }

            fn read(
                source: &$crate::frozen::BitSource<'_>,
                node: &$crate::frozen::Node,
                pos: $crate::frozen::Pos,
            ) -> $crate::error::Result<Self> {
                let mut value = Self::default();
                let mut kids = node.kids.iter();
                $(
                    if let Some(kid) = kids.next() {
                        value.$field = $crate::frozen::Value::read(source, &kid.node, pos.member(kid))?;
                    }
                )*
                Ok(value)
            }

            fn measure(
                &self,
                m: &mut $crate::frozen::Measure,
                node: &mut $crate::frozen::Node,
                base: u64,
            ) {
                let mut end = 0;
                let outermost = m.begin();
                let mut kids = node.kids.iter_mut();
                $(
                    if let Some(kid) = kids.next() {
                        if !(outermost && m.encoded($id, &mut kid.node, base)) {
                            $crate::frozen::Value::measure(&self.$field, m, &mut kid.node, base);
                        }
                        end = $crate::frozen::Measure::place(kid, end);
                    }
                )*
                node.grow(end, m);
            }

            fn write(
                &self,
                sink: &mut $crate::frozen::Sink,
                node: &$crate::frozen::Node,
                pos: $crate::frozen::Pos,
            ) {
                let outermost = sink.begin();
                let mut kids = node.kids.iter();
                $(
                    if let Some(kid) = kids.next()
                        && kid.node.bits > 0
                        && !(outermost && sink.encoded($id, &kid.node, pos.member(kid)))
                    {
                        $crate::frozen::Value::write(&self.$field, sink, &kid.node, pos.member(kid));
                    }
                )*
            }
        }
    };
}
pub(crate) use frozen_struct;
