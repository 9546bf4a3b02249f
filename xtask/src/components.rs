//! What the programs contain besides our own crates: crates, and C libraries that crates compile.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;
use serde_json::Value;

use crate::Result;

/// The package whose programs are described.
const ROOT: &str = "redwarfs-tools";

/// Something by other authors that is linked into the programs.
#[derive(Debug, Clone)]
pub(crate) struct Component {
    pub(crate) name: String,
    /// Empty if nothing tells it.
    pub(crate) version: String,
    /// An SPDX expression.
    pub(crate) licence: String,
    pub(crate) authors: Vec<String>,
    /// Texts of licences and notices that come with it.
    pub(crate) texts: Vec<String>,
    /// A package URL, which is also the name of the component in the bill of materials.
    pub(crate) purl: String,
    /// SHA-256 of the crate, in hexadecimal digits.
    pub(crate) checksum: Option<String>,
    /// Package URLs of the components that it uses.
    pub(crate) uses: BTreeSet<String>,
    /// Whether our own crates use it.
    pub(crate) direct: bool,
}

/// A C library that a crate compiles and links.
struct CLibrary {
    name: &'static str,
    /// The crate that links it.
    linked_by: &'static str,
    /// The crate that has its source.
    source: &'static str,
    /// The directory of the source in that crate. A `*` at the end stands for the rest of a name.
    directory: &'static str,
    /// A file with the version, and where it is in there.
    version: (&'static str, &'static str),
    licence: &'static str,
    /// A file with the text of the licence, and which part of it is that text.
    text: (&'static str, &'static str),
}

/// Where C headers have the three parts of a version.
const IN_HEADER: &str = r#"VERSION_MAJOR\s+"?(\d+)[\s\S]*?VERSION_MINOR\s+"?(\d+)[\s\S]*?VERSION_(?:RELEASE|PATCH)\s+"?(\d+)"#;
const WHOLE: &str = r"^([\s\S]*)$";

const C_LIBRARIES: &[CLibrary] = &[
    CLibrary {
        name: "mimalloc",
        linked_by: "libmimalloc-sys",
        source: "libmimalloc-sys",
        directory: "c_src/mimalloc/v3",
        version: (
            "include/mimalloc.h",
            r"MI_MALLOC_VERSION\s+(\d)(?:0(\d)|([1-9]\d))(?:0(\d)|([1-9]\d))",
        ),
        licence: "MIT",
        text: ("LICENSE", WHOLE),
    },
    CLibrary {
        name: "zstd",
        linked_by: "zstd-sys",
        source: "zstd-sys",
        directory: "zstd",
        version: ("lib/zstd.h", IN_HEADER),
        licence: "BSD-3-Clause",
        text: ("LICENSE", WHOLE),
    },
    CLibrary {
        name: "lz4",
        linked_by: "lz4-sys",
        source: "lz4-sys",
        directory: "liblz4/lib",
        version: ("lz4.h", IN_HEADER),
        licence: "BSD-2-Clause",
        text: ("LICENSE", WHOLE),
    },
    CLibrary {
        name: "liblzma",
        linked_by: "liblzma-sys",
        source: "liblzma-sys",
        directory: "xz",
        version: ("src/liblzma/api/lzma/version.h", IN_HEADER),
        licence: "0BSD",
        text: ("COPYING.0BSD", WHOLE),
    },
    CLibrary {
        name: "flac",
        linked_by: "libflac-sys",
        source: "libflac-sys",
        directory: "flac",
        version: (
            "CMakeLists.txt",
            r"project\(FLAC VERSION (\d+)\.(\d+)\.(\d+)",
        ),
        licence: "BSD-3-Clause",
        text: ("COPYING.Xiph", WHOLE),
    },
    CLibrary {
        name: "lua",
        linked_by: "mlua-sys",
        source: "lua-src",
        directory: "lua-5.4*",
        version: ("lua.h", IN_HEADER),
        licence: "MIT",
        text: ("lua.h", r"(\* Copyright \(C\) [\s\S]*?)\*{20}"),
    },
];

/// Crates with the key `links` that compile no C library. The C code of `ring` is a part of the crate, and so are its
/// licences.
const WITHOUT_C: &[&str] = &["rayon-core", "ring"];

/// A part of the build besides the crates, which the lock file does not have.
fn runtime(target: &str) -> Vec<Component> {
    let part = |name: &str, licence: &str, author: &str| Component {
        name: name.to_owned(),
        version: String::new(),
        licence: licence.to_owned(),
        authors: vec![author.to_owned()],
        texts: Vec::new(),
        purl: format!("pkg:generic/{name}"),
        checksum: None,
        uses: BTreeSet::new(),
        direct: true,
    };
    let mut parts = vec![part(
        "rust-std",
        "MIT OR Apache-2.0",
        "The Rust Project contributors",
    )];
    if target.contains("-musl") {
        parts.push(part("musl", "MIT", "Rich Felker and others (2005-2020)"));
    }
    parts
}

