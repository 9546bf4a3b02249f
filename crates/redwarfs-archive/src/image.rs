//! Container images: archives that `docker save`, `podman save` and other programs write, with the layers
//! of an image as files. `manifest.json` is the form of Docker, and `index.json` the one of OCI.

use std::collections::HashMap;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use sha2::Digest as _;

use crate::error::Fault;
use crate::member::{Kind, Members};
use crate::store::InPlace;
use crate::tree::components;

/// Most files and links of an archive.
const MOST_FILES: usize = 1 << 16;
/// Largest manifest and index in bytes. Registries allow 4 MiB.
const MOST_JSON: u64 = 4 << 20;
/// Most layers of an image: overlayfs takes 500.
const MOST_LAYERS: usize = 4096;
/// Most indices on the way to a manifest, and links on the way to a file.
const MOST_STEPS: usize = 8;
/// Bytes that are hashed at a time.
const PIECE: usize = 256 << 10;

/// A file of the archive: offset and size.
type Blob = (u64, u64);

/// An entry of the archive.
#[derive(Debug)]
enum Found {
    File(Blob),
    /// A link to this path from the root of the archive.
    Link(Vec<u8>),
}

/// A layer of an image.
#[derive(Debug)]
pub(crate) struct Layer {
    /// Its path in the archive.
    pub(crate) path: String,
    pub(crate) blob: Blob,
    /// `sha256:` or `sha512:` and hexadecimal digits, if the archive says it.
    pub(crate) digest: Option<String>,
    /// Whether the digest is that of the layer without compression.
    of_contents: bool,
}

/// An archive with images.
pub(crate) struct ImageArchive {
    files: HashMap<Vec<u8>, Found>,
    store: InPlace,
}

/// The directory of a path, with a slash at its end.
fn above(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
    path.get(..end).unwrap_or_default()
}

/// The path to which a symlink in a directory leads; nothing if this is outside of the archive.
fn followed(directory: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in directory
        .split(|&b| b == b'/')
        .chain(target.split(|&b| b == b'/'))
    {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join(&b'/'))
}

fn broken(what: &str) -> Fault {
    Fault::damaged(format!("the container image is broken: {what}"))
}

/// An array of a JSON object.
fn array<'v>(value: &'v Value, key: &str) -> Result<&'v [Value], Fault> {
    let found = value.get(key).and_then(Value::as_array);
    Ok(found.ok_or_else(|| broken(&format!("there is no list '{key}'")))?)
}

fn text<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value.get(key).and_then(Value::as_str)
}

/// The platform of a manifest, such as `linux/arm64/v8`.
fn platform(descriptor: &Value) -> String {
    let platform = descriptor.get("platform").unwrap_or(&Value::Null);
    let parts = ["os", "architecture", "variant"].map(|key| text(platform, key));
    let parts: Vec<&str> = parts.into_iter().flatten().collect();
    match parts.is_empty() {
        true => "unknown".to_owned(),
        false => parts.join("/"),
    }
}

/// Whether a manifest in an index is no image, but tells about one.
fn is_attestation(descriptor: &Value) -> bool {
    let kind = descriptor.get("annotations");
    kind.is_some_and(|all| all.get("vnd.docker.reference.type").is_some())
        || platform(descriptor).starts_with("unknown/")
}

fn only(found: &[Value], name: impl Fn(&Value) -> String) -> Result<&Value, Fault> {
    match found {
        [only] => Ok(only),
        [] => Err(Fault::unsupported("it holds no container image")),
        many => {
            let names: Vec<String> = many.iter().take(20).map(name).collect();
            Err(Fault::unsupported(format!(
                "it holds {} container images ({}); save one of them",
                many.len(),
                names.join(", ")
            )))
        }
    }
}

