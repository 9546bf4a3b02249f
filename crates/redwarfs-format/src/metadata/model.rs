//! The structs of the metadata (format chapter 04, section 1).
//!
//! Each table lists member id, name and type in the order in which the reference packs them.

use std::collections::{BTreeMap, BTreeSet};

use crate::frozen::{frozen_struct, list_of};

list_of!(
    Chunk,
    Directory,
    InodeData,
    DirEntry,
    MetadataHistoryEntry,
    XattrPair,
    XattrValue,
);

frozen_struct! {
    /// The whole metadata of an image, as an owned value.
    ///
    /// Members keep the names of the format; `None` is "unset", which differs from empty.
    pub struct Metadata as "metadata" {
        /// All chunks.
        1 chunks: Vec<Chunk>,
        /// One per directory inode, plus a sentinel.
        2 directories: Vec<Directory>,
        /// Attributes, one per inode (per entry, if `dir_entries` is unset).
        3 inodes: Vec<InodeData>,
        /// First chunk of each file content, plus a sentinel.
        4 chunk_table: Vec<u32>,
        /// Only in format 2.2 and older: entry of each inode number.
        5 entry_table_v2_2: Vec<u32>,
        /// Target string of each symlink inode.
        6 symlink_table: Vec<u32>,
        /// User ids.
        7 uids: Vec<u32>,
        /// Group ids.
        8 gids: Vec<u32>,
        /// Values of `st_mode`.
        9 modes: Vec<u32>,
        /// Plain name table.
        10 names: Vec<Vec<u8>>,
        /// Plain table of symlink targets.
        11 symlinks: Vec<Vec<u8>>,
        /// What all time offsets are relative to, in units of the time resolution.
        12 timestamp_base: u64,
        /// Nominal size of a block in bytes, a power of two.
        15 block_size: u32,
        /// Sum of the sizes of all regular inodes and symlinks.
        16 total_fs_size: u64,
        /// `st_rdev` of the device inodes.
        17 devices: Option<Vec<u64>>,
        /// How some of the other members are to be read.
        18 options: Option<FsOptions>,
        /// All directory entries; unset in format 2.2 and older.
        19 dir_entries: Option<Vec<DirEntry>>,
        /// Which content the shared files have.
        20 shared_files_table: Option<Vec<u32>>,
        /// What hard links save.
        21 total_hardlink_size: Option<u64>,
        /// The program that wrote this metadata.
        22 dwarfs_version: Option<Vec<u8>>,
        /// Unix time of writing.
        23 create_timestamp: Option<u64>,
        /// Compact name table.
        24 compact_names: Option<StringTable>,
        /// Compact table of symlink targets.
        25 compact_symlinks: Option<StringTable>,
        /// Code of the separator in symlink targets.
        26 preferred_path_separator: Option<u32>,
        /// What a reader must know to read the image.
        27 features: Option<BTreeSet<Vec<u8>>>,
        /// Names of the categories.
        28 category_names: Option<Vec<Vec<u8>>>,
        /// Category of each block.
        29 block_categories: Option<Vec<u32>>,
        /// Sizes of files with very many chunks.
        30 reg_file_size_cache: Option<InodeSizeCache>,
        /// JSON objects that describe blocks.
        31 category_metadata_json: Option<Vec<Vec<u8>>>,
        /// From block number to index in `category_metadata_json`.
        32 block_category_metadata: Option<BTreeMap<u32, u32>>,
        /// What this metadata was rebuilt from.
        33 metadata_version_history: Option<Vec<MetadataHistoryEntry>>,
        /// Block number that marks holes.
        34 hole_block_index: Option<u32>,
        /// Sizes of large holes.
        35 large_hole_size: Option<Vec<u64>>,
        /// Like `total_fs_size`, without holes; unset if equal.
        36 total_allocated_fs_size: Option<u64>,
        /// Extended attributes (format chapter 09); an extension of this project.
        20000 xattrs: Option<XattrTables>,
        /// Flags of files (format chapter 09); an extension of this project.
        20001 file_flags: Option<FileFlags>,
    }
}

frozen_struct! {
    /// A piece of a block, or a hole.
    #[derive(Copy, Hash, PartialOrd, Ord)]
    pub struct Chunk as "chunk" {
        /// Block number.
        1 block: u32,
        /// Byte offset in the uncompressed block.
        2 offset: u32,
        /// Number of bytes.
        3 size: u32,
    }
}

frozen_struct! {
    /// Place of a directory in the entry table.
    #[derive(Copy)]
    pub struct Directory as "directory" {
        /// Entry of the parent directory (format 2.2: its inode number).
        1 parent_entry: u32,
        /// First of the directory's entries.
        2 first_entry: u32,
        /// Entry of the directory itself.
        3 self_entry: u32,
    }
}

