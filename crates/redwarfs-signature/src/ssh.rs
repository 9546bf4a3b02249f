//! Keys and signatures of SSH.

use ssh_key::{HashAlg, LineEnding, PrivateKey, PublicKey, SshSig};

use crate::NAMESPACE;
use crate::error::{Error, Result};

pub(crate) const ARMOR: &str = "-----BEGIN SSH SIGNATURE-----";
pub(crate) const PRIVATE: &str = "-----BEGIN OPENSSH PRIVATE KEY-----";

/// Whether a word names a type of public keys.
pub(crate) fn is_key_type(word: &str) -> bool {
    ["ssh-", "ecdsa-", "sk-"]
        .iter()
        .any(|start| word.starts_with(start))
}

/// How `ssh-keygen -l` names a key.
pub(crate) fn name(key: &PublicKey) -> String {
    format!("SSH key {}", key.fingerprint(HashAlg::Sha256))
}

/// The keys of a file with public keys or allowed signers, a key a line. Lines with options that limit the key in
/// ways that are not known here are left out, and returned as the second list.
pub(crate) fn public_keys(text: &str) -> Result<(Vec<PublicKey>, Vec<String>)> {
    let (mut keys, mut left_out) = (Vec::new(), Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |why: &str| Error::Key(format!("line {number} is no public key of SSH: {why}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| is_key_type(word));
        let at = at.ok_or_else(|| wrong("no type"))?;
        let (options, key) = match (at, words.get(at..)) {
            // The principals of an allowed signer come first.
            (0, Some(key)) => (&[][..], key),
            (_, Some(key)) => (words.get(1..at).unwrap_or_default(), key),
            (_, None) => return Err(wrong("no key")),
        };
        if let Some(option) = options.iter().find(|option| !allows(option)) {
            left_out.push(format!("line {number} has the option {option}"));
            continue;
        }
        let key = key.iter().take(2).copied().collect::<Vec<_>>().join(" ");
        keys.push(PublicKey::from_openssh(&key).map_err(|e| wrong(&e.to_string()))?);
    }
    Ok((keys, left_out))
}

/// Whether an option of an allowed signer lets the key sign images. Those that are not known forbid it.
fn allows(option: &str) -> bool {
    option.strip_prefix("namespaces=").is_some_and(|list| {
        list.trim_matches('"')
            .split(',')
            .any(|name| name == NAMESPACE)
    })
}

pub(crate) fn verify(key: &PublicKey, message: &[u8], signature: &str) -> Result<(), String> {
    let signature = SshSig::from_pem(signature).map_err(|e| e.to_string())?;
    if signature.namespace() != NAMESPACE {
        return Err(format!(
            "the SSH signature is for the namespace {:?} instead of {NAMESPACE}",
            signature.namespace()
        ));
    }
    if signature.public_key() != key.key_data() {
        return Err("the SSH signature is by another key".into());
    }
    key.verify(NAMESPACE, message, &signature)
        .map_err(|_| "the SSH signature is wrong".into())
}

pub(crate) fn private_key(text: &str) -> Result<PrivateKey> {
    // The library does not read one of 256 ECDSA keys: those whose number is shorter than usual.
    PrivateKey::from_openssh(text).map_err(|e| {
        Error::Key(format!(
            "no private key of SSH that can be read: {e}; ssh-keygen -Y sign may read it"
        ))
    })
}

pub(crate) fn sign(key: &PrivateKey, message: &[u8]) -> Result<(String, String)> {
    let failed = |e: ssh_key::Error| Error::Signature(format!("cannot sign: {e}"));
    if key.algorithm().is_rsa() {
        // The time that the library `rsa` takes depends on the key, and `ssh-key` passes it one of the two primes twice.
        return Err(Error::Signature(
            "RSA keys verify signatures, but do not make them here; ssh-keygen -Y sign does".into(),
        ));
    }
    let signature = key
        .sign(NAMESPACE, HashAlg::Sha512, message)
        .map_err(failed)?;
    let text = signature.to_pem(LineEnding::LF).map_err(failed)?;
    Ok((text, name(key.public_key())))
}
