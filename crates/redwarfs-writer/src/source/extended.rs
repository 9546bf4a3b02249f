//! Extended attributes, birth times and flags of entries.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use redwarfs_format::metadata::Timestamp;

/// Names that are never stored: those that a mount of an image answers itself, and those that a file
/// system makes up for every file.
const MADE_UP: [&[u8]; 8] = [
    b"user.dwarfs.",
    b"system.",
    b"afs.",
    b"ceph.",
    b"glusterfs.",
    b"lustre.",
    b"trusted.gfid",
    b"trusted.glusterfs.",
];

/// Exceptions of these.
const LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Memory of an attribute beyond its bytes.
const XATTR: usize = 64;
/// So many attributes are searched one by one.
const FEW: usize = 16;

/// An extended attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xattr {
    /// Full name, such as `user.comment`.
    pub name: Vec<u8>,
    /// Value.
    pub value: Vec<u8>,
}

/// Extended attributes, birth time and flags of an entry. An entry without any takes 8 bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExtendedAttributes(Option<Box<Inner>>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Inner {
    xattrs: Vec<Xattr>,
    /// Their places by name, if there are more than [`FEW`].
    places: HashMap<Vec<u8>, usize>,
    birth: Option<Timestamp>,
    flags: u32,
    unreadable: Vec<Vec<u8>>,
    left_out: u64,
}

impl ExtendedAttributes {
    fn inner(&mut self) -> &mut Inner {
        self.0.get_or_insert_default()
    }

    /// The extended attributes, in any order. No name is there twice.
    #[must_use]
    pub fn xattrs(&self) -> &[Xattr] {
        self.0.as_ref().map_or(&[], |inner| &inner.xattrs)
    }

    /// Adds an extended attribute, or replaces the value of that name.
    pub fn set(&mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        let (name, value) = (name.into(), value.into());
        let Inner { xattrs, places, .. } = self.inner();
        let place = match xattrs.len() {
            0..=FEW => xattrs.iter().position(|xattr| xattr.name == name),
            _ => places.get(&name).copied(),
        };
        if let Some(xattr) = place.and_then(|place| xattrs.get_mut(place)) {
            xattr.value = value;
            return;
        }
        match xattrs.len() {
            0..FEW => {}
            FEW => {
                let names = xattrs.iter().map(|xattr| xattr.name.clone());
                *places = names.chain([name.clone()]).zip(0..).collect();
            }
            place => {
                places.insert(name.clone(), place);
            }
        }
        xattrs.push(Xattr { name, value });
    }

    /// Removes the extended attributes whose names `keep` does not accept.
    pub fn retain(&mut self, keep: impl Fn(&[u8]) -> bool) {
        let Some(inner) = &mut self.0 else {
            return;
        };
        inner.xattrs.retain(|xattr| keep(&xattr.name));
        inner.places.clear();
        if inner.xattrs.len() > FEW {
            let names = inner.xattrs.iter().map(|xattr| xattr.name.clone());
            inner.places = names.zip(0..).collect();
        }
    }

    /// Birth time, if it is known.
    #[must_use]
    pub fn birth(&self) -> Option<Timestamp> {
        self.0.as_ref().and_then(|inner| inner.birth)
    }

    /// Sets the birth time.
    pub fn set_birth(&mut self, birth: Timestamp) {
        self.inner().birth = Some(birth);
    }

    /// Flags as `FS_IOC_GETFLAGS` of Linux returns them.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.0.as_ref().map_or(0, |inner| inner.flags)
    }

    /// Sets the flags.
    pub fn set_flags(&mut self, flags: u32) {
        if flags != 0 || self.0.is_some() {
            self.inner().flags = flags;
        }
    }

    /// Names of attributes that could not be read. An empty name stands for the list of names.
    #[must_use]
    pub fn unreadable(&self) -> &[Vec<u8>] {
        self.0.as_ref().map_or(&[], |inner| &inner.unreadable)
    }

    /// Adds the name of an attribute that could not be read.
    pub fn add_unreadable(&mut self, name: impl Into<Vec<u8>>) {
        self.inner().unreadable.push(name.into());
    }

    /// Number of attributes that the source has left out because it was told to.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.0.as_ref().map_or(0, |inner| inner.left_out)
    }

    /// Counts an attribute that is left out, unless no image can have it.
    pub fn leave_out(&mut self, name: &[u8]) {
        if can_be_stored(name) {
            self.inner().left_out += 1;
        }
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.0.as_ref().map_or(0, |inner| {
            let bytes = |xattr: &Xattr| XATTR + xattr.name.len() + xattr.value.len();
            let lost = |name: &Vec<u8>| XATTR + name.len();
            let place = |name: &Vec<u8>| XATTR + name.len();
            size_of::<Inner>()
                + inner.xattrs.iter().map(bytes).sum::<usize>()
                + inner.places.keys().map(place).sum::<usize>()
                + inner.unreadable.iter().map(lost).sum::<usize>()
        })
    }
}

