//! How layers of containers and of overlayfs name what they remove.

/// Names that begin so are whiteouts in layers of containers.
const WHITEOUT: &[u8] = b".wh.";
/// The rest of the name of the entry that makes a directory opaque.
const OPAQUE: &[u8] = b".wh..opq";
/// The attribute by which overlayfs knows an opaque directory; its value is `y`.
pub const OPAQUE_ATTRIBUTE: &[u8] = b"trusted.overlay.opaque";

/// The meaning of the name of an entry in a layer of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerName<'a> {
    /// An entry like others.
    Entry,
    /// It removes the entry of this name in older layers. The name is empty in damaged layers.
    Whiteout(&'a [u8]),
    /// It removes all entries that older layers have in its directory.
    Opaque,
    /// It is for AUFS and has no meaning.
    Internal,
}

impl<'a> LayerName<'a> {
    /// The meaning of `name`, which has no slash.
    #[must_use]
    pub fn of(name: &'a [u8]) -> Self {
        match name.strip_prefix(WHITEOUT) {
            None => Self::Entry,
            Some(OPAQUE) => Self::Opaque,
            Some(rest) if rest.starts_with(WHITEOUT) => Self::Internal,
            Some(rest) => Self::Whiteout(rest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_whiteouts() {
        for (name, want) in [
            (&b"a"[..], LayerName::Entry),
            (b".wh", LayerName::Entry),
            (b".wh.", LayerName::Whiteout(b"")),
            (b".wh.a", LayerName::Whiteout(b"a")),
            (b".wh..wh..opq", LayerName::Opaque),
            (b".wh..wh.plnk", LayerName::Internal),
        ] {
            assert_eq!(LayerName::of(name), want);
        }
    }
}
