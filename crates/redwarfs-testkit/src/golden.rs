//! The golden images: made by the reference implementation, each with a manifest of what a mount
//! of it shows.

use std::path::{Path, PathBuf};

use crate::manifest::Manifest;

/// One golden image.
#[derive(Debug, Clone)]
pub struct Golden {
    /// Name without extension, for example `basic-default`.
    pub name: String,
    /// The image file.
    pub image: PathBuf,
    manifest: PathBuf,
}

impl Golden {
    /// What a mount of the image shows.
    pub fn manifest(&self) -> Manifest {
        Manifest::load(&self.manifest)
    }
}

/// Directory of the golden images inside the repository.
pub fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/images")
}

/// All golden images of the repository, sorted by name.
pub fn golden_images() -> Vec<Golden> {
    let list = images_in(&golden_dir());
    assert!(list.len() > 30, "the golden images are missing");
    list
}

/// One golden image by name.
pub fn golden(name: &str) -> Golden {
    golden_images()
        .into_iter()
        .find(|g| g.name == name)
        .unwrap_or_else(|| panic!("no golden image {name}"))
}

/// The images of releases 0.2.0 to 0.9.10, sorted by name.
pub fn compat_images() -> Vec<Golden> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/compat");
    let list = images_in(&dir);
    assert!(list.len() >= 12, "the images of old releases are missing");
    list
}

fn images_in(dir: &Path) -> Vec<Golden> {
    let mut list: Vec<Golden> = std::fs::read_dir(dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.expect("directory entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "dwarfs"))
        .map(|image| Golden {
            name: image
                .file_stem()
                .and_then(|s| s.to_str())
                .expect("fixture names are plain ASCII")
                .to_owned(),
            manifest: image.with_extension("json.gz"),
            image,
        })
        .collect();
    list.sort_by(|a, b| a.name.cmp(&b.name));
    list
}
