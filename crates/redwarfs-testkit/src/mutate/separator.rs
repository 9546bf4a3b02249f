//! Images like those of systems with another path separator.

use redwarfs_format::metadata::{Metadata, StringPacking, build_string_table};

use super::{Parts, strings_of};

/// The intact image with `separator` instead of `/` in all symlink targets, and with the member that
/// says so. Readers show the same tree as for `image`, unless a target has `separator` in it already.
pub fn with_separator(image: &[u8], separator: u8) -> Vec<u8> {
    let mut parts = Parts::of(image);
    let mut metadata = parts.metadata().expect("metadata of an intact image");
    replace(&mut metadata, separator);
    parts.set_metadata(&metadata).expect("metadata that fits");
    parts.assemble()
}

fn replace(metadata: &mut Metadata, separator: u8) {
    metadata.preferred_path_separator = Some(u32::from(separator));
    let other = |target: &[u8]| -> Vec<u8> {
        let bytes = target.iter();
        bytes
            .map(|&byte| if byte == b'/' { separator } else { byte })
            .collect()
    };
    for target in &mut metadata.symlinks {
        *target = other(target);
    }
    if let Some(table) = &mut metadata.compact_symlinks {
        let targets: Vec<Vec<u8>> = strings_of(table)
            .expect("an intact table")
            .iter()
            .map(|target| other(target))
            .collect();
        let targets: Vec<&[u8]> = targets.iter().map(Vec::as_slice).collect();
        let packing = StringPacking {
            compress: if table.symtab.is_some() {
                redwarfs_format::metadata::Compress::Always
            } else {
                redwarfs_format::metadata::Compress::Never
            },
            pack_index: table.packed_index,
        };
        *table = build_string_table(&targets, packing);
    }
}
