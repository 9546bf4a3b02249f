//! The options of `mkdwarfs` as parameters of the matrix.

use redwarfs_testkit::pairwise::Space;

use super::independent;
use super::model::Model;
use super::selection::selection;

/// One value of a parameter: arguments, and what they do to the tree that an image shows.
pub(crate) struct Value {
    /// Names in braces stand for files of the [`TestDir`](super::TestDir).
    pub(crate) args: &'static [&'static str],
    /// `SOURCE_DATE_EPOCH`.
    pub(crate) epoch: Option<&'static str>,
    pub(crate) effect: fn(&mut Model),
    tag: Tag,
}

/// A set of values of which an image has one.
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) values: Vec<Value>,
}

/// Why values do not go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Any,
    /// Speaks of a category.
    Category,
    /// Nothing is categorized, so no option may speak of a category.
    Uncategorized,
    /// The input list, and what selects in other ways.
    List,
    Selection,
    /// A hollow image is sparse.
    Hollow,
    Dense,
}

const EXCLUSIONS: [(Tag, Tag); 3] = [
    (Tag::Category, Tag::Uncategorized),
    (Tag::List, Tag::Selection),
    (Tag::Hollow, Tag::Dense),
];

pub(super) fn v(args: &'static [&'static str]) -> Value {
    Value {
        args,
        epoch: None,
        effect: |_| {},
        tag: Tag::Any,
    }
}

impl Value {
    pub(super) fn does(self, effect: fn(&mut Model)) -> Self {
        Self { effect, ..self }
    }

    pub(super) fn is(self, tag: Tag) -> Self {
        Self { tag, ..self }
    }
}

pub(super) fn p(name: &'static str, values: impl IntoIterator<Item = Value>) -> Parameter {
    Parameter {
        name,
        values: values.into_iter().collect(),
    }
}

/// An option that is there or not.
pub(super) fn flag(args: &'static [&'static str], effect: fn(&mut Model)) -> Parameter {
    p(args[0], [v(&[]), v(args).does(effect)])
}

/// Parameters with what the independent reader reads of an image without holes.
pub(crate) fn readable_parameters() -> Vec<Parameter> {
    let mut all = parameters();
    for parameter in &mut all {
        parameter.values.retain(|value| {
            let mut model = Model::default();
            (value.effect)(&mut model);
            independent::obstacle(&model).is_none()
        });
    }
    all
}

/// All parameters. The first value of each goes with everything.
pub(crate) fn parameters() -> Vec<Parameter> {
    let mut all = storage();
    all.extend(streams());
    all.extend(metadata());
    all.extend(selection());
    all
}

fn storage() -> Vec<Parameter> {
    vec![
        p(
            "level",
            [
                v(&["--compress-level=1"]),
                v(&["--compress-level=0"]),
                v(&["--compress-level=2"]),
                v(&["--compress-level=3"]),
                v(&["--compress-level=4"]),
                v(&["--compress-level=5"]),
                v(&["--compress-level=6"]),
                v(&["--compress-level=7"]),
                v(&["--compress-level=8"]),
                v(&["--compress-level=9"]),
            ],
        ),
        p(
            "block size",
            [
                v(&[]),
                v(&["--block-size-bits=10"]),
                v(&["--block-size-bits=12"]),
                v(&["--block-size-bits=15"]),
                v(&["--block-size-bits=18"]),
                v(&["--block-size-bits=21"]),
                v(&["--block-size-bits=26"]),
            ],
        ),
        p(
            "compression",
            [
                v(&[]),
                v(&["--compression=null"]),
                v(&["--compression=lz4"]),
                v(&["--compression=lz4hc:level=3"]),
                v(&["--compression=lz4hc:level=12"]),
                v(&["--compression=zstd:level=-5"]),
                v(&["--compression=zstd:level=3:long"]),
                v(&["--compression=zstd:level=9:wlog=14:strat=5:mml=4"]),
                v(&["--compression=lzma:level=1"]),
                v(&["--compression=lzma:level=2:extreme:binary=x86"]),
                v(&["--compression=lzma:dict_size=14:mode=fast:mf=hc4:nice=40:depth=8"]),
                v(&["--compression=brotli:quality=2:lgwin=16"]),
                v(&["--compression=brotli:quality=5:lgwin=26"]),
            ],
        ),
        p(
            "schema compression",
            [
                v(&[]),
                v(&["--schema-compression=null"]),
                v(&["--schema-compression=lz4"]),
                v(&["--schema-compression=lzma:level=1"]),
                v(&["--schema-compression=brotli:quality=3"]).does(|m| m.brotli_metadata = true),
            ],
        ),
        p(
            "metadata compression",
            [
                v(&[]),
                v(&["--metadata-compression=null"]),
                v(&["--metadata-compression=lz4hc"]),
                v(&["--metadata-compression=zstd:level=5"]),
                v(&["--metadata-compression=lzma:level=4:extreme"]),
                v(&["--metadata-compression=brotli:quality=3"]).does(|m| m.brotli_metadata = true),
            ],
        ),
        p(
            "history compression",
            [
                v(&[]),
                v(&["--history-compression=null"]),
                v(&["--history-compression=lzma:level=2"]),
                v(&["--history-compression=brotli:quality=3"]),
            ],
        ),
        p(
            "header",
            [v(&[]), v(&["--header={header}"]).does(|m| m.header = true)],
        ),
        flag(&["--no-section-index"], |_| {}),
        flag(&["--no-history"], |_| {}),
        flag(&["--no-history-timestamps"], |_| {}),
        flag(&["--no-history-command-line"], |_| {}),
        p(
            "workers",
            [
                v(&[]),
                v(&["--num-workers=1"]),
                v(&["--num-workers=3", "--num-scanner-workers=1"]),
                v(&["--num-workers=8", "--num-segmenter-workers=1"]),
                v(&["--num-scanner-workers=5", "--num-segmenter-workers=6"]),
            ],
        ),
        p("memory limit", [v(&[]), v(&["--memory-limit=32g"])]),
        p("niceness", [v(&[]), v(&["--compress-niceness=0"])]),
    ]
}

