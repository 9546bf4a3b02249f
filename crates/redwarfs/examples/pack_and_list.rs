//! Packs a directory into an image and lists the image:
//!
//! ```text
//! cargo run -p redwarfs --example pack_and_list -- /usr/share/doc doc.dwarfs
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;

use redwarfs::{Builder, FileType, Image};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [dir, image] = args.as_slice() else {
        return Err("usage: pack_and_list DIRECTORY IMAGE".into());
    };
    pack_and_list(dir.as_ref(), image.as_ref(), &mut io::stdout().lock())
}

/// Packs `dir` into the image `path`, and prints what is in it.
pub(crate) fn pack_and_list(
    dir: &Path,
    path: &Path,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let built = Builder::new(dir).level(7).write_to(path)?;
    for warning in &built.warnings {
        writeln!(out, "note: {warning}")?;
    }

    let image = Image::open(path)?;
    for entry in image.walk() {
        let entry = entry?;
        let stat = entry.metadata()?;
        write!(
            out,
            "{:06o} {:>10} {}",
            stat.mode,
            stat.size,
            entry.path().display()
        )?;
        if stat.file_type() == Some(FileType::Symlink) {
            write!(out, " -> {}", entry.read_link()?.display())?;
        }
        writeln!(out)?;
    }
    let summary = built.summary;
    writeln!(
        out,
        "{} bytes in an image of {} bytes",
        summary.original_size, summary.image_size
    )?;
    Ok(())
}
