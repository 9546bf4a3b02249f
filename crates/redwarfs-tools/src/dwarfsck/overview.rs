//! The properties of an image, gathered once for text and JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;

use redwarfs_format::frozen::{Item, TypeInfo};
use redwarfs_format::metadata::{Extent, FsOptions, MetadataView, metadata_type};
use redwarfs_format::section::{CompressionId, SectionType};
use redwarfs_format::{BlockNo, Result};
use redwarfs_reader::Image;
use redwarfs_reader::check::{PayloadSize, SectionList};

use crate::common::error::one_line;

/// Sums over blocks.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sum {
    pub(super) blocks: u64,
    pub(super) stored: u64,
    pub(super) raw: u64,
    /// Some block does not tell its uncompressed size.
    pub(super) unknown: bool,
    /// At least one block is compressed.
    pub(super) compressed: bool,
}

impl Sum {
    fn add(&mut self, sizes: PayloadSize) {
        self.blocks += 1;
        self.stored = self.stored.saturating_add(sizes.stored);
        self.raw = self.raw.saturating_add(sizes.raw.unwrap_or(0));
        self.unknown |= sizes.raw.is_none();
        self.compressed |= sizes.compression != CompressionId::NONE;
    }
}

/// Earlier metadata of an image that was rebuilt.
#[derive(Debug)]
pub(super) struct Previous {
    pub(super) major: u64,
    pub(super) minor: u64,
    pub(super) version: Option<Vec<u8>>,
    pub(super) block_size: u64,
    pub(super) options: Option<FsOptions>,
}

/// The summary of the metadata.
#[derive(Debug)]
pub(super) struct Summary {
    pub(super) blocks: Sum,
    /// By name.
    pub(super) categories: BTreeMap<String, Sum>,
    /// Stored and uncompressed size of the metadata.
    pub(super) metadata: Option<(u64, u64)>,
    pub(super) options: Vec<&'static str>,
    /// What separates the parts of symlink targets, where that is recorded.
    pub(super) separator: Option<String>,
}

/// The name of a category, or its number in words.
pub(super) fn category_name(names: &[Vec<u8>], number: u32) -> String {
    names.get(number as usize).map_or_else(
        || format!("category {number}"),
        |name| one_line(&String::from_utf8_lossy(name)),
    )
}

impl Summary {
    pub(super) fn of(
        image: &Image,
        list: &SectionList,
        sizes: &[Option<PayloadSize>],
    ) -> Result<Self> {
        let metadata = image.metadata();
        let names = metadata.category_names()?.unwrap_or_default();
        let mut blocks = Sum::default();
        let mut categories: BTreeMap<u32, Sum> = BTreeMap::new();
        for ((listed, sizes), number) in list.blocks().zip(sizes).zip(0_u32..) {
            // A block whose header cannot be read is a finding of the check.
            let sizes = sizes.unwrap_or(PayloadSize {
                compression: CompressionId(u16::MAX),
                stored: listed.section.length,
                raw: None,
            });
            blocks.add(sizes);
            if let Ok(Some(category)) = metadata.block_category(BlockNo(number)) {
                categories.entry(category.0).or_default().add(sizes);
            }
        }
        let mut named = BTreeMap::new();
        for (number, sum) in categories {
            let name = category_name(&names, number);
            let name = if named.contains_key(&name) {
                format!("{name} ({number})")
            } else {
                name
            };
            named.insert(name, sum);
        }
        let stored = image
            .container()
            .section_of_type(SectionType::METADATA_V2)
            .next()
            .map(|section| section.length);
        Ok(Self {
            blocks,
            categories: named,
            // An archive has it together with others.
            metadata: stored
                .filter(|_| !image.is_archived())
                .map(|stored| (stored, metadata.bytes().len() as u64)),
            options: option_names(metadata)?,
            separator: separator(metadata)?,
        })
    }
}

/// The member of an optional struct, if it is set.
fn inside<'a>(root: Item<'a>, id: i16, member: i16) -> Result<Option<Item<'a>>> {
    match root.member(id)?.optional()? {
        Some(table) => table.member(member).map(Some),
        None => Ok(None),
    }
}

/// The path separator, printable.
fn separator(view: &MetadataView) -> Result<Option<String>> {
    let ty = metadata_type();
    let Some(value) = view.item(&ty).member(26)?.optional()? else {
        return Ok(None);
    };
    let code = value.number()?;
    let separator = u32::try_from(code).ok().and_then(char::from_u32);
    Ok(Some(separator.map_or_else(
        || code.to_string(),
        |c| one_line(&c.to_string()),
    )))
}