fn streams() -> Vec<Parameter> {
    vec![
        p(
            "categorize",
            [
                v(&["--categorize"]),
                v(&[]).is(Tag::Uncategorized),
                v(&["--categorize=pcmaudio"]),
                v(&["--categorize=fits"]),
                v(&["--categorize=binary"]),
                v(&["--categorize=incompressible"]),
                v(&["--categorize=hotness"]),
                v(&["--categorize=hotness,incompressible,binary,pcmaudio,fits"]),
            ],
        ),
        p("hotness list", [v(&[]), v(&["--hotness-list={hot}"])]),
        p(
            "incompressible, size",
            [
                v(&[]),
                v(&["--incompressible-min-input-size=0"]),
                v(&["--incompressible-min-input-size=100k"]),
            ],
        ),
        p(
            "incompressible, block",
            [
                v(&[]),
                v(&["--incompressible-block-size=4k"]),
                v(&["--incompressible-block-size=64k"]),
            ],
        ),
        flag(&["--incompressible-fragments"], |_| {}),
        p(
            "incompressible, ratio",
            [
                v(&[]),
                v(&["--incompressible-ratio=0.3"]),
                v(&["--incompressible-ratio=1"]),
            ],
        ),
        p(
            "incompressible, level",
            [v(&[]), v(&["--incompressible-zstd-level=-100"])],
        ),
        p(
            "compression of a category",
            [
                v(&[]),
                v(&["--compression=pcmaudio/waveform::flac:level=0"]).is(Tag::Category),
                v(&["--compression=pcmaudio/waveform::flac:level=8:exhaustive"]).is(Tag::Category),
                v(&["--compression=pcmaudio/waveform::zstd:level=4"]).is(Tag::Category),
                v(&["--compression=fits/image::ricepp:block_size=16"]).is(Tag::Category),
                v(&["--compression=fits/image::ricepp:block_size=512"]).is(Tag::Category),
                v(&[
                    "--compression=fits/image::lz4hc",
                    "--compression=pcmaudio/metadata,fits/metadata::brotli:quality=3",
                ])
                .is(Tag::Category),
                v(&["--compression=binary/elf,binary/pe::lzma:level=1:binary=x86"])
                    .is(Tag::Category),
                v(&[
                    "--compression=binary/elf::lzma:level=1",
                    "--compression=hotness::null",
                ])
                .is(Tag::Category),
                v(&["--compression=incompressible::lz4"]).is(Tag::Category),
            ],
        ),
        flag(&["--no-category-names"], |_| {}),
        flag(&["--no-category-metadata"], |_| {}),
        p(
            "order",
            [
                v(&[]),
                v(&["--order=none"]),
                v(&["--order=path"]),
                v(&["--order=revpath"]),
                v(&["--order=similarity"]),
                v(&["--order=nilsimsa"]),
                v(&["--order=versions"]),
                v(&["--order=families"]),
                v(&["--order=families:gain=0"]),
                v(&["--order=nilsimsa:max-children=3:max-cluster-size=5"]),
                v(&["--order=explicit:file={order}"]),
            ],
        ),
        p(
            "order of a category",
            [
                v(&[]),
                v(&["--order=pcmaudio/waveform::none"]).is(Tag::Category),
                v(&["--order=pcmaudio/waveform,fits/image::nilsimsa"]).is(Tag::Category),
                v(&["--order=binary/elf,incompressible::similarity"]).is(Tag::Category),
                v(&[
                    "--order=fits/image::path",
                    "--order=hotness::explicit:file={order}",
                ])
                .is(Tag::Category),
            ],
        ),
        p("null", [v(&[]), v(&["--null"]).does(|m| m.null = true)]),
        p(
            "similarity size",
            [
                v(&[]),
                v(&["--max-similarity-size=0"]),
                v(&["--max-similarity-size=20k"]),
            ],
        ),
        p(
            "lookback",
            [
                v(&[]),
                v(&["--max-lookback-blocks=0"]),
                v(&["--max-lookback-blocks=5"]),
                v(&[
                    "--max-lookback-blocks=2",
                    "--max-lookback-blocks=pcmaudio/waveform::3",
                ])
                .is(Tag::Category),
            ],
        ),
        p(
            "window",
            [
                v(&[]),
                v(&["--window-size=0"]),
                v(&["--window-size=5"]),
                v(&["--window-size=9"]),
                v(&["--window-size=14"]),
                v(&["--window-size=24"]),
                v(&[
                    "--window-size=7",
                    "--window-size=pcmaudio/waveform,fits/image::4",
                ])
                .is(Tag::Category),
            ],
        ),
        p(
            "window step",
            [
                v(&[]),
                v(&["--window-step=0"]),
                v(&["--window-step=3"]),
                v(&["--window-step=8"]),
                v(&["--window-step=2", "--window-step=binary/elf::5"]).is(Tag::Category),
            ],
        ),
        p(
            "bloom filter",
            [
                v(&[]),
                v(&["--bloom-filter-size=0"]),
                v(&["--bloom-filter-size=10"]),
                v(&["--bloom-filter-size=incompressible::1"]).is(Tag::Category),
            ],
        ),
        p(
            "file hash",
            [
                v(&[]),
                v(&["--file-hash=none"]),
                v(&["--file-hash=xxh3-64"]),
                v(&["--file-hash=sha256"]),
                v(&["--file-hash=md5"]),
                v(&["--file-hash=blake2b512"]),
            ],
        ),
        p(
            "verification",
            [
                v(&[]),
                v(&["--verify-dedup=always"]),
                v(&["--verify-dedup=never"]),
            ],
        ),
        p("time-out", [v(&[]), v(&["--file-timeout=5min"])]),
    ]
}

