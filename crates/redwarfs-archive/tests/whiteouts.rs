//! Whiteouts that become what overlayfs takes for them.

use crate::common::{dir, file, lines, read, tar};
use redwarfs_archive::Whiteouts;
use redwarfs_writer::Source;

/// The lines of the tree, and the names of opaque directories in its root.
fn overlay(layers: &[Vec<u8>]) -> (Vec<String>, Vec<String>) {
    let layers: Vec<(&str, &[u8])> = layers.iter().map(|bytes| ("", &bytes[..])).collect();
    let outcome = read(&layers, |options| options.whiteouts = Whiteouts::Overlay);
    assert_eq!(outcome.messages, Vec::<String>::new());
    let source = outcome.source.unwrap();
    let items = source.read_dir(b"").unwrap();
    let opaque = items.iter().filter(|item| {
        let xattrs = item.meta.as_ref().unwrap().extended.xattrs();
        xattrs
            .iter()
            .any(|xattr| xattr.name == b"trusted.overlay.opaque" && xattr.value == b"y")
    });
    let opaque = opaque.map(|item| String::from_utf8(item.name.clone()).unwrap());
    let mut opaque: Vec<String> = opaque.collect();
    opaque.sort_unstable();
    let kinds = lines(&source);
    let kinds = kinds.iter().map(|line| {
        let words: Vec<&str> = line.split(' ').take(2).collect();
        words.join(" ")
    });
    (kinds.collect(), opaque)
}

#[test]
fn a_whiteout_never_hides_its_own_layer() {
    let entries = [
        file(".wh.file", b""),
        file("file", b"1"),
        file(".wh.dir", b""),
        dir("dir/"),
        file("dir/x", b"1"),
        file(".wh.implied", b""),
        file("implied/x", b"1"),
        file(".wh.gone", b""),
    ];
    let want = [
        "dir Directory",
        "dir/x Regular",
        "file Regular",
        "gone CharDevice",
        "implied Directory",
        "implied/x Regular",
    ];
    let (lines, opaque) = overlay(&[tar(&entries)]);
    assert_eq!(lines, want);
    assert_eq!(opaque, ["dir", "implied"]);
    // In any order.
    let mut reverse = entries.to_vec();
    reverse.reverse();
    assert_eq!(overlay(&[tar(&reverse)]), (lines, opaque));
}

#[test]
fn a_whiteout_hides_older_layers() {
    let older = tar(&[file("file", b"1"), dir("dir/"), file("dir/x", b"1")]);
    let newer = tar(&[file(".wh.file", b""), file(".wh.dir", b"")]);
    let (lines, opaque) = overlay(&[older.clone(), newer.clone()]);
    assert_eq!(lines, ["dir CharDevice", "file CharDevice"]);
    assert!(opaque.is_empty());
    // One that has the directory again, in any order.
    let (again, whiteout) = (file("dir/new", b"2"), file(".wh.dir", b""));
    for layer in [[again.clone(), whiteout.clone()], [whiteout, again]] {
        let (lines, opaque) = overlay(&[older.clone(), tar(&layer)]);
        assert_eq!(lines, ["dir Directory", "dir/new Regular", "file Regular"]);
        assert_eq!(opaque, ["dir"]);
    }
    let (lines, opaque) = overlay(&[older, tar(&[file("dir/.wh..wh..opq", b"")])]);
    assert_eq!(lines, ["dir Directory", "file Regular"]);
    assert_eq!(opaque, ["dir"]);
    // A directory of a later layer takes the place of one that is a whiteout of an older layer.
    let (lines, opaque) = overlay(&[newer, tar(&[dir("dir/"), file("file", b"2")])]);
    assert_eq!(lines, ["dir Directory", "file Regular"]);
    assert_eq!(opaque, ["dir"]);
}