fn output(command: &mut Command) -> Result<Vec<u8>> {
    let out = command
        .output()
        .map_err(|error| format!("cannot run {:?}: {error}", command.get_program()))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        return Err(format!("{:?} failed: {}", command.get_program(), said.trim()).into());
    }
    Ok(out.stdout)
}

/// The target of the compiler.
fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let about = String::from_utf8(output(Command::new(rustc).arg("-vV"))?)?;
    about
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .ok_or_else(|| "rustc -vV names no host".into())
}

/// The workspace that this program belongs to.
fn workspace() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// Everything by others that the programs for `target` contain, by name and version.
pub(crate) fn components(target: Option<&str>) -> Result<Vec<Component>> {
    let target = match target {
        Some(target) => target.to_owned(),
        None => host()?,
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let metadata = output(
        Command::new(cargo)
            .args(["metadata", "--format-version=1", "--locked"])
            .args(["--filter-platform", &target])
            .current_dir(workspace()),
    )?;
    let metadata: Value = serde_json::from_slice(&metadata)?;
    let lock = std::fs::read_to_string(workspace().join("Cargo.lock"))?;
    let mut all = linked(&metadata, &checksums(&lock))?;
    all.extend(runtime(&target));
    all.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(all)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

/// Checksums of the crates in a lock file, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let field = |package: &str, name: &str| {
        package
            .lines()
            .find_map(|line| {
                line.strip_prefix(name)?
                    .strip_prefix(" = \"")?
                    .strip_suffix('"')
            })
            .map(str::to_owned)
    };
    lock.split("[[package]]")
        .filter_map(|package| {
            let key = (field(package, "name")?, field(package, "version")?);
            Some((key, field(package, "checksum")?))
        })
        .collect()
}

/// Crates that are linked, and C libraries in them. Procedural macros and dependencies of builds and
/// tests are not linked.
fn linked(
    metadata: &Value,
    checksums: &BTreeMap<(String, String), String>,
) -> Result<Vec<Component>> {
    let packages: BTreeMap<&str, &Value> = list(metadata, "packages")
        .map(|package| (text(package, "id"), package))
        .collect();
    let nodes: BTreeMap<&str, &Value> = list(&metadata["resolve"], "nodes")
        .map(|node| (text(node, "id"), node))
        .collect();
    let is_macro = |id: &str| {
        packages.get(id).is_some_and(|package| {
            list(package, "targets")
                .any(|target| list(target, "kind").any(|kind| kind == "proc-macro"))
        })
    };
    let uses = |id: &str| -> Vec<&str> {
        nodes
            .get(id)
            .into_iter()
            .flat_map(|node| list(node, "deps"))
            .filter(|dep| list(dep, "dep_kinds").any(|kind| kind["kind"].is_null()))
            .map(|dep| text(dep, "pkg"))
            .filter(|id| !is_macro(id))
            .collect()
    };
    // Crates without a source are our own.
    let ours = |id: &str| {
        packages
            .get(id)
            .is_some_and(|package| package["source"].is_null())
    };

    let root = packages
        .iter()
        .find(|(_, package)| text(package, "name") == ROOT)
        .map(|(id, _)| *id)
        .ok_or_else(|| format!("there is no package {ROOT}"))?;
    let mut reached = BTreeSet::new();
    let mut direct = BTreeSet::new();
    let mut next = vec![root];
    while let Some(id) = next.pop() {
        if reached.insert(id) {
            let used = uses(id);
            if ours(id) {
                direct.extend(used.iter().copied());
            }
            next.extend(used);
        }
    }

    let mut out = Vec::new();
    for id in reached.iter().filter(|id| !ours(id)) {
        let package = packages.get(id).ok_or_else(|| format!("no package {id}"))?;
        let mut component = of_crate(package)?;
        component.direct = direct.contains(id);
        let key = (component.name.clone(), component.version.clone());
        component.checksum = checksums.get(&key).cloned();
        component.uses = uses(id)
            .into_iter()
            .filter_map(|used| packages.get(used))
            .map(|package| crate_purl(package))
            .collect();
        for library in c_libraries(package)? {
            let source = packages
                .values()
                .find(|package| text(package, "name") == library.source)
                .ok_or_else(|| {
                    format!(
                        "no crate {} with the source of {}",
                        library.source, library.name
                    )
                })?;
            let library = of_library(library, &directory(source))?;
            component.uses.insert(library.purl.clone());
            out.push(library);
        }
        out.push(component);
    }
    Ok(out)
}