/// Names of the options that are set.
fn option_names(view: &MetadataView) -> Result<Vec<&'static str>> {
    let ty = metadata_type();
    let root = view.item(&ty);
    let mut names = flag_names(view.options());
    for (id, table, index) in [
        (24, "packed_names", "packed_names_index"),
        (25, "packed_symlinks", "packed_symlinks_index"),
    ] {
        if let Some(symtab) = inside(root, id, 2)?
            && symtab.optional()?.is_some()
        {
            names.push(table);
        }
        if let Some(packed) = inside(root, id, 4)?
            && packed.number()? != 0
        {
            names.push(index);
        }
    }
    Ok(names)
}

/// Names of the flags that are set.
pub(super) fn flag_names(options: &FsOptions) -> Vec<&'static str> {
    [
        (options.mtime_only, "mtime_only"),
        (options.inodes_have_nlink, "inodes_have_nlink"),
        (options.packed_chunk_table, "packed_chunk_table"),
        (options.packed_directories, "packed_directories"),
        (
            options.packed_shared_files_table,
            "packed_shared_files_table",
        ),
    ]
    .into_iter()
    .filter_map(|(set, name)| set.then_some(name))
    .collect()
}

/// The versions from which the metadata was rebuilt, oldest first.
pub(super) fn previous_versions(view: &MetadataView) -> Result<Vec<Previous>> {
    // Each rebuild adds one, so there are few; but they may have 200 bytes each.
    const MOST: u64 = 4096;
    let ty = metadata_type();
    let Some(list) = view.item(&ty).member(33)?.optional()? else {
        return Ok(Vec::new());
    };
    let mut versions = Vec::new();
    for item in list.list()?.iter().take(usize::try_from(MOST).unwrap_or(0)) {
        let flag = |options: Item<'_>, id| {
            Ok::<bool, redwarfs_format::Error>(options.member(id)?.number()? != 0)
        };
        let number = |options: Item<'_>, id| -> Result<Option<u32>> {
            let value = options.member(id)?.optional()?.map(|v| v.number());
            Ok(value.transpose()?.and_then(|v| u32::try_from(v).ok()))
        };
        let options = match item.member(5)?.optional()? {
            None => None,
            Some(o) => Some(FsOptions {
                mtime_only: flag(o, 1)?,
                time_resolution_sec: number(o, 2)?,
                packed_chunk_table: flag(o, 3)?,
                packed_directories: flag(o, 4)?,
                packed_shared_files_table: flag(o, 5)?,
                subsecond_resolution_nsec_multiplier: number(o, 6)?,
                has_btime: flag(o, 7)?,
                inodes_have_nlink: flag(o, 8)?,
            }),
        };
        let version = item.member(3)?.optional()?;
        versions.push(Previous {
            major: item.member(1)?.number()?,
            minor: item.member(2)?.number()?,
            version: version
                .map(|v| v.bytes().map(Cow::into_owned))
                .transpose()?,
            block_size: item.member(4)?.number()?,
            options,
        });
    }
    Ok(versions)
}

/// A row of the numbers of things: the tables of the metadata and where the kinds of inodes begin.
#[derive(Debug)]
pub(super) struct Count {
    /// Key in JSON; in text with spaces where `text` says so.
    pub(super) key: &'static str,
    pub(super) text: Option<&'static str>,
    pub(super) value: u64,
}

/// Numbers of elements of the tables. Optional tables that are unset are left out.
pub(super) fn counts(view: &MetadataView) -> Result<Vec<Count>> {
    const TABLES: [&str; 14] = [
        "chunks",
        "directories",
        "inodes",
        "chunk_table",
        "entry_table_v2_2",
        "symlink_table",
        "uids",
        "gids",
        "modes",
        "names",
        "symlinks",
        "devices",
        "dir_entries",
        "shared_files_table",
    ];
    let c = view.counts();
    let ty = metadata_type();
    let root = view.item(&ty);
    let plain = |key, value: u64| Count {
        key,
        text: None,
        value,
    };
    let mut rows = vec![
        plain("symlink_inode_offset", c.symlink_offset.into()),
        plain("file_inode_offset", c.file_offset.into()),
        plain("dev_inode_offset", c.device_offset.into()),
    ];
    for name in TABLES {
        let Some((_, item)) = root.members()?.find(|(info, _)| info.name == name) else {
            continue;
        };
        let list = match item.ty() {
            TypeInfo::Optional(_) => match item.optional()? {
                Some(list) => list,
                None => continue,
            },
            _ => item,
        };
        let stored = list.list()?.len();
        if name == "shared_files_table" {
            if view.options().packed_shared_files_table {
                rows.push(Count {
                    key: "packed_shared_files_table",
                    text: Some("packed shared_files_table"),
                    value: stored,
                });
                rows.push(Count {
                    key: "unpacked_shared_files_table",
                    text: Some("unpacked shared_files_table"),
                    value: view.shared_files_len().into(),
                });
            } else {
                rows.push(plain(name, stored));
            }
            rows.push(Count {
                key: "unique_files",
                text: Some("unique files"),
                value: c.unique_files.into(),
            });
        } else {
            rows.push(plain(name, stored));
        }
    }
    Ok(rows)
}

