//! Public keys.

use std::path::Path;
use std::sync::Arc;

use redwarfs_format::digests::SignatureKind;
use redwarfs_reader::{Verification, VerifySignature};

use crate::error::{Error, Result};
use crate::{minisign_keys, ssh};

/// Longest file with keys that is read (1 MiB).
const LONGEST: u64 = 1 << 20;

/// Keys that a signature may be by, any of them.
#[derive(Clone)]
pub struct PublicKeys {
    keys: Vec<PublicKey>,
}

#[derive(Clone)]
enum PublicKey {
    Minisign(minisign_keys::MinisignKey),
    Ssh(Box<ssh_key::PublicKey>),
}

impl std::fmt::Debug for PublicKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl PublicKeys {
    /// The keys of a text: a public key of minisign as a file or as its line of base64, a public key of SSH, or a
    /// file of allowed signers of `ssh-keygen` (without its principals being compared; `namespaces` must include
    /// `dwarfs`).
    ///
    /// # Errors
    /// [`Error::Key`] if there is no key in it, or one that cannot be read.
    pub fn parse(text: &str) -> Result<Self> {
        if text.starts_with(minisign_keys::COMMENT) || minisign_keys::is_base64_key(text.trim()) {
            let key = minisign_keys::MinisignKey::parse(text)?;
            return Ok(Self {
                keys: vec![PublicKey::Minisign(key)],
            });
        }
        if text.contains(" PRIVATE KEY-----") {
            return Err(Error::Key("a private key: give the public one".into()));
        }
        let (keys, left_out) = ssh::public_keys(text)?;
        if keys.is_empty() {
            return Err(Error::Key(match left_out.first() {
                Some(reason) => format!("no key that counts: {reason}"),
                None => "no public key of minisign or SSH".into(),
            }));
        }
        let keys = keys.into_iter().map(|key| PublicKey::Ssh(Box::new(key)));
        Ok(Self {
            keys: keys.collect(),
        })
    }

    /// The keys that a user names: a text as [`PublicKeys::parse`] takes it, or a file with one.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, otherwise as [`PublicKeys::parse`].
    pub fn from_argument(argument: &str) -> Result<Self> {
        let first = argument.split_whitespace().next().unwrap_or_default();
        let is_key = minisign_keys::is_base64_key(argument)
            || (ssh::is_key_type(first) && argument.contains(char::is_whitespace));
        if is_key && !Path::new(argument).exists() {
            return Self::parse(argument);
        }
        Self::parse(&read_text(Path::new(argument), LONGEST)?)
    }

    /// The names of the keys, as [`VerifySignature::verify`] returns them.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.keys.iter().map(PublicKey::name).collect()
    }
}

/// Understands what an image must prove: `signed:KEY`, with a key as [`PublicKeys::from_argument`] takes it, `digests`
/// or `checksums`.
///
/// # Errors
/// [`Error::Choice`] for another text, otherwise as [`PublicKeys::from_argument`].
pub fn verification(text: &str) -> Result<Verification> {
    match (text, text.strip_prefix("signed:")) {
        ("checksums", _) => Ok(Verification::Checksums),
        ("digests", _) => Ok(Verification::Digests),
        (_, Some(key)) => {
            let keys = PublicKeys::from_argument(key)?;
            Ok(Verification::Signed(Arc::new(keys)))
        }
        _ => Err(Error::Choice(text.to_owned())),
    }
}

/// Reads a file of limited length that is text.
pub(crate) fn read_text(path: &Path, limit: u64) -> Result<String> {
    use std::io::Read;
    let mut text = String::new();
    let read = std::fs::File::open(path)?
        .take(limit + 1)
        .read_to_string(&mut text)?;
    if read as u64 > limit {
        return Err(Error::Key(format!("a file of more than {limit} bytes")));
    }
    Ok(text)
}

impl PublicKey {
    fn name(&self) -> String {
        match self {
            Self::Minisign(key) => key.name().to_owned(),
            Self::Ssh(key) => ssh::name(key),
        }
    }

    fn verify(&self, message: &[u8], kind: SignatureKind, text: &str) -> Result<String, String> {
        match (self, kind) {
            (Self::Minisign(key), SignatureKind::Minisign) => {
                let comment = key.verify(message, text)?;
                Ok(match comment.is_empty() {
                    false => format!("{} ({})", self.name(), comment.escape_debug()),
                    true => self.name(),
                })
            }
            (Self::Ssh(key), SignatureKind::Ssh) => {
                ssh::verify(key, message, text)?;
                Ok(self.name())
            }
            _ => Err(format!("a signature by {} instead of the key", kind.name())),
        }
    }
}

impl VerifySignature for PublicKeys {
    fn verify(
        &self,
        message: &[u8],
        kind: SignatureKind,
        signature: &[u8],
    ) -> Result<String, String> {
        let text = std::str::from_utf8(signature)
            .map_err(|_| format!("a {} signature that is no text", kind.name()))?;
        let mut reason = None;
        for key in &self.keys {
            match key.verify(message, kind, text) {
                Ok(name) => return Ok(name),
                Err(why) => reason = Some(why),
            }
        }
        Err(reason.unwrap_or_else(|| "there is no key".into()))
    }
}
