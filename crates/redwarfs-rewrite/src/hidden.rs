//! Hidden sections of the old image: which the new one keeps.

use redwarfs_format::section::{Binding, HiddenClass, HiddenPayload, Section, SectionType};
use redwarfs_reader::Image;
use redwarfs_writer::emit::{Emitter, write_hints};
use redwarfs_writer::{Level, Progress};

use crate::error::Result;

/// What becomes of an image, as far as it matters to its hidden sections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rewritten {
    /// The metadata is built anew.
    pub(crate) rebuilt: bool,
    /// Blocks have other data.
    pub(crate) recut: bool,
    /// The new image has an index. Without one, no hidden section is kept.
    pub(crate) indexed: bool,
    /// The new image has hints of its own.
    pub(crate) hinted: bool,
}

/// Writes the hidden sections that are still true, and names those that are not, or that are damaged.
pub(crate) fn keep(
    image: &Image,
    rewritten: Rewritten,
    emitter: &mut Emitter<'_>,
    progress: &dyn Progress,
) -> Result<()> {
    let Rewritten {
        rebuilt, indexed, ..
    } = rewritten;
    let mut dropped = Vec::new();
    let mut kept_hints = false;
    for section in &image.container().trailers {
        if section.ty == SectionType::HINTS {
            if rewritten.hinted {
                continue;
            }
            // Blocks that keep their numbers keep their hints.
            if indexed && !rewritten.recut {
                if !std::mem::replace(&mut kept_hints, true) {
                    let tables = image.hints()?;
                    for table in &tables {
                        write_hints(table, emitter)?;
                    }
                    if tables.is_empty() {
                        dropped.push(section.ty.to_string());
                    }
                }
                continue;
            }
        }
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