fn metadata() -> Vec<Parameter> {
    vec![
        p(
            "packing",
            [
                v(&[]),
                v(&["--pack-metadata=none"]),
                v(&["--pack-metadata=all"]).does(|m| m.packed_shared_files = true),
                v(&["--pack-metadata=all,force"]).does(|m| m.packed_shared_files = true),
                v(&["--pack-metadata=chunk_table"]),
                v(&["--pack-metadata=directories"]),
                v(&["--pack-metadata=shared_files"]).does(|m| m.packed_shared_files = true),
                v(&["--pack-metadata=names,force"]),
                v(&["--pack-metadata=names_index,symlinks"]),
                v(&["--pack-metadata=symlinks,symlinks_index,force"]),
                v(&["--pack-metadata=names,names_index,chunk_table,directories"]),
                v(&["--pack-metadata=plain"]),
            ],
        ),
        flag(&["--no-hardlink-table"], |_| {}),
        flag(&["--no-create-timestamp"], |_| {}),
        p(
            "owner",
            [
                v(&[]),
                v(&["--set-owner=0"]).does(|m| m.owner = Some(0)),
                v(&["--set-owner=4000000000"]).does(|m| m.owner = Some(4_000_000_000)),
            ],
        ),
        p(
            "group",
            [
                v(&[]),
                v(&["--set-group=70000"]).does(|m| m.group = Some(70_000)),
            ],
        ),
        p(
            "owner map",
            [
                v(&[]),
                v(&["--owner-map={owners}"]).does(|m| m.owner_map = true),
            ],
        ),
        p(
            "modes",
            [
                v(&[]),
                v(&["--chmod=norm"]).does(|m| m.chmod = |mode| 0o444 | executable(mode)),
                v(&["--chmod=a+rX,go-w"])
                    .does(|m| m.chmod = |mode| (mode | 0o444 | executable(mode)) & 0o7755),
                v(&["--chmod=D=711,F600"]).does(|m| {
                    m.chmod = |mode| if is_directory(mode) { 0o711 } else { 0o600 };
                }),
                v(&["--chmod=u+s,+t"]).does(|m| m.chmod = |mode| (mode & 0o7777) | 0o5000),
            ],
        ),
        // Not 'now': nobody knows what that will be.
        p(
            "time",
            [
                v(&[]),
                v(&["--set-time=1234567890"]).does(|m| m.set_time = Some(1_234_567_890)),
                v(&["--set-time=2020-05-17 13:44:05"]).does(|m| m.set_time = Some(1_589_723_045)),
            ],
        ),
        flag(&["--keep-all-times"], |m| m.all_times = true),
        p(
            "resolution",
            [
                v(&[]),
                v(&["--time-resolution=1ns"]).does(|m| m.resolution = 1),
                v(&["--time-resolution=10ms"]).does(|m| m.resolution = 10_000_000),
                v(&["--time-resolution=1min"]).does(|m| m.resolution = 60_000_000_000),
                v(&["--time-resolution=1h"]).does(|m| m.resolution = 3_600_000_000_000),
            ],
        ),
        p(
            "epoch",
            [
                v(&[]),
                Value {
                    epoch: Some("1000000000"),
                    ..v(&[]).does(|m| m.latest = Some(1_000_000_000))
                },
            ],
        ),
    ]
}

