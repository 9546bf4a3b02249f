//! Small images, and keys that are made from seeds.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redwarfs_format::section::Container;
use redwarfs_format::{Error, InodeNo};
use redwarfs_io::{LockedFile, MemorySource, Source as _};
use redwarfs_reader::{Image, OpenOptions, Verification, stored_digests};
use redwarfs_signature::{
    DigestAlgorithm, DigestOptions, Digests, LockedKey, PublicKeys, add_digests, add_signature,
    make_digests,
};
use redwarfs_writer::{BuildOptions, Builder, MemoryNode, MemoryTree, SilentProgress};
use ssh_key::private::Ed25519Keypair;

/// The time in digests.
pub const TIME: i64 = 1_700_000_000;

pub fn go() -> AtomicBool {
    AtomicBool::new(false)
}

/// The files of all images.
pub fn contents() -> BTreeMap<&'static str, Vec<u8>> {
    let noise = (0..200_000_u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8);
    let text = "a line of a text that repeats itself\n".repeat(40);
    BTreeMap::from([
        ("noise", noise.collect()),
        ("text", text.into_bytes()),
        ("empty", Vec::new()),
    ])
}

fn build(level: u8) -> Vec<u8> {
    let mut tree = MemoryTree::new();
    for (name, bytes) in contents() {
        tree.insert(name, MemoryNode::file(bytes));
    }
    let mut image = Vec::new();
    Builder::new(BuildOptions::level(level))
        .build(&tree, &mut image, &SilentProgress::default(), &go())
        .unwrap();
    image
}

/// A pair of keys.
pub struct Keys {
    secret: String,
    pub public: String,
    pub name: String,
}

/// One of minisign, and one of SSH.
pub fn keys() -> [Keys; 2] {
    let pair = minisign::KeyPair::generate_unencrypted_keypair().unwrap();
    let minisign = (
        pair.sk.to_box(None).unwrap().into_string(),
        pair.pk.to_base64(),
    );
    let pair = Ed25519Keypair::from_seed(&[7; 32]);
    let private = ssh_key::PrivateKey::from(pair);
    let ssh = (
        private
            .to_openssh(ssh_key::LineEnding::LF)
            .unwrap()
            .to_string(),
        private.public_key().to_openssh().unwrap(),
    );
    [minisign, ssh].map(|(secret, public)| {
        let names = PublicKeys::parse(&public).unwrap().names();
        Keys {
            secret,
            public,
            name: names[0].clone(),
        }
    })
}

impl Keys {
    pub fn trust(&self) -> Verification {
        Verification::Signed(Arc::new(PublicKeys::parse(&self.public).unwrap()))
    }

    pub fn sign(&self, message: &[u8]) -> String {
        let LockedKey::Open(key) = LockedKey::parse(&self.secret).unwrap() else {
            panic!("a password");
        };
        key.sign(message, "a comment").unwrap().0
    }

    fn kind(&self) -> redwarfs_signature::SignatureKind {
        let LockedKey::Open(key) = LockedKey::parse(&self.secret).unwrap() else {
            panic!("a password");
        };
        key.kind()
    }
}

/// A file with an image in a directory of its own.
pub struct Case {
    dir: tempfile::TempDir,
    pub path: PathBuf,
}

impl Case {
    pub fn new(level: u8) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        fs::write(&path, build(level)).unwrap();
        Self { dir, path }
    }

    pub fn with_digests(level: u8, algorithm: DigestAlgorithm) -> Self {
        let case = Self::new(level);
        case.add_digests(algorithm);
        case
    }

    pub fn signed(level: u8, algorithm: DigestAlgorithm, key: &Keys) -> Self {
        let case = Self::with_digests(level, algorithm);
        case.sign(key);
        case
    }

    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub fn lock(&self) -> LockedFile {
        LockedFile::open(&self.path).unwrap()
    }

    pub fn bytes(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }

    pub fn container(&self) -> Container {
        let source = MemorySource::new(self.bytes());
        let read = |at, out: &mut [u8]| source.read_exact_at(at, out);
        Container::open(&read, source.len().unwrap(), 0, None).unwrap()
    }

    pub fn digests(&self, algorithm: DigestAlgorithm) -> Digests {
        let source = MemorySource::new(self.bytes());
        let options = DigestOptions {
            algorithm,
            time: TIME,
        };
        make_digests(&source, &self.container(), options, &|_| {}, &go()).unwrap()
    }

    pub fn add_digests(&self, algorithm: DigestAlgorithm) {
        add_digests(self.lock(), 0, &self.digests(algorithm)).unwrap();
    }

    /// The message that is signed.
    pub fn message(&self) -> Vec<u8> {
        let source = MemorySource::new(self.bytes());
        let stored = stored_digests(&source, &self.container()).unwrap().unwrap();
        stored.message
    }

    pub fn sign(&self, key: &Keys) {
        self.add_signature(key.kind(), key.sign(&self.message()).as_bytes());
    }

    pub fn add_signature(&self, kind: redwarfs_signature::SignatureKind, text: &[u8]) {
        let source = MemorySource::new(self.bytes());
        let stored = stored_digests(&source, &self.container()).unwrap().unwrap();
        add_signature(self.lock(), 0, &stored, kind, text).unwrap();
    }
}

pub fn open(bytes: &[u8], verification: &Verification) -> Result<Image, Error> {
    let mut options = OpenOptions::default();
    options.verification = verification.clone();
    Image::from_source(Arc::new(MemorySource::new(bytes.to_vec())), &options)
}

/// Reads all files.
pub fn read_all(image: &Image) -> Result<BTreeMap<&'static str, Vec<u8>>, Error> {
    let mut all = BTreeMap::new();
    for name in contents().into_keys() {
        let inode: InodeNo = image
            .find_path(name.as_bytes())?
            .ok_or_else(|| Error::corrupt("a name is missing"))?;
        let mut bytes = vec![0; image.stat(inode)?.size as usize];
        let n = image.read_at(inode, 0, &mut bytes)?;
        bytes.truncate(n);
        all.insert(name, bytes);
    }
    Ok(all)
}
