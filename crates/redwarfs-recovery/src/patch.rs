//! Repairs as a file with the corrected bytes, and their application.

use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_format::recovery::{EntryHead, FileHasher, PatchHeader};
use redwarfs_io::{Medium, Source};

use crate::PIECE;
use crate::damage::Damage;
use crate::error::{Error, Result};
use crate::locate::RecoveryData;
use crate::overlay::Overlay;
use crate::repair::Repaired;

/// Zeros that a repair may add without writing them (1 MiB).
const GAPS: u64 = 1 << 20;

/// What an application of a patch has written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// Entries of the patch whose bytes were not there.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl RecoveryData {
    /// Writes a patch with everything that [`RecoveryData::repair`] would write to a file, and a checksum of the repaired
    /// file, to `out`, an empty file. The file, which is read once more for the checksum, stays as it is, and so does
    /// its sidecar. `done` gets the number of bytes after each piece.
    ///
    /// # Errors
    /// As [`RecoveryData::repair`].
    pub fn write_patch(
        &self,
        file: &dyn Source,
        damage: &Damage,
        out: &dyn Medium,
        done: &dyn Fn(u64),
        stop: &AtomicBool,
    ) -> Result<Repaired> {
        let overlay = Overlay::new(file, out)?;
        let repaired = self.repair(&overlay, damage, stop)?;
        let (entries, patch) = overlay.size();
        let length = overlay.len()?;
        let header = PatchHeader {
            length,
            file: hash(&overlay, 0, length, done, stop)?,
            entries,
            patch,
            body: hash(out, PatchHeader::LEN as u64, patch, &|_| {}, stop)?,
        };
        out.write_all_at(0, &header.encode())?;
        out.sync()?;
        Ok(repaired)
    }
}

/// Puts the bytes of a patch into a file. Nothing is written unless the file is what the patch was made for afterwards;
/// what was written is compared. An application that was interrupted is repeated. `done` gets the number of bytes
/// after each piece.
///
/// # Errors
/// * [`Error::Format`] if the patch is damaged, or is none.
/// * [`Error::Foreign`] if it does not fit the file. Nothing is written.
/// * [`Error::Io`] and [`Error::Interrupted`]; what was written is right.
pub fn apply_patch(
    file: &dyn Medium,
    patch: &dyn Source,
    done: &dyn Fn(u64),
    stop: &AtomicBool,
) -> Result<Applied> {
    let damaged = || redwarfs_format::Error::corrupt("the patch is damaged");
    let mut bytes = [0; PatchHeader::LEN];
    if patch.read_exact_at(0, &mut bytes).is_err() {
        return Err(damaged().into());
    }
    let header = PatchHeader::parse(&bytes)?;
    let start = PatchHeader::LEN as u64;
    if header.patch != patch.len()?
        || hash(patch, start, header.patch, &|_| {}, stop)? != header.body
    {
        return Err(damaged().into());
    }
    // A repair writes what it adds, except for some zeros. Otherwise a few bytes could promise a file of any length.
    let most = header.patch.saturating_mul(2).saturating_add(GAPS);
    if header.length > file.len()?.saturating_add(most) {
        return Err(Error::Foreign);
    }
    let overlay = Overlay::of(file, patch)?;
    let mut heads = Vec::new();
    let mut at = start;
    for _ in 0..header.entries {
        let mut bytes = [0; EntryHead::LEN];
        if header.patch - at < bytes.len() as u64 {
            return Err(damaged().into());
        }
        patch.read_exact_at(at, &mut bytes)?;
        let head = EntryHead::parse(&bytes);
        at += EntryHead::LEN as u64;
        let ends = [
            at.checked_add(head.length)
                .filter(|end| *end <= header.patch),
            head.position
                .checked_add(head.length)
                .filter(|end| *end <= header.length),
        ];
        let [Some(next), Some(_)] = ends else {
            return Err(damaged().into());
        };
        if head.length == 0 {
            return Err(damaged().into());
        }
        overlay.add(head)?;
        heads.push(head);
        at = next;
    }
    if at != header.patch {
        return Err(damaged().into());
    }
    if overlay.len()? != header.length
        || hash(&overlay, 0, header.length, done, stop)? != header.file
    {
        return Err(Error::Foreign);
    }
    let mut applied = Applied::default();
    for head in &heads {
        let bytes = differing(file, Some(file), &overlay, *head, stop)?;
        applied.entries += u64::from(bytes > 0);
        applied.bytes += bytes;
    }
    file.sync()?;
    for head in &heads {
        if differing(file, None, &overlay, *head, stop)? > 0 {
            let changed = "the file is not what was written to it";
            return Err(std::io::Error::other(changed).into());
        }
    }
    Ok(applied)
}

/// Compares the range of an entry with what it has with the patch, and writes that to `out`. Returns the bytes of pieces
/// that differ.
fn differing(
    file: &dyn Source,
    out: Option<&dyn Medium>,
    overlay: &Overlay<'_>,
    head: EntryHead,
    stop: &AtomicBool,
) -> Result<u64> {
    let (mut at, end) = (head.position, head.position + head.length);
    let mut bytes = 0;
    while at < end {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let n = usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE));
        let (mut right, mut found) = (vec![0; n], vec![0; n]);
        overlay.read_exact_at(at, &mut right)?;
        if file.read_exact_at(at, &mut found).is_err() || found != right {
            if let Some(out) = out {
                out.write_all_at(at, &right)?;
            }
            bytes += n as u64;
        }
        at += n as u64;
    }
    Ok(bytes)
}

/// XXH3-128 of the bytes of a range.
fn hash(
    source: &dyn Source,
    mut at: u64,
    end: u64,
    done: &dyn Fn(u64),
    stop: &AtomicBool,
) -> Result<[u8; 16]> {
    let mut hasher = FileHasher::new();
    let mut buffer = vec![0; PIECE];
    while at < end {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let n = usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE));
        let part = buffer.get_mut(..n).unwrap_or_default();
        source.read_exact_at(at, part)?;
        hasher.update(part);
        done(n as u64);
        at += n as u64;
    }
    Ok(hasher.finish())
}
