//! Frozen2: the bit-packed encoding of the METADATA_V2 section (format chapter 03).
//!
//! A value of a fixed type tree is stored as bits; a [`Schema`] says where each member lies and
//! how wide it is. The type tree itself is described once, by implementations of [`Value`]
//! (structs get theirs from the `frozen_struct!` macro), and serves three purposes:
//!
//! * [`Value::shape`] resolves a schema against the type: the result is a tree of [`Node`]s with
//!   the position and width of every member, so that reading needs no further look-ups;
//! * [`Value::read`] makes an owned value from bits;
//! * [`Value::measure`] and [`Value::write`] freeze one with minimal widths (section 6.3).

mod bits;
mod bytes;
mod containers;
mod describe;
mod encoded;
mod freezer;
mod item;
mod schema;
mod value;

pub use bits::{BitSource, load_bits};
pub use bytes::{FrozenBytes, LazyBytes};
pub use describe::{MemberInfo, StructInfo, TypeInfo};
pub use encoded::{EncodedList, EncodedMembers};
pub use freezer::{Frozen, Table, Widths, freeze_value, freeze_with};
pub use item::{Item, ItemList};
pub use schema::{Field, Layout, Schema};
pub use value::{Kid, Measure, Node, Pos, Shaper, Sink, Value};

pub(crate) use containers::{element, list_of, lists, locate};
pub(crate) use value::frozen_struct;
