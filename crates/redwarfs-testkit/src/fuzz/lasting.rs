//! What keeps images: recovery data beside them, patches, keys and signatures, and salvage of damaged files.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use redwarfs_format::recovery::{EntryHead, FileHasher, PAGE, PatchHeader, shard_hash};
use redwarfs_io::{Medium, MemorySource, Source};
use redwarfs_reader::{OpenOptions, VerifySignature};
use redwarfs_recovery::{Error, RecoveryData, RepairingSource, Sidecar, apply_patch, locate};
use redwarfs_recovery::{Repaired, locate_sidecar};
use redwarfs_salvage::Salvage;
use redwarfs_signature::{LockedKey, PublicKeys, signature_kind};

/// Largest file that is written in memory (16 MiB).
const LARGEST: usize = 16 << 20;

/// A file in memory.
#[derive(Debug)]
struct Memory(Mutex<Vec<u8>>);

impl Memory {
    fn new(bytes: Vec<u8>) -> Self {
        Self(Mutex::new(bytes))
    }

    fn bytes(&self) -> Vec<u8> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Source for Memory {
    fn len(&self) -> io::Result<u64> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(bytes.len() as u64)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = usize::try_from(offset).ok();
        let found = found.and_then(|at| bytes.get(at..at.checked_add(buf.len())?));
        buf.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl Medium for Memory {
    fn write_all_at(&self, offset: u64, new: &[u8]) -> io::Result<()> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = at.saturating_add(new.len());
        if end > LARGEST {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        if let Some(place) = bytes.get_mut(at..end) {
            place.copy_from_slice(new);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > LARGEST {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.resize(len, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

fn go() -> AtomicBool {
    AtomicBool::new(false)
}

/// Two parts, after two bytes with the length of the first one.
fn two_parts(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_first_chunk()?;
    let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    rest.split_at_checked(length)
}

fn hash(bytes: &[u8]) -> [u8; 16] {
    let mut hasher = FileHasher::new();
    hasher.update(bytes);
    hasher.finish()
}

/// Applies a patch to a file: two bytes with the length of the file, the file, the patch. Its lengths and checksums are made
/// right, which a fuzzer cannot do. Then it is applied, and the file is what its entries say; otherwise the
/// file stays as it is.
pub fn patch(data: &[u8]) {
    let Some((file, patch)) = two_parts(data) else {
        return;
    };
    let medium = Memory::new(file.to_vec());
    let apply = |patch: &[u8]| {
        let patch = MemorySource::new(patch.to_vec());
        let applied = apply_patch(&medium, &patch, &|_| {}, &go());
        if applied.is_err() {
            assert!(
                medium.bytes() == file,
                "a patch that is refused has changed the file"
            );
        }
        applied
    };
    if apply(patch).is_ok() {
        return;
    }
    let Some((_, entries)) = patch.split_first_chunk::<{ PatchHeader::LEN }>() else {
        return;
    };
    let mut whole = file.to_vec();
    let mut rest = entries;
    let mut count = 0;
    while let Some((head, behind)) = rest.split_first_chunk::<{ EntryHead::LEN }>() {
        let EntryHead { position, length } = EntryHead::parse(head);
        let (Ok(at), Ok(length)) = (usize::try_from(position), usize::try_from(length)) else {
            return;
        };
        let Some((bytes, behind)) = behind.split_at_checked(length) else {
            return;
        };
        let end = at.saturating_add(length);
        if length == 0 || end > LARGEST {
            return;
        }
        whole.resize(whole.len().max(end), 0);
        if let Some(place) = whole.get_mut(at..end) {
            place.copy_from_slice(bytes);
        }
        count += 1;
        rest = behind;
    }
    if !rest.is_empty() || count == 0 {
        return;
    }
    let header = PatchHeader {
        length: whole.len() as u64,
        file: hash(&whole),
        entries: count,
        patch: patch.len() as u64,
        body: hash(entries),
    };
    let right = [&header.encode()[..], entries].concat();
    match apply(&right) {
        Ok(_) => assert!(
            medium.bytes() == whole,
            "the file is not what the patch says"
        ),
        // More is added than a repair does.
        Err(error) => assert!(
            whole.len() > file.len() + 2 * right.len() + (1 << 20),
            "a right patch is refused: {error}"
        ),
    }
}

/// Makes the checksums of all pages right.
fn seal_pages(bytes: &mut [u8]) {
    let magic = b"DwRSrec1";
    let places: Vec<usize> = (0..bytes.len())
        .filter(|at| bytes.get(*at..).is_some_and(|rest| rest.starts_with(magic)))
        .collect();
    for at in places {
        let Some(page) = bytes.get_mut(at..at.saturating_add(PAGE)) else {
            continue;
        };
        if let Some(sum) = page.get_mut(24..32) {
            sum.fill(0);
        }
        let right = shard_hash(page).to_le_bytes();
        if let Some(sum) = page.get_mut(24..32) {
            sum.copy_from_slice(&right);
        }
    }
}

/// Uses recovery data: two bytes with the length of a file, the file, a sidecar. The checksums of pages are made right. It is
/// read with repairs in memory, and a copy that was repaired has no damage afterwards.
pub fn sidecar(data: &[u8]) {
    let Some((file, beside)) = two_parts(data) else {
        return;
    };
    let (mut file, mut beside) = (file.to_vec(), beside.to_vec());
    seal_pages(&mut file);
    seal_pages(&mut beside);
    let source: Arc<dyn Source> = Arc::new(MemorySource::new(file.clone()));
    let sidecar = || Sidecar::read_only(Arc::new(MemorySource::new(beside.clone())));
    if let Ok(data) = locate(&*source, &go()) {
        use_recovery(&source, &data, &|medium| locate(medium, &go()));
    }
    if let Ok(data) = locate_sidecar(&*source, sidecar(), &go()) {
        use_recovery(&source, &data, &|medium| {
            locate_sidecar(medium, sidecar(), &go())
        });
    }
}

fn use_recovery(
    source: &Arc<dyn Source>,
    data: &RecoveryData,
    again: &dyn Fn(&dyn Source) -> Result<RecoveryData, Error>,
) {
    let _ = data.unprotected(source);
    let checked = data.check(source, &|_| {}, &go());
    if let Ok(repairing) = RepairingSource::new(Arc::clone(source), data, Box::new(|_| {})) {
        let len = repairing.len().unwrap_or(0).min(LARGEST as u64);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        for (at, part) in (0_u64..).step_by(5000).zip(bytes.chunks_mut(5000)) {
            let _ = repairing.read_exact_at(at, part);
        }
    }
    let Ok(damage) = checked else {
        return;
    };
    let _ = damage.lost_ranges();
    let medium = Memory::new(Vec::new());
    if data.copy(source, &medium, &|_| {}, &go()).is_err() {
        return;
    }
    let Ok(found) = again(&medium) else {
        return;
    };
    let Ok(damage) = found.check(&medium, &|_| {}, &go()) else {
        return;
    };
    if let Ok(Repaired { left: 0, .. }) = found.repair(&medium, &damage, &go()) {
        let again = found.check(&medium, &|_| {}, &go());
        let is_whole = again.is_ok_and(|damage| damage.data_shards() == 0);
        assert!(is_whole, "there is damage after a repair");
    }
}

/// Keys and signatures: a public or secret key, a NUL, a signature, a NUL, and the message.
pub fn signatures(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let mut next = || parts.next().unwrap_or_default();
    let (key, signature, message) = (next(), next(), next());
    let Ok(key) = std::str::from_utf8(key) else {
        return;
    };
    let _ = LockedKey::parse(key);
    let (Ok(keys), Ok(kind)) = (PublicKeys::parse(key), signature_kind(signature)) else {
        return;
    };
    assert!(!keys.names().is_empty());
    if keys.verify(message, kind, signature).is_ok() {
        let other = [message, b"."].concat();
        assert!(
            keys.verify(&other, kind, signature).is_err(),
            "a signature of two messages"
        );
    }
}

/// Salvages a file.
pub fn salvage(data: &[u8]) {
    let source: Arc<dyn Source> = Arc::new(MemorySource::new(data.to_vec()));
    let Ok(found) = Salvage::of(source, &OpenOptions::default(), &|_| {}, &go()) else {
        return;
    };
    let _ = found.for_each_damaged(&mut |file| {
        let end = file.missing.last();
        assert!(end.is_some_and(|range| range.offset + range.length <= file.size));
        Ok(())
    });
    let _ = (found.newer_damaged().count(), found.passed_over().len());
}