impl ImageArchive {
    /// Lists an archive that `store` holds as a plain tar archive.
    pub(crate) fn new(members: &mut dyn Members, store: InPlace) -> Result<Self, Fault> {
        let mut files = HashMap::new();
        while let Some(member) = members.next()? {
            let Ok(parts) = components(&member.path) else {
                continue;
            };
            let path = parts.join(&b'/');
            let found = match &member.kind {
                Kind::Regular => match members.in_place().as_deref() {
                    Some([]) if member.size.unwrap_or(0) == 0 => Found::File((0, 0)),
                    Some([part]) if part.offset == 0 && member.size == Some(part.size) => {
                        Found::File((part.at, part.size))
                    }
                    // Sparse; no program writes them so.
                    _ => continue,
                },
                Kind::Symlink(target) => match followed(above(&path), target) {
                    Some(target) => Found::Link(target),
                    None => continue,
                },
                Kind::HardLink(target) => match followed(b"", target) {
                    Some(target) => Found::Link(target),
                    None => continue,
                },
                _ => continue,
            };
            files.insert(path, found);
            if files.len() > MOST_FILES {
                return Err(Fault::unsupported(
                    "it holds more than 65,536 files and is no container image",
                ));
            }
        }
        Ok(Self { files, store })
    }

    /// The archive itself.
    pub(crate) fn into_store(self) -> InPlace {
        self.store
    }

    pub(crate) fn store(&self) -> &InPlace {
        &self.store
    }

    fn find(&self, path: &str) -> Option<Blob> {
        let mut path = followed(b"", path.as_bytes())?;
        for _ in 0..MOST_STEPS {
            match self.files.get(&path)? {
                Found::File(blob) => return Some(*blob),
                Found::Link(target) => path.clone_from(target),
            }
        }
        None
    }

    fn blob(&self, path: &str) -> Result<Blob, Fault> {
        let missing = || broken(&format!("'{path}' is not in the archive"));
        self.find(path).ok_or_else(missing)
    }

    fn json(&self, path: &str, blob: Blob) -> Result<Value, Fault> {
        if blob.1 > MOST_JSON {
            return Err(broken(&format!("'{path}' is longer than 4 MiB")));
        }
        let mut bytes = Vec::new();
        let mut section = self.store.section(blob.0, blob.1).map_err(Fault::Read)?;
        section.read_to_end(&mut bytes).map_err(Fault::Read)?;
        serde_json::from_slice(&bytes).map_err(|e| broken(&format!("'{path}': {e}")))
    }

    /// The layers of the only image, the lowest first.
    pub(crate) fn layers(&self, stop: &AtomicBool) -> Result<Vec<Layer>, Fault> {
        let layers = if let Some(blob) = self.find("manifest.json") {
            self.layers_of_docker(&self.json("manifest.json", blob)?)?
        } else if let Some(blob) = self.find("index.json") {
            self.layers_of_oci(self.json("index.json", blob)?, stop)?
        } else {
            return Err(Fault::unsupported(
                "no container image: there is neither manifest.json nor index.json in it",
            ));
        };
        if layers.len() > MOST_LAYERS {
            return Err(broken("it has more than 4096 layers"));
        }
        Ok(layers)
    }

    fn layers_of_docker(&self, manifest: &Value) -> Result<Vec<Layer>, Fault> {
        let images = manifest.as_array();
        let images = images.ok_or_else(|| broken("manifest.json is no list"))?;
        let image = only(images, |image| {
            let tags = image.get("RepoTags").and_then(Value::as_array);
            let tag = tags.and_then(|tags| tags.first()).and_then(Value::as_str);
            tag.unwrap_or("without a name").to_owned()
        })?;
        // Digests of the layers without compression.
        let config = match text(image, "Config") {
            Some(path) => self.json(path, self.blob(path)?)?,
            None => Value::Null,
        };
        let sums = config.pointer("/rootfs/diff_ids").and_then(Value::as_array);
        let mut layers = Vec::new();
        for (at, path) in array(image, "Layers")?.iter().enumerate() {
            let path = path.as_str().ok_or_else(|| broken("a layer has no name"))?;
            let sum = sums.and_then(|sums| sums.get(at)).and_then(Value::as_str);
            layers.push(Layer {
                path: path.to_owned(),
                blob: self.blob(path)?,
                digest: sum.map(str::to_owned),
                of_contents: true,
            });
        }
        Ok(layers)
    }

