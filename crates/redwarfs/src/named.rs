//! Build options by name, for interfaces whose callers pass names and texts.

use redwarfs_codec::{CodecSpec, ContentKind};
use redwarfs_writer::{
    BuildOptions, Categorizer, Category, Error as BuildError, FamilyOptions, FileHash,
    Incompressible, NilsimsaOptions, Order, TimeResolution,
};

use crate::error::Result;

type Setter = fn(&mut BuildOptions, &str) -> std::result::Result<(), String>;

/// The options that [`Builder::option`](crate::Builder::option) knows, as `mkdwarfs` names them, with
/// the form of the value.
///
/// Times and sizes are numbers of bytes, or with a unit: `k`, `m`, `g`, `t` for sizes, and `ns`, `us`,
/// `ms`, `s` for times. A switch takes `true` or `false`. `compression` and `order` also accept
/// categories before the value, for example `incompressible::null`.
pub const OPTION_NAMES: &[(&str, &str)] = &{
    let mut names = [("", ""); SETTERS.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = (SETTERS[i].0, SETTERS[i].1);
        i += 1;
    }
    names
};

/// Name, form of the value, and what sets it.
const SETTERS: [(&str, &str, Setter); 34] = [
    ("block-size-bits", "10 to 30", |o, v| {
        put(&mut o.block_size_bits, number(v, 10, 30))
    }),
    ("bloom-filter-size", "0 to 10", |o, v| {
        put(&mut o.bloom_filter_size, number(v, 0, 10))
    }),
    ("categorize", "list", |o, v| {
        put(&mut o.categorizers, categorizers(v))
    }),
    ("compress-niceness", "0 to 19", |o, v| {
        put(&mut o.compress_niceness, number(v, 0, 19))
    }),
    ("compression", "codec", |o, v| {
        let Some((categories, value)) = v.split_once("::") else {
            return put(&mut o.compression, codec(v));
        };
        let codec: CodecSpec = value.parse().map_err(text)?;
        for category in parse_categories(categories)? {
            o.categories.entry(category).or_default().compression = Some(codec.clone());
        }
        Ok(())
    }),
    ("file-hash", "hash or none", |o, v| {
        let hash = match v {
            "none" => Ok(None),
            name => name.parse::<FileHash>().map(Some).map_err(text),
        };
        put(&mut o.file_hash, hash)
    }),
    ("hard-links", "keep or dissolve", |o, v| {
        let dissolve = choice(v, &[("keep", false), ("dissolve", true)]);
        put(&mut o.dissolve_hard_links, dissolve)
    }),
    ("history-compression", "codec", |o, v| {
        put(&mut o.history_compression, codec(v))
    }),
    ("hollow", "switch", |o, v| put(&mut o.hollow, switch(v))),
    ("keep-all-times", "switch", |o, v| {
        put(&mut o.keep_all_times, switch(v))
    }),
    ("max-lookback-blocks", "0 to 1048576", |o, v| {
        put(&mut o.lookback, number(v, 0, 1 << 20))
    }),
    ("max-similarity-size", "size", |o, v| {
        let size = size(v).map(|size| Some(size).filter(|&size| size > 0));
        put(&mut o.max_similarity_size, size)
    }),
    ("memory-limit", "size or auto", |o, v| {
        let limit = match v {
            "auto" => Ok(None),
            _ => size(v).map(Some),
        };
        put(&mut o.memory_limit, limit)
    }),
    ("metadata-compression", "codec", |o, v| {
        let codec = codec(v)?;
        o.metadata_alternative = None;
        o.metadata_compression = codec;
        Ok(())
    }),
    ("no-category-metadata", "switch", |o, v| {
        put(&mut o.category_metadata, switch(v).map(|no| !no))
    }),
    ("no-category-names", "switch", |o, v| {
        put(&mut o.category_names, switch(v).map(|no| !no))
    }),
    ("no-hardlink-table", "switch", |o, v| {
        put(&mut o.hardlink_table, switch(v).map(|no| !no))
    }),
    ("no-history", "switch", |o, v| {
        let no = switch(v)?;
        o.history = (!no).then(|| o.history.take().unwrap_or_default());
        Ok(())
    }),
    ("no-section-index", "switch", |o, v| {
        put(&mut o.section_index, switch(v).map(|no| !no))
    }),
    ("no-sparse-files", "switch", |o, v| {
        put(&mut o.sparse, switch(v).map(|no| !no))
    }),
    ("num-scanner-workers", "1 to 1024", |o, v| {
        put(&mut o.scanner_workers, number(v, 1, 1024).map(Some))
    }),
    ("num-segmenter-workers", "1 to 1024", |o, v| {
        put(&mut o.segmenter_workers, number(v, 1, 1024).map(Some))
    }),
    ("num-workers", "1 to 1024", |o, v| {
        put(&mut o.workers, number(v, 1, 1024))
    }),
    ("order", "order", |o, v| {
        let Some((categories, value)) = v.split_once("::") else {
            return put(&mut o.order, order(v));
        };
        let order = order(value)?;
        for category in parse_categories(categories)? {
            o.categories.entry(category).or_default().order = Some(order.clone());
        }
        Ok(())
    }),
    ("remove-empty-dirs", "switch", |o, v| {
        put(&mut o.remove_empty_dirs, switch(v))
    }),
    ("schema-compression", "codec", |o, v| {
        put(&mut o.schema_compression, codec(v))
    }),
    ("set-group", "number", |o, v| {
        put(&mut o.set_group, number(v, 0, u32::MAX).map(Some))
    }),
    ("set-owner", "number", |o, v| {
        put(&mut o.set_owner, number(v, 0, u32::MAX).map(Some))
    }),
    ("set-time", "seconds since 1970", |o, v| {
        put(&mut o.set_time, number(v, 0, i64::MAX).map(Some))
    }),
    ("time-resolution", "time", |o, v| {
        put(&mut o.time_resolution, time_resolution(v))
    }),
    ("window-size", "0 to 24", |o, v| {
        put(&mut o.window_bits, number(v, 0, 24))
    }),
    ("window-step", "0 to 8", |o, v| {
        put(&mut o.window_step, number(v, 0, 8))
    }),
    ("with-devices", "switch", |o, v| {
        put(&mut o.with_devices, switch(v))
    }),
    ("with-specials", "switch", |o, v| {
        put(&mut o.with_specials, switch(v))
    }),
];