/// How scattered the files are.
#[derive(Debug, Default)]
pub(super) struct Scatter {
    /// Number of contents by the number of blocks they use.
    pub(super) blocks: BTreeMap<u64, u64>,
    /// Number of contents by the number of their chunks.
    pub(super) chunks: BTreeMap<u64, u64>,
    /// Chunks that continue the chunk before.
    pub(super) mergeable: u64,
    pub(super) all_chunks: u64,
}

/// The quantiles that are shown: name, and share in tenths of a percent.
pub(super) const QUANTILES: [(&str, u64); 6] = [
    ("p50", 500),
    ("p75", 750),
    ("p90", 900),
    ("p95", 950),
    ("p99", 990),
    ("p99.9", 999),
];

impl Scatter {
    /// Looks at all contents that are not empty. Takes 4 bytes per block.
    pub(super) fn of(view: &MetadataView, block_count: u32) -> Self {
        let counts = view.counts();
        let mut scatter = Self {
            all_chunks: counts.chunks.into(),
            ..Self::default()
        };
        let mut last_user = vec![0_u32; block_count as usize];
        let mut left = u64::from(counts.chunks);
        for content in 0..counts.contents {
            let Ok(extents) = view.content_extents(content) else {
                continue;
            };
            let len = extents.len() as u64;
            // Otherwise contents overlap, and looking at all would take forever.
            let Some(rest) = left.checked_sub(len) else {
                break;
            };
            left = rest;
            if len == 0 {
                continue;
            }
            let mut blocks = 0;
            let mut previous = None;
            for extent in extents {
                let Ok(Extent::Data {
                    block,
                    offset,
                    size,
                }) = extent
                else {
                    previous = None;
                    continue;
                };
                if let Some(user) = last_user.get_mut(block.index())
                    && *user != content.saturating_add(1)
                {
                    *user = content.saturating_add(1);
                    blocks += 1;
                }
                if previous == Some((block, u64::from(offset))) {
                    scatter.mergeable += 1;
                }
                previous = Some((block, u64::from(offset).saturating_add(size.into())));
            }
            *scatter.blocks.entry(blocks).or_default() += 1;
            *scatter.chunks.entry(len).or_default() += 1;
        }
        scatter
    }
}

/// The value that at least `tenths` of a thousand of the values do not exceed: exact, by the nearest
/// rank.
pub(super) fn quantile(histogram: &BTreeMap<u64, u64>, tenths: u64) -> Option<u64> {
    let total: u64 = histogram.values().sum();
    let rank = total.saturating_mul(tenths).div_ceil(1000).max(1);
    let mut below = 0_u64;
    for (value, count) in histogram {
        below = below.saturating_add(*count);
        if below >= rank {
            return Some(*value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact() {
        let histogram = |values: &[u64]| {
            let mut h = BTreeMap::new();
            for v in values {
                *h.entry(*v).or_default() += 1;
            }
            h
        };
        assert_eq!(quantile(&BTreeMap::new(), 500), None);
        let one = histogram(&[7]);
        assert!(QUANTILES.iter().all(|(_, q)| quantile(&one, *q) == Some(7)));
        let ten = histogram(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        let found: Vec<_> = QUANTILES
            .iter()
            .map(|(_, q)| quantile(&ten, *q).unwrap())
            .collect();
        assert_eq!(found, [5, 8, 9, 10, 10, 10]);
        let mut many = BTreeMap::from([(1, 998)]);
        many.insert(50, 2);
        assert_eq!(quantile(&many, 990), Some(1));
        assert_eq!(quantile(&many, 999), Some(50));
    }
}