frozen_struct! {
    /// Attributes of an inode.
    #[derive(Copy)]
    pub struct InodeData as "inode_data" {
        /// Index in `modes`.
        2 mode_index: u32,
        /// Index in `uids`, or the uid itself if that table is empty.
        4 owner_index: u32,
        /// Index in `gids`, or the gid itself if that table is empty.
        5 group_index: u32,
        /// Access time relative to `timestamp_base`.
        6 atime_offset: u64,
        /// Modification time relative to `timestamp_base`.
        7 mtime_offset: u64,
        /// Change time relative to `timestamp_base`.
        8 ctime_offset: u64,
        /// Birth time relative to `timestamp_base`, if `has_btime`.
        9 btime_offset: u64,
        /// Fraction of the access time.
        10 atime_subsec: u64,
        /// Fraction of the modification time.
        11 mtime_subsec: u64,
        /// Fraction of the change time.
        12 ctime_subsec: u64,
        /// Fraction of the birth time, if `has_btime`.
        13 btime_subsec: u64,
        /// Link count minus one, if `inodes_have_nlink`.
        14 nlink_minus_one: u32,
        /// Format 2.2: name of the entry.
        1 name_index_v2_2: u32,
        /// Format 2.2: inode number of the entry.
        3 inode_v2_2: u32,
    }
}

frozen_struct! {
    /// A directory entry.
    #[derive(Copy)]
    pub struct DirEntry as "dir_entry" {
        /// Index in the name table; meaningless for the root.
        1 name_index: u32,
        /// Inode number.
        2 inode_num: u32,
    }
}

frozen_struct! {
    /// How the metadata is to be read.
    #[derive(Copy)]
    pub struct FsOptions as "fs_options" {
        /// Only modification times are stored.
        1 mtime_only: bool,
        /// Seconds per unit of the times; unset means 1.
        2 time_resolution_sec: Option<u32>,
        /// `chunk_table` is stored as differences.
        3 packed_chunk_table: bool,
        /// `directories` are stored as differences of `first_entry`.
        4 packed_directories: bool,
        /// `shared_files_table` is stored as counts.
        5 packed_shared_files_table: bool,
        /// Nanoseconds per unit of the fractions of times.
        6 subsecond_resolution_nsec_multiplier: Option<u32>,
        /// Birth times are stored.
        7 has_btime: bool,
        /// `nlink_minus_one` is valid.
        8 inodes_have_nlink: bool,
    }
}

frozen_struct! {
    /// A compact string table (section 8).
    pub struct StringTable as "string_table" {
        /// The strings, one after another.
        1 buffer: Vec<u8>,
        /// FSST symbol table, if the strings are compressed.
        2 symtab: Option<Vec<u8>>,
        /// Start of each string, plus the end of the last; or, packed, their lengths.
        3 index: Vec<u32>,
        /// The index holds lengths.
        4 packed_index: bool,
    }
}

frozen_struct! {
    /// Sizes of file contents with many chunks; keys are indices into `chunk_table`.
    pub struct InodeSizeCache as "inode_size_cache" {
        /// Size, holes included.
        1 size_lookup: BTreeMap<u32, u64>,
        /// Contents with at least this many chunks are listed.
        2 min_chunk_count: u64,
        /// Size without holes, where it differs.
        3 allocated_size_lookup: BTreeMap<u32, u64>,
    }
}

frozen_struct! {
    /// Describes metadata that was replaced when an image was rebuilt.
    pub struct MetadataHistoryEntry as "history_entry" {
        /// Major format version.
        1 major: u8,
        /// Minor format version.
        2 minor: u8,
        /// The program that wrote it.
        3 dwarfs_version: Option<Vec<u8>>,
        /// Block size in bytes.
        4 block_size: u32,
        /// Options.
        5 options: Option<FsOptions>,
    }
}

frozen_struct! {
    /// Extended attributes of inodes (format chapter 09).
    pub struct XattrTables as "xattr_tables" {
        /// 1. Readers ignore tables of another version.
        1 version: u32,
        /// Kinds of attributes that the writer recorded, and its system: an [`XattrScope`](super::XattrScope).
        2 scope: u32,
        /// Ascending inode numbers that have a set; empty in the dense form.
        3 inodes: Vec<u32>,
        /// Set of each of `inodes`, or of each inode in the dense form.
        4 sets: Vec<u32>,
        /// First element of `pairs` of each set, plus a sentinel. Set 0 is the empty set.
        5 set_start: Vec<u32>,
        /// Attributes of all sets, sorted by name inside a set.
        6 pairs: Vec<XattrPair>,
        /// Full names, sorted, each once.
        7 names: Vec<Vec<u8>>,
        /// Values, each once.
        8 values: Vec<XattrValue>,
        /// Pieces of the values that are stored in blocks, in the order of the values.
        9 chunks: Vec<Chunk>,
    }
}

frozen_struct! {
    /// An attribute: a name with a value.
    #[derive(Copy, Hash)]
    pub struct XattrPair as "xattr_pair" {
        /// Index in `names`.
        1 name: u32,
        /// Index in `values`.
        2 value: u32,
    }
}

frozen_struct! {
    /// A value: bytes in the metadata, or in blocks.
    pub struct XattrValue as "xattr_value" {
        /// The bytes; empty if the value is stored in blocks.
        1 data: Vec<u8>,
        /// First element of `chunks`, if the value is stored in blocks.
        2 first_chunk: u32,
        /// Number of elements of `chunks`; 0 if the value is `data`.
        3 chunk_count: u32,
    }
}

frozen_struct! {
    /// Flags of files, as `chattr` sets them (format chapter 09).
    pub struct FileFlags as "file_flags" {
        /// 1. Readers ignore tables of another version.
        1 version: u32,
        /// Ascending inode numbers that have flags; empty in the dense form.
        2 inodes: Vec<u32>,
        /// Index in `values` for each of `inodes`, or for each inode in the dense form.
        3 indices: Vec<u32>,
        /// Distinct combinations of flags; the first one is 0.
        4 values: Vec<u32>,
    }
}
