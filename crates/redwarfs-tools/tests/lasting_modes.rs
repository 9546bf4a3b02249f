//! Whatever is made from an image that not everybody may read is not readable by more users.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use crate::support::lasting::{TestDir, add};
use crate::support::{DWARFSCK, DWARFSEXTRACT, MKDWARFS, must};

/// Runs a program for which the umask forbids nothing.
fn open_umask<S: AsRef<OsStr>>(program: &str, args: &[S]) {
    let script = ["-c", "umask 0; exec \"$@\"", "sh", program];
    let args = args.iter().map(AsRef::as_ref);
    must("sh", script.iter().map(OsStr::new).chain(args));
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// An image with recovery data and two snapshots, of another user if that is possible.
fn private(bits: u32) -> TestDir {
    let place = TestDir::new(60_000, &["-l1"]);
    add(&place.tree(), 4..5, 60_000);
    let (tree, image) = (place.tree(), place.image.clone());
    let append = ["-i", tree.to_str().unwrap(), "--append"];
    must(MKDWARFS, append.iter().chain(&[image.to_str().unwrap()]));
    let _ = chown(&place.image, Some(1234), Some(2345));
    set_mode(&place.image, bits);
    place
}

impl TestDir {
    /// Makes the file or directory `made` with a program, and compares its permissions with those of the image.
    fn makes(&self, program: &str, made: &str, args: &[&str], expected: u32) {
        let path = self.path(made);
        let image = self.image.to_str().unwrap();
        let args = args.iter().map(|arg| {
            arg.replace("IMAGE", image)
                .replace("MADE", path.to_str().unwrap())
                .replace("TREE", self.tree().to_str().unwrap())
        });
        let args: Vec<String> = args.collect();
        let before = mode(&self.image);
        open_umask(program, &args);
        assert_eq!(mode(&path), expected, "{args:?}: {:o}", mode(&path));
        let (found, own) = (
            fs::metadata(&path).unwrap(),
            fs::metadata(&self.image).unwrap(),
        );
        assert_eq!((found.uid(), found.gid()), (own.uid(), own.gid()), "{made}");
        assert_eq!(mode(&self.image), before);
    }
}

#[test]
fn what_is_made_from_an_image_is_as_private_as_the_image() {
    for (bits, expected) in [(0o600, 0o600), (0o640, 0o640), (0o644, 0o644)] {
        let place = private(bits);
        let check = |made: &str, args: &[&str]| place.makes(DWARFSCK, made, args, expected);
        check("beside", &["IMAGE", "--add-recovery=10%", "--sidecar=MADE"]);
        check("metadata", &["IMAGE", "--export-metadata=MADE"]);
        check("compact", &["IMAGE", "--compact=MADE"]);
        must(
            DWARFSCK,
            ["-q", "--add-digests", place.image.to_str().unwrap()],
        );
        check("digests", &["IMAGE", "--export-digests=MADE"]);
        // In place, the file stays the same one.
        let whole = place.bytes();
        check("image", &["IMAGE", "--add-recovery=10%"]);
        check("image", &["IMAGE", "--remove-recovery"]);
        assert!(place.bytes() == whole);
        check("image", &["IMAGE", "--add-recovery=10%"]);
        let whole = place.bytes();
        place.damage(|bytes| bytes[70_000..72_000].fill(7));
        check("patch", &["IMAGE", "--repair-patch=MADE"]);
        check("copy", &["IMAGE", "--repair=MADE"]);
        assert!(fs::read(place.path("copy")).unwrap() == whole);
        fs::create_dir(place.path("out")).unwrap();
        let out = place.path("out");
        let salvage = ["IMAGE", "-o", out.to_str().unwrap(), "--salvage=MADE"];
        // A directory has a name from the first moment on, when its group may be another one.
        let directory = match expected {
            0o644 => 0o755,
            _ => 0o700,
        };
        place.makes(DWARFSEXTRACT, "parts", &salvage, directory);
        assert_eq!(mode(&place.path("parts/repaired.dwarfs")), expected);
        check("image", &["IMAGE", "--repair"]);
        let archive = ["-iIMAGE", "-fpax", "-oMADE"];
        place.makes(DWARFSEXTRACT, "archive", &archive, expected);
        let build = |made: &str, args: &[&str]| place.makes(MKDWARFS, made, args, expected);
        build("rewritten", &["-iIMAGE", "--recompress=none", "-oMADE"]);
        let merged = place.path("rewritten");
        set_mode(&merged, bits);
        let other = format!("-i{}", merged.display());
        build("merged", &["-iIMAGE", &other, "--merge", "-oMADE"]);
        build("grown", &["-iTREE", "--append=IMAGE", "-oMADE"]);
        build("delta", &["-iTREE", "--append=IMAGE", "--delta-out=MADE"]);
    }
}
