//! Decisions about single entries from outside, for example by a script.

use std::cmp::Ordering;
use std::fmt::Debug;

use redwarfs_codec::ContentKind;

use crate::category::Category;
use crate::error::{Error, Result};
use crate::source::Meta;

/// Is asked about every entry while the source is listed.
///
/// The calls come from one thread, in an order that depends only on the source. First come the entries
/// of a directory by name, then its subdirectories one after the other, each with everything below. So
/// an implementation may have a state and still be deterministic. There is no call for the root, for
/// entries that options leave out, and for entries below an excluded directory.
pub trait EntryHook: Debug + Send + Sync {
    /// The treatment of an entry. Called once for each.
    ///
    /// # Errors
    /// Any error ends the build; [`Error::Hook`] is meant for those of the hook itself, and
    /// [`Error::Interrupted`] for a stop flag that it looks at.
    fn entry(&self, entry: &HookEntry<'_>) -> Result<Decision>;

    /// Bytes of memory that it holds when the listing is over.
    fn memory(&self) -> u64 {
        0
    }
}

/// An entry as the source has it: owners, modes and times are not yet changed by options.
#[derive(Debug, Clone, Copy)]
pub struct HookEntry<'a> {
    /// Path below the root, components joined by `/`.
    pub path: &'a [u8],
    /// Attributes.
    pub meta: &'a Meta,
}

/// What becomes of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether it is stored. A directory that is not is not read either.
    pub keep: bool,
    /// The category of a regular file as a whole, instead of what categorizers say. Categories whose
    /// content has a special form ([`Category::content_kind`]) end the build.
    pub category: Option<Category>,
    /// The place of a regular file under [`Order::Script`](crate::Order::Script).
    pub key: Option<OrderKey>,
}

impl Default for Decision {
    /// Keeps the entry.
    fn default() -> Self {
        Self {
            keep: true,
            category: None,
            key: None,
        }
    }
}

/// What files are sorted by: numbers before strings, numbers by value, strings by their bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct OrderKey(Key);

#[derive(Debug, Clone, PartialEq)]
enum Key {
    Integer(i64),
    /// Not an integer of 64 bits, and not NaN.
    Float(f64),
    Bytes(Box<[u8]>),
}

impl OrderKey {
    /// A whole number.
    #[must_use]
    pub fn integer(value: i64) -> Self {
        Self(Key::Integer(value))
    }

    /// A number; `None` if it is not a number.
    #[must_use]
    pub fn float(value: f64) -> Option<Self> {
        // Whole numbers have one representation, so that they compare equal.
        if value.trunc() == value && (-TWO_63..TWO_63).contains(&value) {
            return Some(Self::integer(value as i64));
        }
        (!value.is_nan()).then_some(Self(Key::Float(value)))
    }

    /// A string of bytes.
    #[must_use]
    pub fn bytes(value: &[u8]) -> Self {
        Self(Key::Bytes(value.into()))
    }

    /// Bytes that it owns.
    fn heap(&self) -> u64 {
        match &self.0 {
            // The allocator's share, roughly.
            Key::Bytes(bytes) => bytes.len() as u64 + 16,
            Key::Integer(_) | Key::Float(_) => 0,
        }
    }
}

const TWO_63: f64 = 9_223_372_036_854_775_808.0;

/// Compares without rounding.
fn integer_with_float(a: i64, b: f64) -> Ordering {
    if b >= TWO_63 {
        Ordering::Less
    } else if b < -TWO_63 {
        Ordering::Greater
    } else {
        let whole = b.trunc();
        a.cmp(&(whole as i64))
            .then_with(|| 0.0f64.total_cmp(&(b - whole)))
    }
}

impl Eq for OrderKey {}

impl Ord for OrderKey {
    fn cmp(&self, other: &Self) -> Ordering {
        match (&self.0, &other.0) {
            (Key::Integer(a), Key::Integer(b)) => a.cmp(b),
            (Key::Float(a), Key::Float(b)) => a.total_cmp(b),
            (Key::Integer(a), Key::Float(b)) => integer_with_float(*a, *b),
            (Key::Float(a), Key::Integer(b)) => integer_with_float(*b, *a).reverse(),
            (Key::Bytes(a), Key::Bytes(b)) => a.cmp(b),
            (_, Key::Bytes(_)) => Ordering::Less,
            (Key::Bytes(_), _) => Ordering::Greater,
        }
    }
}

impl PartialOrd for OrderKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What a hook said about files, by their numbers. For each file up to the last one with a category or
/// key: 2 bytes if there are categories, and 24 bytes and the bytes of strings if there are keys.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    distinct: Vec<Category>,
    /// 0 for none, or one more than an index into `distinct`.
    categories: Vec<u16>,
    keys: Vec<Option<OrderKey>>,
}

