//! Walking frozen values without making owned ones: what dumps and exports need.

use std::borrow::Cow;

use super::bits::BitSource;
use super::containers::{Area, element, list_kids, locate};
use super::describe::{MemberInfo, StructInfo, TypeInfo};
use super::value::{Kid, Node, Pos};
use crate::error::{Error, Result};

/// A value at its place in the data. Copying it costs nothing, and so does walking: lists are never
/// expanded, so memory does not depend on the data.
#[derive(Debug, Clone, Copy)]
pub struct Item<'a> {
    source: BitSource<'a>,
    node: &'a Node,
    pos: Pos,
    ty: &'a TypeInfo,
}

fn unsuitable() -> Error {
    Error::corrupt("metadata type without that member")
}

impl<'a> Item<'a> {
    /// The root value of `data`; `node` is the result of resolving a schema against `ty`.
    pub(crate) fn root(source: BitSource<'a>, node: &'a Node, ty: &'a TypeInfo) -> Self {
        Self {
            source,
            node,
            pos: Pos::default(),
            ty,
        }
    }

    fn inside(&self, kid: &'a Kid, ty: &'a TypeInfo) -> Self {
        Self {
            source: self.source,
            node: &kid.node,
            pos: self.pos.member(kid),
            ty,
        }
    }

    /// The type.
    #[must_use]
    pub fn ty(&self) -> &'a TypeInfo {
        self.ty
    }

    /// Where the value and its members lie.
    #[must_use]
    pub fn node(&self) -> &'a Node {
        self.node
    }

    /// The value of an integer; 0 or 1 of a boolean.
    ///
    /// # Errors
    /// `Corrupt` if it lies outside of the data.
    pub fn number(&self) -> Result<u64> {
        let width = match self.ty {
            TypeInfo::Bool => self.node.bits.min(1),
            _ => self.node.bits.min(64),
        };
        self.source.load(self.pos.address(), width)
    }

    /// The bytes of a string.
    ///
    /// # Errors
    /// `Corrupt` if they lie outside of the data.
    pub fn bytes(&self) -> Result<Cow<'a, [u8]>> {
        let area = locate(&self.source, self.node, self.pos)?;
        if area.count == 0 {
            return Ok(Cow::Borrowed(&[]));
        }
        self.source.bytes(area.start, area.count)
    }

    /// The bytes of a string as a range of the data, `None` if it is empty.
    ///
    /// # Errors
    /// `Corrupt` if they lie outside of the data.
    pub fn byte_range(&self) -> Result<Option<std::ops::Range<u64>>> {
        let area = locate(&self.source, self.node, self.pos)?;
        Ok((area.count > 0).then(|| area.start..area.start.saturating_add(area.count)))
    }

    /// The value of an optional, if it is set.
    ///
    /// # Errors
    /// `Corrupt` if this is no optional, or it lies outside of the data.
    pub fn optional(&self) -> Result<Option<Self>> {
        let (TypeInfo::Optional(inner), [isset, value]) = (self.ty, &self.node.kids[..]) else {
            return Err(unsuitable());
        };
        let set = self
            .source
            .load(self.pos.member(isset).address(), isset.node.bits.min(1))?;
        Ok((set != 0).then(|| self.inside(value, inner)))
    }

    /// Key and value of an element of a map.
    ///
    /// # Errors
    /// `Corrupt` if this is none.
    pub fn pair(&self) -> Result<(Self, Self)> {
        let (TypeInfo::Pair(types), [first, second]) = (self.ty, &self.node.kids[..]) else {
            return Err(unsuitable());
        };
        Ok((self.inside(first, &types.0), self.inside(second, &types.1)))
    }

    /// The members of a struct, in packing order.
    ///
    /// # Errors
    /// `Corrupt` if this is no struct.
    pub fn members(&self) -> Result<impl Iterator<Item = (&'a MemberInfo, Self)> + use<'a>> {
        let TypeInfo::Struct(StructInfo { members, .. }) = self.ty else {
            return Err(unsuitable());
        };
        let this = *self;
        Ok(members
            .iter()
            .zip(&self.node.kids)
            .map(move |(info, kid)| (info, this.inside(kid, &info.ty))))
    }

    /// The member of a struct with this id.
    ///
    /// # Errors
    /// `Corrupt` if there is none.
    pub fn member(&self, id: i16) -> Result<Self> {
        self.members()?
            .find(|(info, _)| info.id == id)
            .map(|(_, item)| item)
            .ok_or_else(unsuitable)
    }

    /// The elements of a list, set or map.
    ///
    /// # Errors
    /// `Corrupt` if this is none or the elements lie outside of the data, `Limit` if there are
    /// implausibly many without content.
    pub fn list(&self) -> Result<ItemList<'a>> {
        let (TypeInfo::List(ty) | TypeInfo::Set(ty) | TypeInfo::Map(ty)) = self.ty else {
            return Err(unsuitable());
        };
        let Some((_, _, Some(item))) = list_kids(self.node) else {
            return Err(unsuitable());
        };
        Ok(ItemList {
            source: self.source,
            node: &item.node,
            area: locate(&self.source, self.node, self.pos)?,
            ty,
        })
    }
}

/// The elements of a list, set or map.
#[derive(Debug, Clone, Copy)]
pub struct ItemList<'a> {
    source: BitSource<'a>,
    node: &'a Node,
    area: Area,
    ty: &'a TypeInfo,
}

impl<'a> ItemList<'a> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.area.count
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.area.count == 0
    }

    /// Type of the elements.
    #[must_use]
    pub fn ty(&self) -> &'a TypeInfo {
        self.ty
    }

    /// Where an element and its members lie.
    #[must_use]
    pub fn node(&self) -> &'a Node {
        self.node
    }

    /// The bytes of the data that the elements occupy, without the strings and lists that they
    /// refer to; empty if they occupy none.
    #[must_use]
    pub fn range(&self) -> std::ops::Range<u64> {
        let bytes = if self.node.size > 0 {
            self.area.count.saturating_mul(u64::from(self.node.size))
        } else {
            self.area
                .count
                .saturating_mul(u64::from(self.node.bits))
                .div_ceil(8)
        };
        if bytes == 0 {
            return 0..0;
        }
        self.area.start..self.area.start.saturating_add(bytes)
    }

    /// Element `i`, if there is one.
    #[must_use]
    pub fn get(&self, i: u64) -> Option<Item<'a>> {
        (i < self.area.count).then(|| Item {
            source: self.source,
            node: self.node,
            pos: element(self.area, self.node, i),
            ty: self.ty,
        })
    }

    /// All elements.
    pub fn iter(&self) -> impl Iterator<Item = Item<'a>> + use<'a> {
        let this = *self;
        (0..self.area.count).filter_map(move |i| this.get(i))
    }
}