fn directory(package: &Value) -> PathBuf {
    let manifest = Path::new(text(package, "manifest_path"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// The C libraries of a crate. One that links a library we know nothing of is an error.
fn c_libraries(package: &Value) -> Result<Vec<&'static CLibrary>> {
    let name = text(package, "name");
    let known: Vec<_> = C_LIBRARIES
        .iter()
        .filter(|library| library.linked_by == name)
        .collect();
    if known.is_empty() && package["links"].is_string() && !WITHOUT_C.contains(&name) {
        return Err(format!(
            "crate {name} links {}: add that library to C_LIBRARIES, or the crate to WITHOUT_C, in {}",
            package["links"],
            file!()
        )
        .into());
    }
    Ok(known)
}

fn crate_purl(package: &Value) -> String {
    let version = text(package, "version").replace('+', "%2B");
    format!("pkg:cargo/{}@{version}", text(package, "name"))
}

fn of_crate(package: &Value) -> Result<Component> {
    Ok(Component {
        name: text(package, "name").to_owned(),
        version: text(package, "version").to_owned(),
        licence: text(package, "license").replace('/', " OR "),
        authors: list(package, "authors")
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        texts: texts(&directory(package))?,
        purl: crate_purl(package),
        checksum: None,
        uses: BTreeSet::new(),
        direct: false,
    })
}

/// Licences and notices in the top directory of a crate.
fn texts(dir: &Path) -> Result<Vec<String>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()?;
    files.sort();
    let is_licence = |path: &PathBuf| {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .to_uppercase();
        let starts = [
            "LICENSE",
            "LICENCE",
            "COPYING",
            "COPYRIGHT",
            "NOTICE",
            "UNLICENSE",
        ];
        path.is_file() && starts.iter().any(|start| name.starts_with(start))
    };
    files
        .iter()
        .filter(|path| is_licence(path))
        .map(|path| Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned()))
        .collect()
}

fn of_library(library: &CLibrary, source: &Path) -> Result<Component> {
    let dir = existing(source, library.directory)?;
    let find = |(file, pattern): (&str, &str)| -> Result<Vec<String>> {
        let path = dir.join(file);
        let text = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let found = Regex::new(pattern)?
            .captures(&text)
            .ok_or_else(|| format!("{}: nothing like {pattern}", path.display()))?;
        let groups = found.iter().skip(1).flatten();
        Ok(groups.map(|group| group.as_str().to_owned()).collect())
    };
    let version = find(library.version)?.join(".");
    Ok(Component {
        name: library.name.to_owned(),
        purl: format!("pkg:generic/{}@{version}", library.name),
        version,
        licence: library.licence.to_owned(),
        authors: Vec::new(),
        texts: find(library.text)?,
        checksum: None,
        uses: BTreeSet::new(),
        direct: false,
    })
}

/// The directory `name` in `dir`. A `*` at the end stands for the rest of its name.
fn existing(dir: &Path, name: &str) -> Result<PathBuf> {
    let Some(start) = name.strip_suffix('*') else {
        return Ok(dir.join(name));
    };
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(start) {
            found.push(entry.path());
        }
    }
    match found.as_slice() {
        [one] => Ok(one.clone()),
        _ => Err(format!("{}: {} directories {name}", dir.display(), found.len()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_crate_with_an_unknown_library_is_an_error() {
        let package = json!({ "name": "odd-sys", "links": "odd" });
        let error = c_libraries(&package)
            .map(|found| found.len())
            .expect_err("unknown");
        assert!(error.to_string().contains("odd-sys"), "{error}");
        let none = json!({ "name": "odd", "links": null });
        assert!(c_libraries(&none).expect("no library").is_empty());
    }

    #[test]
    fn only_what_is_linked_counts() {
        let package = |id: &str, source: Value, kind: &str| {
            json!({
                "id": id, "name": id, "version": "1.0.0", "license": "MIT/Apache-2.0", "source": source,
                "authors": [], "links": null, "manifest_path": concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
                "targets": [{ "kind": [kind] }],
            })
        };
        let dep = |id: &str, kind: Value| json!({ "pkg": id, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [
                package(ROOT, Value::Null, "lib"),
                package("used", json!("registry"), "lib"),
                package("below", json!("registry"), "lib"),
                package("macro", json!("registry"), "proc-macro"),
                package("tests", json!("registry"), "lib"),
                package("build", json!("registry"), "lib"),
            ],
            "resolve": { "nodes": [
                { "id": ROOT, "deps": [
                    dep("used", Value::Null), dep("macro", Value::Null),
                    dep("tests", json!("dev")), dep("build", json!("build")),
                ] },
                { "id": "used", "deps": [dep("below", Value::Null)] },
            ] },
        });
        let lock = "[[package]]\nname = \"used\"\nversion = \"1.0.0\"\nchecksum = \"abc\"\n";
        let found = linked(&metadata, &checksums(lock)).expect("components");
        let names: Vec<_> = found.iter().map(|c| (c.name.as_str(), c.direct)).collect();
        assert_eq!(names, [("below", false), ("used", true)]);
        let used = &found[1];
        assert_eq!(used.licence, "MIT OR Apache-2.0");
        assert_eq!(used.checksum.as_deref(), Some("abc"));
        assert_eq!(
            used.uses.iter().collect::<Vec<_>>(),
            ["pkg:cargo/below@1.0.0"]
        );
    }
}
