//! Tests of single values.

use super::*;

#[test]
fn ranges() {
    let parse = ranged(0, 24);
    assert_eq!(parse("0"), Ok(0));
    assert_eq!(parse("24"), Ok(24));
    let cases = [
        ("25", "value 25 out of range [0..24]"),
        ("-1", "value -1 out of range [0..24]"),
        ("99999999999", "value 99999999999 out of range [0..24]"),
        ("x", "not an integer"),
        ("", "not an integer"),
        ("a::3", NEEDS_CATEGORIES),
    ];
    for (text, want) in cases {
        assert_eq!(parse(text), Err(want.to_owned()), "{text}");
    }
}

#[test]
fn levels_and_block_sizes() {
    for l in 0..=9 {
        assert_eq!(level(&l.to_string()), Ok(l));
    }
    for bad in ["10", "-1", "x", ""] {
        assert!(
            level(bad).is_err_and(|e| e.starts_with("invalid compression level")),
            "{bad}"
        );
    }
}

#[test]
fn times() {
    let at = 1_589_723_045; // 2020-05-17 13:44:05
    let ok = [
        ("now", TimeSpec::Now),
        ("0", TimeSpec::At(0)),
        ("20200517", TimeSpec::At(20_200_517)),
        ("20200517T134405", TimeSpec::At(at)),
        ("20200517T134405.75", TimeSpec::At(at)),
        ("20200517T1344", TimeSpec::At(at - 5)),
        ("20200517T", TimeSpec::At(1_589_673_600)),
        ("2020-05-17 13:44:05", TimeSpec::At(at)),
        ("2020-05-17T13:44:05", TimeSpec::At(at)),
        ("2020-05-17T13:44:05.123456", TimeSpec::At(at)),
        ("2020-05-17 13:44", TimeSpec::At(at - 5)),
        ("2020-05-17T13:44", TimeSpec::At(at - 5)),
        ("2020-05-17T", TimeSpec::At(1_589_673_600)),
        ("2020-05-17", TimeSpec::At(1_589_673_600)),
        ("2020-05-17T13:44:05Z", TimeSpec::At(at)),
        ("2020-05-17 13:44:05+00:00", TimeSpec::At(at)),
        ("2020-05-17T13:44:05.75-0000", TimeSpec::At(at)),
        ("2020-05-17T15:44:05+02:00", TimeSpec::At(at)),
        ("2020-05-17T08:14:05-0530", TimeSpec::At(at)),
        ("2020-05-17T15:44+02", TimeSpec::At(at - 5)),
        ("20200517T134405Z", TimeSpec::At(at)),
        ("20200517T1544+0200", TimeSpec::At(at - 5)),
    ];
    for (text, want) in ok {
        assert_eq!(set_time(text), Ok(want), "{text}");
    }
    let bad = [
        "",
        "-5",
        "yesterday",
        "2020-05-17T13:44:05z",
        "2020-05-17T13:44:05ZZ",
        "2020-05-17T13:44:05Z+00:00",
        "2020-05-17T13:44:05+24:00",
        "2020-05-17T13:44:05+00:60",
        "2020-05-17T13:44:05+1",
        "2020-05-17T13:44:05+100",
        "2020-05-17T13:44:05+01:00:00",
        "2020-05-17T13:44:05+",
        "2020-05-17Z",
        "2020-05-17TZ",
        "2020-05-17T10",
        "2020-05-17 ",
        "2020-02-30",
        "2020-13-01",
        "20200517 134405",
        "2020-5-17",
        "2020-05-17T13:44:5",
        "2020-05-17T13:44.5",
        "2020-05-17T13:44:05.",
        "20200517T13",
        "20200517T13440",
        "99999999999999999999",
        "2020-05-17T24:00",
        "é020-05-17",
        "2020-05-17-01",
    ];
    for text in bad {
        assert!(
            set_time(text).is_err_and(|e| e.starts_with("cannot parse time point")),
            "{text}"
        );
    }
}

#[test]
fn resolutions() {
    for (text, nanos) in [
        ("1", 1_000_000_000),
        ("10ms", 10_000_000),
        ("ns", 1),
        ("2min", 120_000_000_000),
    ] {
        assert_eq!(
            time_resolution(text).map(TimeResolution::nanos),
            Ok(nanos),
            "{text}"
        );
    }
    let bad = [
        ("0", "must be nonzero"),
        ("1500ms", "(1.5s) that is larger than one second"),
        ("3ms", "(3ms) that is not a whole divisor"),
        ("1.5s", "unsupported time suffix: .5s"),
        ("x", "unsupported time suffix: x"),
    ];
    for (text, want) in bad {
        assert!(
            time_resolution(text).is_err_and(|e| e.contains(want)),
            "{text}"
        );
    }
}

#[test]
fn packings() {
    assert_eq!(packing("auto"), Ok(Packing::auto()));
    assert_eq!(packing("none"), Ok(Packing::none()));
    assert_eq!(packing("all"), Ok(Packing::all()));
    let forced = Packing {
        force: true,
        ..Packing::all()
    };
    assert_eq!(packing("force,all"), Ok(forced));
    assert_eq!(packing("all,force"), Ok(forced));
    let some = Packing {
        chunk_table: true,
        names_index: true,
        ..Packing::none()
    };
    assert_eq!(packing("chunk_table,names_index"), Ok(some));
    let plain = Packing {
        plain: true,
        ..Packing::none()
    };
    assert_eq!(packing("none,plain"), Ok(plain));
    assert_eq!(packing("plain,none"), Ok(plain));
    assert_eq!(packing("none,chunk_table,names_index"), Ok(some));
    assert_eq!(packing("none,all"), Ok(Packing::all()));
    for bad in ["x", "", "all,", "auto,names", "none,"] {
        assert!(packing(bad).is_err(), "{bad}");
    }
}

#[test]
fn memory_hash_epoch() {
    assert_eq!(memory_limit("auto"), Ok(MemoryLimit(None)));
    assert_eq!(memory_limit("1g"), Ok(MemoryLimit(Some(1 << 30))));
    assert!(memory_limit("x").is_err());
    assert_eq!(file_hash("none"), Ok(HashChoice(None)));
    assert_eq!(file_hash("sha256"), Ok(HashChoice(Some(FileHash::Sha256))));
    let error = file_hash("x").unwrap_err();
    assert!(error.starts_with("unknown file hash function 'x' (none, or one of blake2b512, "));
    assert_eq!(source_date_epoch("12"), Ok(12));
    for bad in ["", "-1", "1.5", "+1", "99999999999999999999"] {
        assert!(source_date_epoch(bad).is_err(), "{bad}");
    }
}