/// Sets an option by its name, as [`Builder::option`](crate::Builder::option) does.
///
/// # Errors
/// As there.
pub fn set_option(options: &mut BuildOptions, name: &str, value: &str) -> Result<()> {
    let plain = name.replace('_', "-");
    let found = SETTERS.iter().find(|(known, ..)| *known == plain);
    let done = match found {
        Some((_, form, set)) => {
            set(options, value).map_err(|reason| format!("{plain}={value}: {reason} ({form})"))
        }
        None => Err(format!("no such option: {name}")),
    };
    done.map_err(|e| BuildError::InvalidOption(e).into())
}

fn put<T>(field: &mut T, value: std::result::Result<T, String>) -> std::result::Result<(), String> {
    *field = value?;
    Ok(())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn number<T>(value: &str, low: T, high: T) -> std::result::Result<T, String>
where
    T: std::str::FromStr + PartialOrd,
{
    let number = value.parse::<T>().ok();
    number
        .filter(|number| (&low..=&high).contains(&number))
        .ok_or_else(|| "not a number in the range".to_owned())
}

fn choice<T: Copy>(value: &str, known: &[(&str, T)]) -> std::result::Result<T, String> {
    let found = known.iter().find(|(name, _)| *name == value);
    found
        .map(|(_, meaning)| *meaning)
        .ok_or_else(|| "no such choice".to_owned())
}

fn switch(value: &str) -> std::result::Result<bool, String> {
    choice(value, &[("true", true), ("false", false)])
}

/// A number and one of the units, each with what it multiplies by.
fn with_unit(value: &str, units: &[(&str, u64)]) -> std::result::Result<u64, String> {
    let digits = value.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, unit) = value.split_at(digits);
    let factor = choice(unit, units).map_err(|_| "no such unit".to_owned())?;
    let number = digits.parse::<u64>().ok();
    number
        .and_then(|number| number.checked_mul(factor))
        .ok_or_else(|| "not a number in the range".to_owned())
}

fn size(value: &str) -> std::result::Result<u64, String> {
    let units = [
        ("", 1),
        ("k", 1 << 10),
        ("m", 1 << 20),
        ("g", 1 << 30),
        ("t", 1 << 40),
    ];
    with_unit(value, &units)
}