fn is_directory(mode: u32) -> bool {
    mode & 0o170_000 == 0o040_000
}

/// What `X` sets.
fn executable(mode: u32) -> u32 {
    if is_directory(mode) || mode & 0o111 != 0 {
        0o111
    } else {
        0
    }
}

/// The space of all combinations.
pub(crate) fn space(parameters: &[Parameter]) -> Space {
    let sizes: Vec<usize> = parameters.iter().map(|p| p.values.len()).collect();
    let mut space = Space::new(&sizes);
    let values = || {
        let all = parameters.iter().enumerate();
        all.flat_map(|(p, parameter)| {
            let tags = parameter.values.iter().enumerate();
            tags.map(move |(v, value)| ((p, v), value.tag))
        })
    };
    for (a, tag) in values() {
        for (b, other) in values() {
            if EXCLUSIONS.contains(&(tag, other)) {
                space.forbid(a, b);
            }
        }
    }
    space
}

/// Options that are no parameters, and why.
pub(crate) const LEFT_OUT: [(&str, &str); 46] = [
    ("input", "every combination has it"),
    ("output", "every combination has it"),
    ("force", "says what becomes of an old output"),
    ("log-level", "every combination has it"),
    ("log-with-context", "messages"),
    ("verbose", "messages"),
    ("progress", "messages"),
    ("no-progress", "every combination has it"),
    ("help", "builds nothing"),
    ("long-help", "builds nothing"),
    ("man", "builds nothing"),
    ("version", "builds nothing"),
    ("debug-filter", "builds nothing"),
    ("recompress", "takes an image: rewrite.rs"),
    ("recompress-categories", "takes an image: rewrite.rs"),
    ("rebuild-metadata", "takes an image: rewrite.rs"),
    ("change-block-size", "takes an image: rewrite.rs"),
    ("no-metadata-version-history", "takes an image: rewrite.rs"),
    ("no-check", "takes an image: rewrite_refused.rs"),
    ("remove-header", "takes an image: rewrite.rs"),
    ("merge", "takes images: merge.rs"),
    ("remove", "takes an image: merge.rs"),
    ("rename", "takes an image: merge.rs"),
    ("add", "takes an image: merge.rs"),
    ("repack", "takes an image: merge.rs"),
    ("extract-wrapped-binary", "is refused"),
    ("input-format", "takes an archive: mkdwarfs_archives.rs"),
    ("spool", "takes an archive: mkdwarfs_archives.rs"),
    ("whiteouts", "takes an archive: mkdwarfs_layers.rs"),
    (
        "xattrs",
        "what readers of tables do not see: mkdwarfs_xattrs.rs",
    ),
    (
        "set-xattr",
        "what readers of tables do not see: mkdwarfs_xattrs.rs",
    ),
    (
        "keep-btime",
        "what readers of tables do not see: mkdwarfs_xattrs.rs",
    ),
    (
        "file-flags",
        "what readers of tables do not see: mkdwarfs_xattrs.rs",
    ),
    (
        "canonical",
        "what readers of tables do not see: mkdwarfs_xattrs.rs",
    ),
    ("append", "takes an image: snapshots.rs"),
    ("commit", "takes an image and a layer: commit.rs"),
    ("empty-layer", "takes an image and a layer: commit.rs"),
    ("snapshot-name", "takes an image: snapshots.rs"),
    ("checksum", "takes an image: snapshots.rs"),
    ("layer", "takes an image: union.rs"),
    ("delta", "takes two images: snapshots_delta.rs"),
    ("delta-out", "takes an image: snapshots.rs"),
    ("checkpoint", "takes a killed build: mkdwarfs_checkpoint.rs"),
    ("match-index", "adds what is behind the image: nights.rs"),
    ("hints", "adds what is behind the image: hints.rs"),
    (
        "recovery",
        "adds what is behind the image: dwarfsck_recovery.rs",
    ),
];
