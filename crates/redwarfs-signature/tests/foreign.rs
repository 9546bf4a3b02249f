//! minisign and ssh-keygen verify signatures of RedwarFS, and the other way round.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod support;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use redwarfs_reader::Verification;
use redwarfs_signature::{
    DigestAlgorithm, Error, LockedKey, PublicKeys, SecretKey, signature_kind,
};
use redwarfs_testkit::skip;
use support::{Case, contents, open, read_all};

/// Runs a program in a directory, or says that it is missing.
fn run(dir: &Path, input: &str, command: &[&str]) -> Option<Output> {
    let mut child = match Command::new(command[0])
        .args(&command[1..])
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    {
        Ok(child) => child,
        Err(_) => {
            skip(command[0], "it is not installed");
            return None;
        }
    };
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    Some(child.wait_with_output().unwrap())
}

fn must(dir: &Path, input: &str, command: &[&str]) -> Option<String> {
    let out = run(dir, input, command)?;
    let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    assert!(out.status.success(), "{command:?}: {text}");
    Some(text)
}

fn read(dir: &Path, name: &str) -> String {
    fs::read_to_string(dir.join(name)).unwrap()
}

fn key(dir: &Path, name: &str, password: Option<&str>) -> SecretKey {
    match (LockedKey::read(&dir.join(name)).unwrap(), password) {
        (LockedKey::Open(key), None) => key,
        (LockedKey::Locked(locked), Some(password)) => {
            // That of minisign takes seconds, and a gigabyte.
            if name == "key" {
                let error = locked.unlock("another password").unwrap_err();
                assert!(matches!(error, Error::Password), "{error}");
            }
            assert!(!format!("{locked:?}").contains("untrusted"));
            locked.unlock(password).unwrap()
        }
        (other, _) => panic!("{other:?}"),
    }
}

fn accepted(case: &Case, public: &str) {
    let keys = PublicKeys::parse(public).unwrap();
    let image = open(&case.bytes(), &Verification::Signed(Arc::new(keys))).unwrap();
    assert_eq!(read_all(&image).unwrap(), contents());
}

#[test]
fn minisign() {
    for password in [None, Some("open sesame")] {
        let case = Case::with_digests(7, DigestAlgorithm::Blake3);
        let dir = case.dir();
        let twice = password.map_or(String::new(), |word| format!("{word}\n{word}\n"));
        let mut command = vec!["minisign", "-G", "-p", "key.pub", "-s", "key.sec"];
        command.extend(password.is_none().then_some("-W"));
        if must(dir, &twice, &command).is_none() {
            return;
        }
        fs::write(dir.join("message"), case.message()).unwrap();
        // Ours, verified by minisign.
        let (text, name) = key(dir, "key.sec", password)
            .sign(&case.message(), "made by a test")
            .unwrap();
        fs::write(dir.join("message.minisig"), &text).unwrap();
        let verify = ["minisign", "-V", "-p", "key.pub", "-m", "message"];
        let shown = must(dir, "", &verify).unwrap();
        assert!(shown.contains("made by a test"), "{shown}");
        // It names the key as we do.
        let public = read(dir, "key.pub");
        assert!(
            public.contains(name.rsplit(' ').next().unwrap()),
            "{public}{name}"
        );
        // Theirs, verified by us.
        fs::remove_file(dir.join("message.minisig")).unwrap();
        let once = password.map_or(String::new(), |word| format!("{word}\n"));
        let sign = [
            "minisign",
            "-S",
            "-s",
            "key.sec",
            "-m",
            "message",
            "-t",
            "version 1.2",
        ];
        must(dir, &once, &sign).unwrap();
        let signature = fs::read(dir.join("message.minisig")).unwrap();
        case.add_signature(signature_kind(&signature).unwrap(), &signature);
        accepted(&case, &public);
        accepted(&case, public.lines().nth(1).unwrap());
        let keys = PublicKeys::parse(&public).unwrap();
        let trust = Verification::Signed(Arc::new(keys));
        let image = open(&case.bytes(), &trust).unwrap();
        let signer = image.verified().unwrap().signer.clone().unwrap();
        assert_eq!(signer, format!("{name} (version 1.2)"));
    }
}

