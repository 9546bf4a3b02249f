//! Tables of extended attributes and file flags with any numbers in them.

use redwarfs_format::InodeNo;
use redwarfs_format::metadata::{
    Chunk, DirEntry, Directory, FileFlags, FsOptions, InodeData, Metadata, MetadataView, XattrPair,
    XattrTables, XattrValue, freeze, thaw,
};

/// Files in the tree that has the attributes.
const FILES: u32 = 6;

/// A root with a few empty files.
fn tree() -> Metadata {
    let inode = |mode_index| InodeData {
        mode_index,
        ..InodeData::default()
    };
    let mut inodes = vec![inode(0)];
    inodes.extend(vec![inode(1); FILES as usize]);
    let directory = |first_entry| Directory {
        first_entry,
        ..Directory::default()
    };
    let entry = |inode_num: u32| DirEntry {
        name_index: inode_num.saturating_sub(1),
        inode_num,
    };
    Metadata {
        directories: vec![directory(1), directory(FILES + 1)],
        inodes,
        chunk_table: vec![0; FILES as usize + 1],
        modes: vec![0o040_755, 0o100_644],
        names: (0..FILES).map(|n| n.to_string().into_bytes()).collect(),
        devices: Some(Vec::new()),
        dir_entries: Some((0..=FILES).map(entry).collect()),
        options: Some(FsOptions {
            has_btime: true,
            subsecond_resolution_nsec_multiplier: Some(1),
            ..FsOptions::default()
        }),
        block_size: 1 << 16,
        ..Metadata::default()
    }
}

/// Takes numbers from bytes; zeros at the end.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// Small numbers in a byte, and with 255 any number behind it.
    fn number(&mut self) -> u32 {
        match self.byte() {
            255 => (0..4).fold(0, |n, _| n << 8 | u32::from(self.byte())),
            small => small.into(),
        }
    }

    fn list(&mut self) -> Vec<u32> {
        (0..self.byte() % 16).map(|_| self.number()).collect()
    }

    fn string(&mut self) -> Vec<u8> {
        (0..self.byte() % 16).map(|_| self.byte()).collect()
    }
}

/// Stores tables made of the bytes, opens and checks them, and reads all attributes.
pub fn xattrs(data: &[u8]) {
    let mut n = Numbers(data);
    let mut metadata = tree();
    for inode in &mut metadata.inodes {
        inode.btime_subsec = u64::from(n.number());
    }
    metadata.xattrs = Some(XattrTables {
        version: 1,
        scope: n.number(),
        inodes: n.list(),
        sets: n.list(),
        set_start: n.list(),
        pairs: (0..n.byte() % 16)
            .map(|_| XattrPair {
                name: n.number(),
                value: n.number(),
            })
            .collect(),
        names: (0..n.byte() % 8).map(|_| n.string()).collect(),
        values: (0..n.byte() % 8)
            .map(|_| XattrValue {
                data: n.string(),
                first_chunk: n.number(),
                chunk_count: n.number(),
            })
            .collect(),
        chunks: (0..n.byte() % 8)
            .map(|_| Chunk {
                block: n.number(),
                offset: n.number(),
                size: n.number(),
            })
            .collect(),
    });
    metadata.file_flags = Some(FileFlags {
        version: 1,
        inodes: n.list(),
        indices: n.list(),
        values: n.list(),
    });
    let frozen = freeze(&metadata).expect("small tables can be stored");
    let again = thaw(&frozen.schema, &frozen.data).expect("what was stored can be read");
    assert!(again == metadata, "tables do not round trip");
    let ignoring = MetadataView::parse_ignoring_xattrs(&frozen.schema, frozen.data.clone());
    assert!(ignoring.is_ok(), "other tables depend on these");
    if let Ok(view) = MetadataView::parse(&frozen.schema, frozen.data) {
        let checked = view.check(4, None).is_ok();
        visit(&view, checked);
    }
}

/// Reads all attributes of all inodes. Nothing fails after the check.
pub(super) fn visit(view: &MetadataView, checked: bool) {
    let expect = |ok: bool, what: &str| assert!(ok || !checked, "{what} fails after the check");
    let _ = (view.xattr_counts(), view.has_acls());
    for inode in (0..view.inode_count())
        .take(super::image::MAX_ITEMS)
        .map(InodeNo)
    {
        expect(view.file_flags(inode).is_ok(), "flags");
        let birth = view.birth_time(inode);
        expect(birth.is_ok(), "birth time");
        if let Ok(Some(birth)) = birth {
            assert!(birth.nsec < 1_000_000_000, "a birth time has no fraction");
        }
        let Ok(xattrs) = view.xattrs(inode) else {
            expect(false, "attributes");
            continue;
        };
        for xattr in xattrs.clone().take(super::image::MAX_ITEMS) {
            let (name, value) = (xattr.name(), xattr.value());
            expect(name.is_ok() && value.is_ok(), "attribute");
            let (Ok(name), Ok(value)) = (name, value) else {
                continue;
            };
            let found = xattrs
                .find(&name)
                .and_then(|found| found.map(|x| x.value()).transpose());
            expect(
                found.is_ok_and(|found| found.as_ref() == Some(&value)),
                "find",
            );
        }
    }
}
