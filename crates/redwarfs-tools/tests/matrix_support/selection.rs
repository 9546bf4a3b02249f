//! Options of `mkdwarfs` that select what an image has, as parameters of the matrix.

use super::model::SymlinkPolicy;
use super::options::{Parameter, Tag, flag, p, v};

pub(super) fn selection() -> Vec<Parameter> {
    vec![
        flag(&["--with-devices"], |m| m.devices = true),
        flag(&["--with-specials"], |m| m.specials = true),
        p(
            "symbolic links",
            [
                v(&[]),
                v(&["--symlinks=keep"]),
                v(&["--symlinks=follow"]).does(|m| m.symlinks = SymlinkPolicy::Follow),
                v(&["--symlinks=drop"]).does(|m| m.symlinks = SymlinkPolicy::Drop),
            ],
        ),
        p(
            "hard links",
            [
                v(&[]),
                v(&["--hard-links=dissolve"]).does(|m| m.dissolve = true),
            ],
        ),
        p(
            "pseudo file",
            [
                v(&[]),
                v(&["--pseudo-file={pseudo}"]).does(|m| m.pseudo = true),
            ],
        ),
        p(
            "holes",
            [
                v(&[]),
                v(&["--no-sparse-files"])
                    .does(|m| m.dense = true)
                    .is(Tag::Dense),
            ],
        ),
        p(
            "hollow",
            [
                v(&[]),
                v(&["--hollow"]).does(|m| m.hollow = true).is(Tag::Hollow),
            ],
        ),
        p(
            "input list",
            [
                v(&[]),
                v(&["--input-list={list}"])
                    .does(|m| m.list = true)
                    .is(Tag::List),
            ],
        ),
        p(
            "filter",
            [
                v(&[]),
                v(&["--filter=- *.wav"])
                    .does(|m| m.filter = |path, dir| dir || !path.ends_with(b".wav"))
                    .is(Tag::Selection),
                v(&[
                    "--filter=+ /text/**",
                    "--filter=+ /links/",
                    "--filter=+ /links/first",
                    "--filter=- **",
                ])
                .does(|m| {
                    m.filter = |path, dir| match path {
                        b"text" | b"links" => dir,
                        b"links/first" => !dir,
                        _ => path.starts_with(b"text/"),
                    };
                })
                .is(Tag::Selection),
                v(&["--filter=. {rules}"])
                    .does(|m| m.filter = by_rules)
                    .is(Tag::Selection),
            ],
        ),
        p(
            "script",
            [
                v(&[]),
                v(&["--script={script}"]).does(|m| m.script = |path| path.len() % 7 != 3),
            ],
        ),
        flag(&["--remove-empty-dirs"], |m| m.remove_empty = true),
        p(
            "one file system",
            [v(&[]), v(&["--one-file-system"]).is(Tag::Selection)],
        ),
        p(
            "caches",
            [
                v(&[]),
                v(&["--exclude-caches"])
                    .does(|m| m.tags.push("CACHEDIR.TAG"))
                    .is(Tag::Selection),
            ],
        ),
        p(
            "tags",
            [
                v(&[]),
                v(&["--exclude-if-present=.nobackup", "--exclude-if-present=sub"])
                    .does(|m| m.tags.splice(0..0, [".nobackup", "sub"]).for_each(drop))
                    .is(Tag::Selection),
            ],
        ),
    ]
}

/// Rules of the file `{rules}`.
pub(super) const RULES: &str = "# not these\n\n- dup/**\n-i *.FITS\n+ *.txt\n- t*\n";

/// The script `{script}`. It gives categories of all kinds, and keys of all types.
pub(super) const SCRIPT: &str = r#"
function filter(entry)
  return entry.type == "directory" or #entry.path % 7 ~= 3
end

function category(entry)
  return ({ "of/a-script", "hotness", "<default>", "incompressible" })[entry.size % 6 + 1]
end

function order(entry)
  return ({ entry.name, entry.size, -entry.size / 3 })[#entry.path % 4 + 1]
end
"#;

fn by_rules(path: &[u8], dir: bool) -> bool {
    if dir {
        return path != b"dup";
    }
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
    !name.ends_with(b".fits") && (name.ends_with(b".txt") || !name.starts_with(b"t"))
}
