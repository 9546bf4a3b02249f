//! Keys and signatures of minisign.

use std::io::Cursor;

use base64ct::{Base64, Encoding};
use minisign::{PublicKey, SecretKey, SecretKeyBox};
use zeroize::Zeroizing;

use crate::error::{Error, Result};

/// The line that a file with a key or a signature begins with.
pub(crate) const COMMENT: &str = "untrusted comment:";
/// Length of a public key in base64.
const BASE64_LEN: usize = 56;

pub(crate) fn is_base64_key(text: &str) -> bool {
    text.len() == BASE64_LEN
        && text.starts_with("RW")
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b))
}

/// A public key.
#[derive(Clone)]
pub(crate) struct MinisignKey {
    key: minisign_verify::PublicKey,
    name: String,
}

/// How minisign names a key.
fn name_of(key: &minisign::PublicKey) -> String {
    let bytes = key.keynum().iter().rev();
    let number = bytes.fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    format!("minisign key {number:X}")
}

impl MinisignKey {
    /// The key of a file, or of its line of base64.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::Key("no public key of minisign".into());
        let mut lines = text.trim().lines();
        let line = match text.starts_with(COMMENT) {
            true => lines.nth(1),
            false => lines.next(),
        };
        let line = line.map(str::trim).filter(|line| is_base64_key(line));
        let line = line.ok_or_else(wrong)?;
        let number = minisign::PublicKey::from_base64(line).map_err(|_| wrong())?;
        Ok(Self {
            key: minisign_verify::PublicKey::from_base64(line).map_err(|_| wrong())?,
            name: name_of(&number),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Verifies a signature. Returns its trusted comment.
    pub(crate) fn verify(&self, message: &[u8], signature: &str) -> Result<String, String> {
        let signature = minisign_verify::Signature::decode(signature)
            .map_err(|e| format!("the minisign signature cannot be read: {e}"))?;
        match self.key.verify(message, &signature, false) {
            Ok(()) => Ok(signature.trusted_comment().to_owned()),
            Err(minisign_verify::Error::UnexpectedKeyId) => {
                Err("the minisign signature is by another key".into())
            }
            Err(_) => Err("the minisign signature is wrong".into()),
        }
    }
}

/// Length of a secret key, and where it says how it is encrypted and has its checksum.
const SECRET_LEN: usize = 158;
const ENCRYPTION: std::ops::Range<usize> = 2..4;
const CHECKSUM: std::ops::Range<usize> = 126..158;

/// A secret key without password, or none if it has one.
pub(crate) fn plain_key(text: &str) -> Option<SecretKey> {
    let line = text.lines().nth(1)?.trim();
    let bytes = Zeroizing::new(Base64::decode_vec(line).ok()?);
    if bytes.len() != SECRET_LEN || bytes.get(ENCRYPTION)? != [0, 0] {
        return None;
    }
    // minisign writes no checksum of a key without password.
    if bytes.get(CHECKSUM)?.iter().all(|byte| *byte == 0) {
        return SecretKey::from_bytes(&bytes).ok();
    }
    SecretKeyBox::from_string(text)
        .and_then(SecretKeyBox::into_unencrypted_secret_key)
        .ok()
}

/// Whether the text may be a secret key.
pub(crate) fn is_secret_key(text: &str) -> bool {
    text.starts_with(COMMENT)
        && text
            .lines()
            .nth(1)
            .is_some_and(|line| line.starts_with("RW") && line.trim().len() == 212)
}

pub(crate) fn open(text: &str, password: &str) -> Result<SecretKey> {
    SecretKeyBox::from_string(text)
        .and_then(|key| key.into_secret_key(Some(password.to_owned())))
        .map_err(|_| Error::Password)
}

pub(crate) fn sign(key: &SecretKey, message: &[u8], comment: &str) -> Result<(String, String)> {
    let failed = |e: minisign::PError| Error::Signature(format!("cannot sign: {e}"));
    let public = PublicKey::from_secret_key(key).map_err(failed)?;
    let made = minisign::sign(
        Some(&public),
        key,
        Cursor::new(message),
        Some(comment),
        Some("signature of the digests of a DwarFS image"),
    );
    Ok((made.map_err(failed)?.into_string(), name_of(&public)))
}
