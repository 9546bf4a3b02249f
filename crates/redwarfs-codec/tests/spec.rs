//! The grammar of codec selection.

use redwarfs_codec::{CodecSpec, help};

fn error(spec: &str) -> String {
    match spec.parse::<CodecSpec>() {
        Ok(parsed) => panic!("{spec} was accepted as {parsed}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn canonical_forms() {
    let table = [
        ("null", "null"),
        ("zstd", "zstd:level=22"),
        ("zstd:level=3", "zstd:level=3"),
        ("zstd:level=-131072", "zstd:level=-131072"),
        ("zstd:long:level=19", "zstd:level=19:long"),
        (
            "zstd:lhrlog=24:lblog=8:lmml=4096:lhlog=30:strat=9:tlen=131072:mml=3:slog=1:clog=6:hlog=6:wlog=10",
            "zstd:level=22:wlog=10:hlog=6:clog=6:slog=1:mml=3:tlen=131072:strat=9:lhlog=30:lmml=4096:lblog=8:lhrlog=24",
        ),
        ("lzma", "lzma:level=9"),
        (
            "lzma:depth=4294967295:nice=273:mf=bt2:mode=fast:binary=x86:dict_size=30:extreme:level=0",
            "lzma:level=0:extreme:dict_size=30:binary=x86:mode=fast:mf=bt2:nice=273:depth=4294967295",
        ),
        ("lzma:mf=bt2:nice=2", "lzma:level=9:mf=bt2:nice=2"),
        ("lzma:level=0:nice=3", "lzma:level=0:nice=3"),
        ("lz4", "lz4"),
        ("lz4hc", "lz4hc:level=9"),
        ("lz4hc:level=0", "lz4hc:level=0"),
        ("brotli", "brotli:quality=11:lgwin=22"),
        ("brotli:lgwin=30:quality=0", "brotli:quality=0:lgwin=30"),
        ("flac", "flac:level=5"),
        ("flac:exhaustive:level=8", "flac:level=8:exhaustive"),
        ("ricepp", "ricepp:block_size=128"),
        ("ricepp:block_size=16", "ricepp:block_size=16"),
    ];
    for (spec, canonical) in table {
        let parsed: CodecSpec = spec.parse().unwrap_or_else(|e| panic!("{spec}: {e}"));
        assert_eq!(parsed.to_string(), canonical, "{spec}");
        let again: CodecSpec = canonical.parse().unwrap();
        assert_eq!(again, parsed, "{spec}");
    }
    assert_eq!("null".parse(), Ok(CodecSpec::none()));
}

#[test]
fn every_branch_filter_is_known() {
    for name in "x86 powerpc ia64 arm armthumb arm64 sparc riscv".split(' ') {
        let spec = format!("lzma:binary={name}");
        let parsed: CodecSpec = spec.parse().unwrap();
        assert!(parsed.to_string().ends_with(name));
    }
}

#[test]
fn errors() {
    let table = [
        ("", "missing compression name"),
        (":level=1", "missing compression name"),
        ("foo", "unknown compression: foo"),
        ("ZSTD", "unknown compression: ZSTD"),
        ("zstd=3", "unknown compression: zstd=3"),
        ("FLAC", "unknown compression: FLAC"),
        (
            "flac:blocksize=3",
            "invalid option(s) for choice 'flac': blocksize",
        ),
        (
            "flac:exhaustive=1",
            "value not allowed for option 'exhaustive' of choice 'flac'",
        ),
        (
            "ricepp:block_size",
            "missing value for option 'block_size' of choice 'ricepp'",
        ),
        ("null:foo", "invalid option(s) for choice 'null': foo"),
        ("zstd:foo", "invalid option(s) for choice 'zstd': foo"),
        (
            "zstd:foo=1:level=3:bar",
            "invalid option(s) for choice 'zstd': foo, bar",
        ),
        ("zstd:", "invalid option(s) for choice 'zstd': ''"),
        ("lz4:level=3", "invalid option(s) for choice 'lz4': level"),
        (
            "zstd:level",
            "missing value for option 'level' of choice 'zstd'",
        ),
        (
            "zstd:level=",
            "missing value for option 'level' of choice 'zstd'",
        ),
        (
            "lzma:binary",
            "missing value for option 'binary' of choice 'lzma'",
        ),
        (
            "zstd:long=1",
            "value not allowed for option 'long' of choice 'zstd'",
        ),
        (
            "lzma:extreme=",
            "value not allowed for option 'extreme' of choice 'lzma'",
        ),
        (
            "zstd:level=3:level=3",
            "duplicate option 'level' for choice 'zstd'",
        ),
        (
            "zstd:long:long",
            "duplicate option 'long' for choice 'zstd'",
        ),
        (
            "zstd:level=x",
            "invalid option 'level' for choice 'zstd': 'x' is not a decimal number",
        ),
        (
            "zstd:level=+3",
            "invalid option 'level' for choice 'zstd': '+3' is not a decimal number",
        ),
        (
            "zstd:level=3 ",
            "invalid option 'level' for choice 'zstd': '3 ' is not a decimal number",
        ),
        (
            "zstd:level=-",
            "invalid option 'level' for choice 'zstd': '-' is not a decimal number",
        ),
        (
            "zstd:level=3=4",
            "invalid option 'level' for choice 'zstd': '3=4' is not a decimal number",
        ),
        (
            "lzma:mode=slow",
            "invalid option 'mode' for choice 'lzma': 'slow' is not one of fast, normal",
        ),
        (
            "lzma:mf=bt5",
            "invalid option 'mf' for choice 'lzma': 'bt5' is not one of hc3, hc4, bt2, bt3, bt4",
        ),
        (
            "lzma:binary=mips",
            "invalid option 'binary' for choice 'lzma': 'mips' is not one of \
             x86, powerpc, ia64, arm, armthumb, arm64, sparc, riscv, auto",
        ),
        (
            "lzma:nice=3",
            "invalid option 'nice' for choice 'lzma': 3 is out of range 4..273",
        ),
        (
            "lzma:mf=hc3:nice=2",
            "invalid option 'nice' for choice 'lzma': 2 is out of range 3..273",
        ),
    ];
    for (spec, message) in table {
        let found = error(spec);
        let advice = found
            .strip_prefix(message)
            .unwrap_or_else(|| panic!("{found}"));
        // Unknown words come with those that are known.
        let listed = message.starts_with("unknown") || message.starts_with("invalid option(s)");
        assert_eq!(
            advice.starts_with(" (") && advice.ends_with(')'),
            listed,
            "{found}"
        );
        assert_eq!(advice.is_empty(), !listed, "{found}");
    }
}

#[test]
fn unknown_words_come_with_those_that_are_known() {
    for (spec, part) in [
        ("foo", "one of null, "),
        ("foo", ", zstd, "),
        ("zstd:19", "(write zstd:level=19)"),
        ("zstd:-5", "(write zstd:level=-5)"),
        ("brotli:11", "(write brotli:quality=11)"),
        ("ricepp:64", "(write ricepp:block_size=64)"),
        ("lz4:9", "(it has none)"),
        ("zstd:levle=3", "(one of level, long, "),
        ("lzma:binary=mips", "is not one of "),
    ] {
        assert!(error(spec).contains(part), "{}", error(spec));
    }
}

/// The largest window of zstd depends on the processor, and other limits on the window.
const WINDOW: i64 = if cfg!(target_pointer_width = "64") {
    31
} else {
    30
};

#[test]
fn ranges_are_checked_at_both_ends() {
    let table = [
        ("zstd", "level", -131072, 22),
        ("zstd", "wlog", 10, WINDOW),
        ("zstd", "hlog", 6, 30),
        ("zstd", "clog", 6, WINDOW - 1),
        ("zstd", "slog", 1, WINDOW - 1),
        ("zstd", "mml", 3, 7),
        ("zstd", "tlen", 0, 131072),
        ("zstd", "strat", 1, 9),
        ("zstd", "lhlog", 6, 30),
        ("zstd", "lmml", 4, 4096),
        ("zstd", "lblog", 1, 8),
        ("zstd", "lhrlog", 0, WINDOW - 6),
        ("lzma", "level", 0, 9),
        ("lzma", "dict_size", 12, 30),
        ("lzma", "nice", 2, 273),
        ("lzma", "depth", 0, 4294967295),
        ("lz4hc", "level", 0, 12),
        ("brotli", "quality", 0, 11),
        ("brotli", "lgwin", 10, 30),
        ("flac", "level", 0, 8),
        ("ricepp", "block_size", 16, 512),
    ];
    for (codec, option, low, high) in table {
        // The lowest nice length needs a match finder that can do it.
        let base = if option == "nice" {
            "lzma:mf=bt2"
        } else {
            codec
        };
        for value in [low, high] {
            let spec = format!("{base}:{option}={value}");
            spec.parse::<CodecSpec>()
                .unwrap_or_else(|e| panic!("{spec}: {e}"));
        }
        for value in [low - 1, high + 1, i64::MIN, i64::MAX] {
            assert_eq!(
                error(&format!("{base}:{option}={value}")),
                format!(
                    "invalid option '{option}' for choice '{codec}': \
                     {value} is out of range {low}..{high}"
                ),
            );
        }
        let huge = "99999999999999999999";
        assert_eq!(
            error(&format!("{base}:{option}={huge}")),
            format!(
                "invalid option '{option}' for choice '{codec}': {huge} is out of range {low}..{high}"
            ),
        );
    }
}

#[test]
fn the_help_text_names_everything() {
    let text = help();
    for line in [
        "  null\n",
        "  zstd\n",
        "    level=-131072..22        compression level (default: 22)\n",
        "    long ",
        "    dict_size=12..30 ",
        "    mode=fast|normal ",
        "  flac\n",
        "    level=0..8               compression level (default: 5)\n",
        "    exhaustive ",
        "  ricepp\n",
        "    block_size=16..512       pixels per block (default: 128)\n",
        "    lgwin=10..30             window size (log2) (default: 22)\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}

#[test]
fn memory_estimates_follow_size_and_settings() {
    let memory = |spec: &str, size| spec.parse::<CodecSpec>().unwrap().encoder_memory(size);
    assert_eq!(memory("null", 1 << 26), 0);
    for spec in [
        "zstd",
        "zstd:long",
        "lzma",
        "lzma:binary=x86",
        "lz4",
        "lz4hc",
        "brotli",
        "flac",
        "ricepp",
    ] {
        let small = memory(spec, 1 << 16);
        let large = memory(spec, 1 << 26);
        assert!(small > 1 << 16, "{spec}: {small}");
        assert!(large > small && large < 2 << 30, "{spec}: {small} {large}");
    }
    assert!(memory("zstd:level=1", 1 << 24) < memory("zstd:level=22", 1 << 24));
    let sequences = memory("zstd:level=19:deep=32", 1 << 24) - memory("zstd:level=19", 1 << 24);
    assert!(sequences >= 1 << 24, "{sequences}");
    assert!(memory("lzma:level=1", 1 << 24) < memory("lzma:level=9", 1 << 24));
    assert!(memory("brotli:quality=1", 1 << 24) < memory("brotli:quality=11", 1 << 24));
}
