//! Images that must be what somebody has signed, through the library.
#![cfg(feature = "signatures")]
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use redwarfs::io::MemorySource;
use redwarfs::{Error, ErrorKind, Image, OpenOptions, verification};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests")
        .join(name)
}

fn options(text: &str) -> OpenOptions {
    let mut options = OpenOptions::default();
    options.verification = verification(text).unwrap();
    options
}

fn signed_by(name: &str) -> OpenOptions {
    let key = fixture("fixtures/keys").join(name);
    options(&format!("signed:{}", key.display()))
}

#[test]
fn signed_images_are_read_and_others_refused() {
    let path = fixture("vectors/signed.bin");
    let image = Image::open_with(&path, &signed_by("ssh.pub")).unwrap();
    let plain = Image::open(&path).unwrap();
    assert_eq!(image.verified().unwrap().time, 1_700_000_000);
    assert!(
        image
            .verified()
            .unwrap()
            .signer
            .as_ref()
            .unwrap()
            .contains("SSH key SHA256:")
    );
    assert!(plain.verified().is_none());
    let digests = Image::open_with(&path, &options("digests")).unwrap();
    assert_eq!(digests.verified().unwrap().signer, None);
    let out = tempfile::tempdir().unwrap();
    redwarfs::extract(&image, out.path()).unwrap();
    let read = |image: &Image| std::io::read_to_string(image.file("only").unwrap()).unwrap();
    assert_eq!(read(&image), read(&plain));
    assert_eq!(
        std::fs::read_to_string(out.path().join("only")).unwrap(),
        read(&plain)
    );

    let refused = Image::open_with(&path, &signed_by("minisign.pub")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unverified, "{refused}");
    let unsigned = fixture("fixtures/images/one.dwarfs");
    let refused = Image::open_with(unsigned, &signed_by("ssh.pub")).unwrap_err();
    assert!(refused.to_string().contains("signed"), "{refused}");
    // A changed block is refused even if checksums are not compared.
    let mut bytes = std::fs::read(path).unwrap();
    bytes[100] ^= 1;
    let source: Arc<MemorySource> = Arc::new(MemorySource::new(bytes));
    let mut trusting = signed_by("ssh.pub");
    trusting.trust_blocks = true;
    let image = Image::from_source(source.clone(), &trusting).unwrap();
    assert!(std::io::read_to_string(image.file("only").unwrap()).is_err());
    assert!(redwarfs::extract(&image, out.path().join("changed")).is_err());
    trusting.verification = verification("checksums").unwrap();
    let image = Image::from_source(source, &trusting).unwrap();
    assert!(image.verified().is_none());
}

#[test]
fn what_cannot_be_verified_is_said() {
    for (text, kind, words) in [
        (
            "believed",
            ErrorKind::Option,
            "one of signed:KEY, digests, checksums",
        ),
        ("signed:/none", ErrorKind::Io, "/none"),
        (
            "signed:ssh-ed25519 AAAA",
            ErrorKind::Option,
            "no public key of SSH",
        ),
        ("", ErrorKind::Option, "no such verification"),
    ] {
        let error = verification(text).unwrap_err();
        assert!(matches!(error, Error::Verification { .. }));
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.errno() > 0 && error.path().is_none());
        assert!(
            error.to_string().contains(words) && !error.to_string().contains('\n'),
            "{error}"
        );
    }
}
