//! Secret keys, and signatures by other programs.

use std::fmt;
use std::path::Path;

use redwarfs_format::digests::{SignatureBody, SignatureKind};
use zeroize::Zeroizing;

use crate::error::{Error, Result};
use crate::keys::read_text;
use crate::{minisign_keys, ssh};

/// Longest secret key that is read (64 KiB).
const LONGEST: u64 = 64 << 10;

/// A key that signs.
pub struct SecretKey(Key);

enum Key {
    Minisign(minisign::SecretKey),
    Ssh(Box<ssh_key::PrivateKey>),
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SecretKey")
            .field(&self.kind())
            .finish_non_exhaustive()
    }
}

/// A key as it is in its file: perhaps with a password.
pub enum LockedKey {
    /// It needs no password.
    Open(SecretKey),
    /// It needs one.
    Locked(LockedText),
}

/// The text of a key with a password.
pub struct LockedText {
    text: Zeroizing<String>,
    kind: SignatureKind,
}

impl fmt::Debug for LockedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(key) => key.fmt(f),
            Self::Locked(key) => key.fmt(f),
        }
    }
}

impl fmt::Debug for LockedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedText")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl LockedText {
    /// Opens the key.
    ///
    /// # Errors
    /// [`Error::Password`] if it is not the password of the key, [`Error::Key`] if the key is damaged.
    pub fn unlock(&self, password: &str) -> Result<SecretKey> {
        let key = match self.kind {
            SignatureKind::Minisign => Key::Minisign(minisign_keys::open(&self.text, password)?),
            SignatureKind::Ssh => {
                let key = ssh::private_key(&self.text)?.decrypt(password);
                Key::Ssh(Box::new(key.map_err(|_| Error::Password)?))
            }
        };
        Ok(SecretKey(key))
    }
}

impl LockedKey {
    /// Reads a secret key of minisign, or a private key of SSH in the format of OpenSSH.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, [`Error::Key`] if it is no such key.
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(&Zeroizing::new(read_text(path, LONGEST)?))
    }

    /// As [`LockedKey::read`], of a text.
    ///
    /// # Errors
    /// [`Error::Key`].
    pub fn parse(text: &str) -> Result<Self> {
        let locked = |kind| {
            Ok(Self::Locked(LockedText {
                text: Zeroizing::new(text.to_owned()),
                kind,
            }))
        };
        let open = |key| Ok(Self::Open(SecretKey(key)));
        if minisign_keys::is_secret_key(text) {
            return match minisign_keys::plain_key(text) {
                Some(key) => open(Key::Minisign(key)),
                None => locked(SignatureKind::Minisign),
            };
        }
        if text.trim_start().starts_with(ssh::PRIVATE) {
            let key = ssh::private_key(text)?;
            return match key.is_encrypted() {
                true => locked(SignatureKind::Ssh),
                false => open(Key::Ssh(Box::new(key))),
            };
        }
        Err(Error::Key(
            "no secret key of minisign, and no private key of OpenSSH".into(),
        ))
    }
}

impl SecretKey {
    /// The kind of its signatures.
    #[must_use]
    pub fn kind(&self) -> SignatureKind {
        match self.0 {
            Key::Minisign(_) => SignatureKind::Minisign,
            Key::Ssh(_) => SignatureKind::Ssh,
        }
    }

    /// Signs a message. `comment` is signed, too, by minisign only: one line. Returns the signature and the name of
    /// the key.
    ///
    /// # Errors
    /// [`Error::Signature`] if the key cannot sign: it is of a kind that is not supported, or on a token.
    pub fn sign(&self, message: &[u8], comment: &str) -> Result<(String, String)> {
        match &self.0 {
            Key::Minisign(key) => minisign_keys::sign(key, message, comment),
            Key::Ssh(key) => ssh::sign(key, message),
        }
    }
}

/// What kind of signature a text is.
///
/// # Errors
/// [`Error::Signature`] if it is none, or too long to be stored.
pub fn signature_kind(text: &[u8]) -> Result<SignatureKind> {
    let start = text.trim_ascii_start();
    if text.len() > SignatureBody::MOST {
        return Err(Error::Signature("the signature is too long".into()));
    }
    if start.starts_with(minisign_keys::COMMENT.as_bytes()) {
        Ok(SignatureKind::Minisign)
    } else if start.starts_with(ssh::ARMOR.as_bytes()) {
        Ok(SignatureKind::Ssh)
    } else {
        Err(Error::Signature("no signature of minisign or SSH".into()))
    }
}
