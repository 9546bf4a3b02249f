//! What types consist of, for everything that shows metadata instead of using it.

use std::fmt;

/// A type of the type tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TypeInfo {
    /// An unsigned integer of at most this many bits: 8, 32 or 64.
    Unsigned(u32),
    /// True or false.
    Bool,
    /// A byte string.
    Bytes,
    /// A value or nothing.
    Optional(Box<TypeInfo>),
    /// Elements of one type.
    List(Box<TypeInfo>),
    /// Like a list, in ascending order.
    Set(Box<TypeInfo>),
    /// Like a list, of [`TypeInfo::Pair`]s with ascending keys.
    Map(Box<TypeInfo>),
    /// Key and value of a map.
    Pair(Box<(TypeInfo, TypeInfo)>),
    /// Members with names.
    Struct(StructInfo),
}

/// A struct.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StructInfo {
    /// Name in the format description.
    pub name: &'static str,
    /// Members in packing order.
    pub members: Vec<MemberInfo>,
}

/// A member of a struct.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberInfo {
    /// Id in the schema.
    pub id: i16,
    /// Name in the format description.
    pub name: &'static str,
    /// Type.
    pub ty: TypeInfo,
}

impl fmt::Display for TypeInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(bits) => write!(f, "u{bits}"),
            Self::Bool => f.write_str("bool"),
            Self::Bytes => f.write_str("string"),
            Self::Optional(inner) => write!(f, "optional<{inner}>"),
            Self::List(inner) => write!(f, "list<{inner}>"),
            Self::Set(inner) => write!(f, "set<{inner}>"),
            Self::Map(pair) => match pair.as_ref() {
                Self::Pair(types) => write!(f, "map<{}, {}>", types.0, types.1),
                other => write!(f, "map<{other}>"),
            },
            Self::Pair(types) => write!(f, "pair<{}, {}>", types.0, types.1),
            Self::Struct(info) => f.write_str(info.name),
        }
    }
}