impl Marks {
    /// Adds the results for one name of a file: the first category counts, and the smallest key.
    pub(crate) fn add(&mut self, file: u32, decision: Decision) -> Result<()> {
        let at = file as usize;
        if let Some(category) = decision.category {
            let kind = category.content_kind();
            if kind != ContentKind::Bytes {
                return Err(Error::Hook(format!(
                    "category '{category}' cannot be chosen: it holds {kind} that its categorizer finds"
                )));
            }
            let id = self.number(category)?;
            let place = slot(&mut self.categories, at);
            if *place == 0 {
                *place = id;
            }
        }
        if let Some(key) = decision.key {
            let place = slot(&mut self.keys, at);
            if place.as_ref().is_none_or(|known| key < *known) {
                *place = Some(key);
            }
        }
        Ok(())
    }

    fn number(&mut self, category: Category) -> Result<u16> {
        let known = self.distinct.iter().position(|c| *c == category);
        let at = known.unwrap_or_else(|| {
            self.distinct.push(category);
            self.distinct.len() - 1
        });
        u16::try_from(at + 1)
            .ok()
            .filter(|&id| usize::from(id) <= MAX_CATEGORIES)
            .ok_or_else(|| Error::Limit(format!("more than {MAX_CATEGORIES} categories")))
    }

    /// Whether any file has a category.
    pub(crate) fn has_categories(&self) -> bool {
        !self.distinct.is_empty()
    }

    /// The category of a content with these files: the category of the first file that has one.
    pub(crate) fn category(&self, files: &[u32]) -> Option<Category> {
        files.iter().find_map(|&file| {
            let id = *self.categories.get(file as usize)?;
            let at = usize::from(id).checked_sub(1)?;
            self.distinct.get(at).copied()
        })
    }

    /// The smallest key of these files.
    pub(crate) fn key(&self, files: &[u32]) -> Option<&OrderKey> {
        let keys = files.iter().filter_map(|&f| self.keys.get(f as usize));
        keys.flatten().min()
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        let heap: u64 = self.keys.iter().flatten().map(OrderKey::heap).sum();
        let keys = self.keys.capacity() * size_of::<Option<OrderKey>>();
        heap + (keys + self.categories.capacity() * size_of::<u16>()) as u64
    }
}

/// Categories that a hook may give. Each is a stream with separate blocks.
const MAX_CATEGORIES: usize = 4096;

fn slot<T: Default + Clone>(list: &mut Vec<T>, at: usize) -> &mut T {
    if list.len() <= at {
        list.resize(at + 1, T::default());
    }
    &mut list[at]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float(value: f64) -> OrderKey {
        OrderKey::float(value).expect("a number")
    }

    #[test]
    fn keys_have_one_order() {
        let sorted = [
            float(f64::NEG_INFINITY),
            float(-1e300),
            OrderKey::integer(i64::MIN),
            float(-1.5),
            OrderKey::integer(-1),
            float(-0.25),
            float(-0.0),
            float(1e-300),
            float(0.5),
            OrderKey::integer(1),
            OrderKey::integer((1 << 53) + 1),
            OrderKey::integer(i64::MAX),
            float(TWO_63),
            float(f64::INFINITY),
            OrderKey::bytes(b""),
            OrderKey::bytes(b"10"),
            OrderKey::bytes(b"9"),
            OrderKey::bytes(b"\xff"),
        ];
        for (i, a) in sorted.iter().enumerate() {
            for (j, b) in sorted.iter().enumerate() {
                assert_eq!(a.cmp(b), i.cmp(&j), "{a:?} {b:?}");
            }
        }
        assert_eq!(float(-0.0), OrderKey::integer(0));
        assert_eq!(float(7.0), OrderKey::integer(7));
        assert!(OrderKey::float(f64::NAN).is_none());
    }

    #[test]
    fn names_of_a_file_share_their_marks() {
        let say = |category: Option<&str>, key: Option<i64>| Decision {
            category: category.map(|name| Category::named(name).expect("a name")),
            key: key.map(OrderKey::integer),
            ..Decision::default()
        };
        let mut marks = Marks::default();
        assert!(!marks.has_categories());
        marks.add(1, say(None, Some(5))).unwrap();
        marks.add(1, say(Some("b"), Some(3))).unwrap();
        marks.add(1, say(Some("a"), Some(4))).unwrap();
        marks.add(3, say(Some("a"), None)).unwrap();
        assert_eq!(marks.category(&[0, 2, 9]), None);
        assert_eq!(marks.key(&[0, 2, 3, 9]), None);
        let b = Category::named("b").ok();
        assert_eq!(marks.category(&[0, 1, 3]), b);
        assert_eq!(marks.category(&[3]), Category::named("a").ok());
        assert_eq!(marks.key(&[0, 1]), Some(&OrderKey::integer(3)));
        assert!(marks.has_categories() && marks.memory() >= 2 * 24 + 4 * 2);
    }

    #[test]
    fn there_are_not_any_number_of_categories() {
        let mut marks = Marks::default();
        let mut say = |i: usize| {
            marks.add(
                0,
                Decision {
                    category: Category::named(&format!("c{i}")).ok(),
                    ..Decision::default()
                },
            )
        };
        for i in 0..MAX_CATEGORIES {
            say(i).unwrap();
        }
        assert!(matches!(say(MAX_CATEGORIES), Err(Error::Limit(_))));
    }
}