fn time_resolution(value: &str) -> std::result::Result<TimeResolution, String> {
    let units = [
        ("ns", 1),
        ("us", 1000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
    ];
    TimeResolution::from_nanos(with_unit(value, &units)?).map_err(text)
}

/// A codec for data of any kind.
fn codec(value: &str) -> std::result::Result<CodecSpec, String> {
    let spec: CodecSpec = value.parse().map_err(text)?;
    match spec.requires() {
        ContentKind::Bytes => Ok(spec),
        kind => Err(format!("it takes {kind} only, so it needs a category")),
    }
}

fn parse_categories(list: &str) -> std::result::Result<Vec<Category>, String> {
    list.split(',')
        .map(|name| name.parse::<Category>().map_err(text))
        .collect()
}

fn categorizers(list: &str) -> std::result::Result<Vec<Categorizer>, String> {
    let names = list.split(',').filter(|name| !name.is_empty());
    names
        .map(|name| match name {
            "binary" => Ok(Categorizer::Binary),
            "fits" => Ok(Categorizer::Fits),
            "incompressible" => Ok(Categorizer::Incompressible(Incompressible::default())),
            "pcmaudio" => Ok(Categorizer::PcmAudio),
            other => Err(format!(
                "no such categorizer: {other} (there are binary, fits, incompressible, pcmaudio)"
            )),
        })
        .collect()
}

fn order(value: &str) -> std::result::Result<Order, String> {
    Ok(match value {
        "none" => Order::None,
        "path" => Order::Path,
        "revpath" => Order::RevPath,
        "similarity" => Order::Similarity,
        "nilsimsa" => Order::Nilsimsa(NilsimsaOptions::default()),
        "versions" => Order::Versions(FamilyOptions::default()),
        "families" => Order::Families(FamilyOptions::default()),
        _ => return Err("no such order".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &[(&str, &str)]) -> BuildOptions {
        let mut options = BuildOptions::level(5);
        for (name, value) in pairs {
            set_option(&mut options, name, value).unwrap();
        }
        options
    }

    #[test]
    fn values_arrive() {
        let options = set(&[
            ("block_size_bits", "21"),
            ("categorize", "pcmaudio,incompressible"),
            ("compression", "lz4"),
            ("compression", "pcmaudio/waveform,incompressible::null"),
            ("order", "revpath"),
            ("order", "incompressible::none"),
            ("memory-limit", "2g"),
            ("max-similarity-size", "0"),
            ("metadata-compression", "null"),
            ("no-history", "true"),
            ("no_hardlink_table", "true"),
            ("time-resolution", "10ms"),
            ("set-owner", "7"),
            ("set-time", "1234567890"),
            ("file-hash", "none"),
            ("hard-links", "dissolve"),
        ]);
        assert_eq!(options.block_size_bits, 21);
        assert_eq!(options.categorizers.len(), 2);
        assert_eq!(options.compression.to_string(), "lz4");
        let own = &options.categories[&Category::PcmWaveform];
        assert_eq!(own.compression, Some(CodecSpec::none()));
        assert_eq!(options.order, Order::RevPath);
        let own = &options.categories[&Category::Incompressible];
        assert_eq!(own.order, Some(Order::None));
        assert_eq!(options.memory_limit, Some(2 << 30));
        assert_eq!(options.max_similarity_size, None);
        assert_eq!(options.metadata_compression, CodecSpec::none());
        assert!(options.history.is_none() && !options.hardlink_table);
        assert_eq!(options.time_resolution.nanos(), 10_000_000);
        assert_eq!(
            (options.set_owner, options.set_time),
            (Some(7), Some(1_234_567_890))
        );
        assert!(options.file_hash.is_none() && options.dissolve_hard_links);
        options.check().unwrap();
        assert!(set(&[("no-history", "false")]).history.is_some());
    }

    #[test]
    fn wrong_names_and_values_are_named() {
        for (name, value, words) in [
            ("blocksize", "1", "no such option: blocksize"),
            (
                "block-size-bits",
                "31",
                "block-size-bits=31: not a number in the range (10 to 30)",
            ),
            ("order", "random", "order=random: no such order (order)"),
            ("compression", "flac", "it needs a category"),
            ("compression", "nothing::lz4", "nothing"),
            ("memory-limit", "5x", "no such unit"),
            ("memory-limit", "99999999999t", "not a number"),
            ("time-resolution", "5", "no such unit"),
            ("hollow", "yes", "no such choice (switch)"),
            ("categorize", "words", "no such categorizer: words"),
        ] {
            let mut options = BuildOptions::level(1);
            let e = set_option(&mut options, name, value).unwrap_err();
            assert!(e.to_string().contains(words), "{e}");
        }
    }

    #[test]
    fn names_are_sorted_and_have_a_form() {
        assert!(OPTION_NAMES.is_sorted());
        assert!(
            OPTION_NAMES
                .iter()
                .all(|(name, form)| !name.is_empty() && !form.is_empty())
        );
    }
}
