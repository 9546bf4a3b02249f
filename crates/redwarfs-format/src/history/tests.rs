use proptest::prelude::*;

use super::*;

/// The worked example of format chapter 02 section 5.
const EXAMPLE: &[u8] = b"\x19\x1c\x1c\x14\x00\x14\x1e\x14\x06\x12\
    \x18\x0ae0465a9353\x18\x04main\x18\x16v0.15.3-13-ge0465a9353\x00\
    \x18\x0eLinux [x86_64]\x18\x0cClang 19.1.7\x3a\xb8\
    \x0cFLAC++-1.4.2\x0cboost-1.74.0\x0fbrotlidec-1.0.9\x0fbrotlienc-1.0.9\
    \x0dcrypto-3.0.22\x0afmt-12.1.0\x09lz4-1.9.4\x0alzma-5.4.1\
    \x0bphmap-2.0.0\x0cxxhash-0.8.1\x0azstd-1.5.4\x00\x00";

#[test]
fn worked_example() {
    assert_eq!(EXAMPLE.len(), 227);
    let history = History::parse(EXAMPLE).unwrap();
    let [entry] = &history.entries[..] else {
        panic!("{} entries", history.entries.len());
    };
    assert_eq!(
        entry.version,
        HistoryVersion {
            major: 0,
            minor: 15,
            patch: 3,
            is_release: false,
            git_rev: Some("e0465a9353".into()),
            git_branch: Some("main".into()),
            git_desc: Some("v0.15.3-13-ge0465a9353".into()),
        }
    );
    assert_eq!(entry.system_id, "Linux [x86_64]");
    assert_eq!(entry.compiler_id, "Clang 19.1.7");
    assert_eq!((&entry.arguments, entry.timestamp), (&None, None));
    assert_eq!(entry.library_versions.as_ref().unwrap().len(), 11);
    assert_eq!(history.encode(), EXAMPLE);
}

#[test]
fn arguments_and_timestamp_follow_the_compiler() {
    let history = History {
        entries: vec![HistoryEntry {
            arguments: Some(vec!["mkdwarfs".into()]),
            timestamp: Some(3),
            library_versions: Some(BTreeSet::new()),
            ..HistoryEntry::default()
        }],
    };
    let payload = history.encode();
    let tail = b"\x18\x00\x19\x18\x08mkdwarfs\x16\x06\x1a\x08\x00\x00";
    assert!(payload.ends_with(tail), "{payload:02x?}");
    assert_eq!(History::parse(&payload).unwrap(), history);
}

#[test]
fn every_truncation_is_an_error_and_trailing_bytes_are_ignored() {
    for length in 0..EXAMPLE.len() {
        assert!(History::parse(&EXAMPLE[..length]).is_err(), "{length}");
    }
    let longer = [EXAMPLE, b"\xff\xff"].concat();
    assert_eq!(
        History::parse(&longer).unwrap(),
        History::parse(EXAMPLE).unwrap()
    );
    assert_eq!(History::parse(&[0]).unwrap(), History::default());
}

fn text() -> impl Strategy<Value = String> {
    ".{0,12}"
}

prop_compose! {
    fn entry()(
        numbers: (u16, u16, u16, bool),
        git in proptest::option::of((text(), text(), text())),
        system_id in text(),
        compiler_id in text(),
        arguments in proptest::option::of(proptest::collection::vec(text(), 0..20)),
        timestamp: Option<u64>,
        library_versions in proptest::option::of(proptest::collection::btree_set(text(), 0..20)),
    ) -> HistoryEntry {
        let (git_rev, git_branch, git_desc) = match git {
            Some((a, b, c)) => (Some(a), Some(b), Some(c)),
            None => (None, None, None),
        };
        let (major, minor, patch, is_release) = numbers;
        HistoryEntry {
            version: HistoryVersion {
                major, minor, patch, is_release, git_rev, git_branch, git_desc,
            },
            system_id, compiler_id, arguments, timestamp, library_versions,
        }
    }
}

proptest! {
    #[test]
    fn round_trip(entries in proptest::collection::vec(entry(), 0..20)) {
        let history = History { entries };
        prop_assert_eq!(History::parse(&history.encode()).unwrap(), history);
    }
}

#[test]
fn libraries_are_limited_even_if_they_are_all_equal() {
    // Field 1: a list of one struct, whose field 6 is a set of empty strings.
    let payload = |count: usize| {
        let mut bytes = vec![0x19, 0x1c, 0x6a, 0xf8];
        let mut rest = count;
        while rest >= 0x80 {
            bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
        bytes.resize(bytes.len() + count, 0);
        bytes.extend([0, 0]);
        bytes
    };
    assert!(History::parse(&payload(MAX_STRINGS)).is_ok());
    let error = History::parse(&payload(MAX_STRINGS + 1));
    assert!(matches!(error, Err(Error::Limit(_))), "{error:?}");
}

#[test]
fn libraries_have_their_own_names() {
    let ours = HistoryVersion::of_this_library(0, 1, 2);
    assert_eq!(ours.library(), "libredwarfs v0.1.2");
    // The reference's `dwarfsck` fails on what is no release and has no branch.
    assert!(ours.is_release || ours.git_branch.is_some());
    let mut other = HistoryVersion {
        major: 0,
        minor: 15,
        patch: 3,
        is_release: true,
        git_desc: Some("v0.15.3".into()),
        ..HistoryVersion::default()
    };
    assert_eq!(other.library(), "libdwarfs v0.15.3");
    other.is_release = false;
    other.git_desc = Some("v0.15.3-13-ge0465a9353".into());
    assert_eq!(other.library(), "libdwarfs v0.15.3-13-ge0465a9353");
    other.git_desc = None;
    assert_eq!(other.library(), "libdwarfs v0.15.3");
}
