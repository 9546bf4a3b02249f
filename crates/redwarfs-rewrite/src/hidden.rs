//! Hidden sections of the old image: which the new one keeps.

use redwarfs_format::section::{Binding, HiddenClass, HiddenPayload, Section};
use redwarfs_reader::Image;
use redwarfs_writer::emit::Emitter;
use redwarfs_writer::{Level, Progress};

use crate::error::Result;

/// Writes the hidden sections that are still true, and names those that are not, or that are damaged. Without
/// an index (`indexed`), none is kept.
pub(crate) fn keep(
    image: &Image,
    rebuilt: bool,
    indexed: bool,
    emitter: &mut Emitter<'_>,
    progress: &dyn Progress,
) -> Result<()> {
    let mut dropped = Vec::new();
    for section in &image.container().trailers {
        let kept = indexed && stays_true(section, rebuilt);
        let payload = match image.stored_payload(section) {
            Ok(payload) if kept => payload,
            Err(error @ redwarfs_format::Error::Io(_)) => return Err(error.into()),
            _ => {
                dropped.push(section.ty.to_string());
                continue;
            }
        };
        match HiddenPayload::parse(&payload) {
            Ok(hidden) if binding_stays_true(hidden.prelude.binding, rebuilt) => {
                emitter.trailer(section.ty, &hidden.prelude, hidden.body)?;
            }
            _ => dropped.push(section.ty.to_string()),
        }
    }
    if !dropped.is_empty() {
        let message = format!(
            "rewriting drops {} hidden section(s) of the old image: {}",
            dropped.len(),
            dropped.join(", ")
        );
        progress.log(Level::Warn, &message);
    }
    Ok(())
}

fn stays_true(section: &Section, rebuilt: bool) -> bool {
    match section.ty.hidden_class() {
        Some(HiddenClass::Copy) => true,
        Some(HiddenClass::Metadata) => !rebuilt,
        Some(HiddenClass::Bytes | HiddenClass::Critical) | None => false,
    }
}

fn binding_stays_true(binding: Binding, rebuilt: bool) -> bool {
    match binding {
        Binding::None => true,
        Binding::Metadata(_) => !rebuilt,
        // The new image has another index.
        Binding::Generation(_) => false,
    }
}