    fn layers_of_oci(&self, index: Value, stop: &AtomicBool) -> Result<Vec<Layer>, Fault> {
        let mut value = index;
        for _ in 0..MOST_STEPS {
            if value.get("manifests").is_none() {
                let layers = array(&value, "layers")?.iter();
                return layers.map(|layer| self.described(layer)).collect();
            }
            let mut found = array(&value, "manifests")?.to_vec();
            found.retain(|descriptor| !is_attestation(descriptor));
            let chosen = only(&found, |descriptor| {
                let name = descriptor.pointer("/annotations/org.opencontainers.image.ref.name");
                let name = name.and_then(Value::as_str);
                name.map_or_else(|| platform(descriptor), str::to_owned)
            })?;
            let next = self.described(chosen)?;
            self.verify(&next, stop)?;
            value = self.json(&next.path, next.blob)?;
        }
        Err(broken("its indices lead to no manifest"))
    }

    /// The file that a descriptor names by its digest.
    fn described(&self, descriptor: &Value) -> Result<Layer, Fault> {
        let digest = text(descriptor, "digest").ok_or_else(|| broken("there is no digest"))?;
        let path = format!("blobs/{}", digest.replacen(':', "/", 1));
        let blob = self.blob(&path)?;
        let size = descriptor.get("size").and_then(Value::as_u64);
        if size.is_some_and(|size| size != blob.1) {
            return Err(broken(&format!(
                "'{path}' has not the size of the manifest"
            )));
        }
        Ok(Layer {
            path,
            blob,
            digest: Some(digest.to_owned()),
            of_contents: false,
        })
    }

    /// Compares the digest of a layer. Returns whether there is one that can be compared: it is of a known
    /// kind, and not that of contents that are compressed.
    pub(crate) fn verify(&self, layer: &Layer, stop: &AtomicBool) -> Result<bool, Fault> {
        let Some(digest) = &layer.digest else {
            return Ok(false);
        };
        let (at, size) = layer.blob;
        let mut section = self.store.section(at, size).map_err(Fault::Read)?;
        let mut piece = vec![0; PIECE];
        let mut first = true;
        let mut short = sha2::Sha256::new();
        let mut long = sha2::Sha512::new();
        let is_long = match digest.split_once(':') {
            Some(("sha256", _)) => false,
            Some(("sha512", _)) => true,
            // A digest of the future.
            _ => return Ok(false),
        };
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(Fault::Interrupted);
            }
            let got = section.read(&mut piece).map_err(Fault::Read)?;
            let bytes = piece.get(..got).unwrap_or_default();
            if std::mem::take(&mut first)
                && layer.of_contents
                && crate::decompress::filter_of(bytes).is_some()
            {
                return Ok(false);
            }
            match bytes {
                [] => break,
                bytes if is_long => long.update(bytes),
                bytes => short.update(bytes),
            }
        }
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let found = match is_long {
            true => format!("sha512:{}", hex(&long.finalize())),
            false => format!("sha256:{}", hex(&short.finalize())),
        };
        match found.eq_ignore_ascii_case(digest) {
            true => Ok(true),
            false => Err(Fault::damaged(format!(
                "the layer '{}' has another digest than the manifest says",
                layer.path
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_stay_in_the_archive() {
        for (directory, target, path) in [
            ("a/", "../b/layer.tar", Some("b/layer.tar")),
            ("", "./x//y", Some("x/y")),
            ("a/", "../../b", None),
            ("a/", "/b", Some("a/b")),
        ] {
            let found = followed(directory.as_bytes(), target.as_bytes());
            assert_eq!(found.as_deref(), path.map(str::as_bytes), "{target}");
        }
        assert_eq!(above(b"a/b/c"), b"a/b/");
        assert_eq!(above(b"c"), b"");
    }
}
