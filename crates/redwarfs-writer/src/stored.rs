//! What an image stores of the attributes of an entry: options may ask for other ones than the source has.

use redwarfs_format::metadata::Timestamp;

use crate::options::{BuildOptions, IdTransform};
use crate::source::Meta;
use crate::source::extended::ExtendedAttributes;
use crate::xattrs;

/// Mode with the type, owner and group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Attributes {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl BuildOptions {
    pub(crate) fn attributes(&self, meta: &Meta) -> Attributes {
        let mut mode = meta.kind.mode_bits() | (meta.permissions & 0o7777);
        if let Some(chmod) = &self.chmod {
            mode = chmod.apply(mode);
        }
        let mapped = |map: &Option<IdTransform>, id| map.as_ref().map_or(id, |map| map.apply(id));
        Attributes {
            mode,
            uid: (self.set_owner).unwrap_or_else(|| mapped(&self.map_owner, meta.uid)),
            gid: (self.set_group).unwrap_or_else(|| mapped(&self.map_group, meta.gid)),
        }
    }

    /// A time as it is stored, before it is rounded.
    pub(crate) fn time(&self, time: Timestamp) -> Timestamp {
        if let Some(sec) = self.set_time {
            return Timestamp { sec, nsec: 0 };
        }
        let latest = self.latest_time.map(|sec| Timestamp { sec, nsec: 0 });
        match latest {
            Some(latest) if (latest.sec, latest.nsec) < (time.sec, time.nsec) => latest,
            _ => time,
        }
    }

    /// The attributes that a build with these options stores for an entry: permissions, owners, times and extended
    /// attributes. Times are not rounded.
    #[must_use]
    pub fn stored_meta(&self, meta: &Meta) -> Meta {
        let attributes = self.attributes(meta);
        let mut extended = ExtendedAttributes::default();
        for (name, value) in xattrs::stored(&meta.extended, attributes.mode, self) {
            extended.set(name, value);
        }
        if let Some(birth) = meta.extended.birth() {
            extended.set_birth(birth);
        }
        extended.set_flags(meta.extended.flags());
        Meta {
            permissions: attributes.mode & 0o7777,
            uid: attributes.uid,
            gid: attributes.gid,
            mtime: self.time(meta.mtime),
            atime: self.time(meta.atime),
            ctime: self.time(meta.ctime),
            extended,
            target: meta.target.clone(),
            ..*meta
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::FileType;
    use crate::source::extended::Xattr;

    #[test]
    fn options_change_attributes() {
        let mut extended = ExtendedAttributes::default();
        extended.set("user.a", "1");
        extended.set("user.b", "2");
        let time = |sec| Timestamp { sec, nsec: 5 };
        let meta = Meta {
            kind: FileType::Regular,
            permissions: 0o640,
            uid: 1,
            gid: 2,
            rdev: 0,
            size: 3,
            allocated: 3,
            nlink: 1,
            identity: (0, 0),
            atime: time(50),
            mtime: time(150),
            ctime: time(50),
            target: None,
            extended,
        };
        let mut options = BuildOptions::level(1);
        assert_eq!(options.stored_meta(&meta), meta);
        options.set_owner = Some(7);
        options.latest_time = Some(100);
        options.set_xattrs = vec![Xattr {
            name: b"user.b".to_vec(),
            value: b"3".to_vec(),
        }];
        let stored = options.stored_meta(&meta);
        assert_eq!((stored.uid, stored.gid, stored.permissions), (7, 2, 0o640));
        assert_eq!((stored.mtime.sec, stored.mtime.nsec), (100, 0));
        assert_eq!(stored.atime, meta.atime);
        let values = stored.extended.xattrs().iter().map(|x| &x.value[..]);
        assert_eq!(values.collect::<Vec<_>>(), [b"1", b"3"]);
        options.set_time = Some(9);
        assert_eq!(
            options.stored_meta(&meta).ctime,
            Timestamp { sec: 9, nsec: 0 }
        );
    }
}
