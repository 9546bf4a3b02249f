//! Extended attributes of entries. Images do not hold them, so they are only counted.

/// Kinds of extended attributes that an entry has. Attributes that a security policy or a network file
/// system gives to every file do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExtendedAttributes {
    /// Access control lists, also those for new entries of a directory.
    pub acl: bool,
    /// File capabilities.
    pub capability: bool,
    /// Other attributes.
    pub other: bool,
}

impl ExtendedAttributes {
    /// Whether there are any.
    #[must_use]
    pub fn any(self) -> bool {
        self.acl || self.capability || self.other
    }
}