#[test]
fn ssh_keygen() {
    let types: [(&str, Option<&str>); 4] = [
        ("ed25519", None),
        ("ed25519", Some("open sesame")),
        ("ecdsa", None),
        ("rsa", None),
    ];
    for (ty, password) in types {
        let case = Case::with_digests(7, DigestAlgorithm::Blake3);
        let dir = case.dir();
        let words = password.unwrap_or("");
        let make = [
            "ssh-keygen",
            "-q",
            "-t",
            ty,
            "-N",
            words,
            "-C",
            "a test",
            "-f",
            "key",
        ];
        loop {
            if must(dir, "", &make).is_none() {
                return;
            }
            match LockedKey::read(&dir.join("key")) {
                Ok(_) => break,
                // One of 256.
                Err(error) => {
                    let text = error.to_string();
                    assert!(
                        ty == "ecdsa" && text.contains("ssh-keygen -Y sign"),
                        "{ty}: {text}"
                    );
                    fs::remove_file(dir.join("key")).unwrap();
                    fs::remove_file(dir.join("key.pub")).unwrap();
                }
            }
        }
        fs::write(dir.join("message"), case.message()).unwrap();
        let public = read(dir, "key.pub");
        let signers = format!("someone@example.org namespaces=\"file,dwarfs\" {public}");
        fs::write(dir.join("signers"), &signers).unwrap();
        // Ours, verified by ssh-keygen.
        let message = case.message();
        let secret = key(dir, "key", password);
        let name = if ty == "rsa" {
            let error = secret.sign(&message, "").unwrap_err();
            assert!(error.to_string().contains("ssh-keygen -Y sign"), "{error}");
            PublicKeys::parse(&public).unwrap().names().remove(0)
        } else {
            let (text, name) = secret.sign(&message, "").unwrap();
            fs::write(dir.join("message.sig"), &text).unwrap();
            let verify = [
                "ssh-keygen",
                "-Y",
                "verify",
                "-f",
                "signers",
                "-I",
                "someone@example.org",
                "-n",
                "dwarfs",
                "-s",
                "message.sig",
            ];
            let checked = Command::new(verify[0])
                .args(&verify[1..])
                .current_dir(dir)
                .stdin(fs::File::open(dir.join("message")).unwrap())
                .output()
                .unwrap();
            assert!(checked.status.success(), "{ty}: {checked:?}");
            fs::remove_file(dir.join("message.sig")).unwrap();
            name
        };
        let listed = must(dir, "", &["ssh-keygen", "-l", "-f", "key.pub"]).unwrap();
        assert!(
            listed.contains(name.rsplit(' ').next().unwrap()),
            "{listed}{name}"
        );
        if password.is_some() {
            continue;
        }
        // Theirs, verified by us.
        for (namespace, good) in [("file", false), ("dwarfs", true)] {
            let sign = [
                "ssh-keygen",
                "-q",
                "-Y",
                "sign",
                "-f",
                "key",
                "-n",
                namespace,
                "message",
            ];
            must(dir, "", &sign).unwrap();
            let signature = fs::read(dir.join("message.sig")).unwrap();
            fs::remove_file(dir.join("message.sig")).unwrap();
            assert_eq!(fs::read(dir.join("message")).unwrap(), message);
            case.add_signature(signature_kind(&signature).unwrap(), &signature);
            let keys = PublicKeys::parse(&public).unwrap();
            let trust = Verification::Signed(Arc::new(keys));
            assert_eq!(
                open(&case.bytes(), &trust).is_ok(),
                good,
                "{ty}, {namespace}"
            );
        }
        accepted(&case, &signers);
    }
}