/// Selects extended attributes by name.
#[derive(Clone)]
pub struct XattrFilter(Kind);

/// Whether an attribute of a name is selected.
type ByName = dyn Fn(&[u8]) -> bool + Send + Sync;

#[derive(Clone)]
enum Kind {
    None,
    All,
    Some(Arc<ByName>),
}

impl XattrFilter {
    /// Nothing.
    #[must_use]
    pub fn none() -> Self {
        Self(Kind::None)
    }

    /// Everything that can be stored.
    #[must_use]
    pub fn all() -> Self {
        Self(Kind::All)
    }

    /// Everything that can be stored and for whose full name the function returns true. It must be a
    /// pure function.
    pub fn new(f: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> Self {
        Self(Kind::Some(Arc::new(f)))
    }

    /// Whether nothing is selected, whatever its name is.
    #[must_use]
    pub fn is_none(&self) -> bool {
        matches!(self.0, Kind::None)
    }

    /// Whether everything is selected that can be stored.
    #[must_use]
    pub fn is_all(&self) -> bool {
        matches!(self.0, Kind::All)
    }

    /// Whether an attribute of this name is stored.
    #[must_use]
    pub fn keeps(&self, name: &[u8]) -> bool {
        can_be_stored(name)
            && match &self.0 {
                Kind::None => false,
                Kind::All => true,
                Kind::Some(f) => f(name),
            }
    }
}

impl Default for XattrFilter {
    /// Everything that can be stored.
    fn default() -> Self {
        Self::all()
    }
}

impl fmt::Debug for XattrFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::None => "XattrFilter(none)",
            Kind::All => "XattrFilter(all)",
            Kind::Some(_) => "XattrFilter(..)",
        })
    }
}

/// Whether an image may have an attribute of this name. Names that a mount of an image answers itself,
/// and names that a file system makes up for every file, are never stored.
#[must_use]
pub fn can_be_stored(name: &[u8]) -> bool {
    LISTS.contains(&name) || !MADE_UP.iter().any(|made_up| name.starts_with(made_up))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_never_stored() {
        let all = XattrFilter::all();
        for name in [
            "user.comment",
            "user.dwarfs",
            "security.selinux",
            "system.posix_acl_access",
            "system.posix_acl_default",
            "trusted.overlay.opaque",
            "btrfs.compression",
        ] {
            assert!(all.keeps(name.as_bytes()), "{name}");
        }
        for name in [
            "user.dwarfs.driver.pid",
            "system.nfs4_acl",
            "system.dwarfs.anything",
            "ceph.dir.layout",
            "trusted.gfid",
        ] {
            assert!(!all.keeps(name.as_bytes()), "{name}");
        }
        assert!(!XattrFilter::none().keeps(b"user.a"));
        let some = XattrFilter::new(|name| name.ends_with(b"a"));
        assert!(some.keeps(b"user.a") && !some.keeps(b"user.b") && !some.keeps(b"system.a"));
    }

    #[test]
    fn nothing_takes_nothing() {
        let mut extended = ExtendedAttributes::default();
        extended.set_flags(0);
        let pointer = size_of::<usize>();
        assert_eq!((size_of_val(&extended), extended.memory()), (pointer, 0));
        extended.set("user.a", "1");
        extended.set("user.b", "2");
        extended.set("user.a", "333");
        let values = extended.xattrs().iter().map(|xattr| &xattr.value[..]);
        assert_eq!(values.collect::<Vec<_>>(), [&b"333"[..], b"2"]);
        assert!(extended.memory() > 16);
    }

    #[test]
    fn many_names_are_found_again() {
        let name = |i: u32| format!("user.{}", i * 7919 % 20_011);
        for many in [FEW as u32 - 1, FEW as u32, FEW as u32 + 1, 20_000] {
            let mut extended = ExtendedAttributes::default();
            for round in ["old", "new"] {
                for i in 0..many {
                    extended.set(name(i), round);
                }
            }
            let found = extended.xattrs().iter().zip(0..);
            let right = |(xattr, i): (&Xattr, u32)| {
                xattr.name == name(i).as_bytes() && xattr.value == b"new"
            };
            assert_eq!(
                found.map(right).filter(|&right| right).count(),
                many as usize
            );
            assert_eq!(extended.xattrs().len(), many as usize);
        }
    }
}
