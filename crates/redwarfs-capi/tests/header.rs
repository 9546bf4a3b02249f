//! The stored headers are those of the source. With `REDWARFS_UPDATE=1`, the test writes them.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use cbindgen::{Builder, Config, DocumentationStyle, Language, RenameRule, Style};

const READER: &str = "/* Reads DwarFS images. Made from the source of redwarfs-capi; do not edit.
 *
 * Functions that can fail return a redwarfs_code. If the last argument is not null and the function
 * fails, it stores an error object there, which the caller frees with redwarfs_error_free. Results are
 * unchanged after a failure, unless a function says otherwise.
 *
 * Pointers. A text ends with NUL, and a pointer with a length points to as many bytes. A struct with a
 * member `size` has its own size in it. Nobody changes any of them during the call. A null pointer is an
 * error (REDWARFS_ERROR_ARGUMENT), unless a function allows it. Each object is freed once, by the
 * function that its maker names.
 *
 * Threads. All functions with a `const redwarfs_image *` can be called in several threads at once with
 * the same image. A listing or a builder is used by one thread at a time. There is no global state.
 *
 * Callbacks. They must not close or free the object that calls them.
 *
 * Forks. A child cannot use the images of its parent: it opens its own. It must not close those of its
 * parent.
 *
 * Images are untrusted input. A damaged or hostile image gives an error, and no function looks outside
 * of it. A small image can hold huge files: compare sizes with a limit before you allocate memory.
 *
 * Versions. Later versions of the library keep functions, the meaning of codes and flags, and the layout
 * of structs, or have another soname. They may add codes and flags, and members at the end of structs
 * with a member `size`, or in place of `reserved`. A caller may have a struct with a member `size` of an
 * earlier version, or of a later one with zeros in what the library does not know.
 */";

const WRITER: &str = "/* Builds DwarFS images. Made from the source of redwarfs-capi; do not edit.
 *
 * The rules of redwarfs.h hold here, too. The same input, options and version give the same image, for
 * any number of threads.
 */";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn config(preamble: &str, guard: &str) -> Config {
    let mut config = Config {
        language: Language::C,
        header: Some(preamble.to_owned()),
        include_guard: Some(guard.to_owned()),
        cpp_compat: true,
        no_includes: true,
        style: Style::Type,
        documentation_style: DocumentationStyle::Doxy,
        usize_is_size_t: true,
        tab_width: 4,
        ..Config::default()
    };
    config.enumeration.rename_variants = RenameRule::ScreamingSnakeCase;
    for (from, to) in [
        ("Attributes", "redwarfs_attributes"),
        ("Builder", "redwarfs_builder"),
        ("Code", "redwarfs_code"),
        ("DirEntry", "redwarfs_directory_entry"),
        ("Directory", "redwarfs_directory"),
        ("EntryAttributes", "redwarfs_entry_attributes"),
        ("Error", "redwarfs_error"),
        ("Image", "redwarfs_image"),
        ("Info", "redwarfs_image_info"),
        ("Io", "redwarfs_io"),
        ("OpenOptions", "redwarfs_open_options"),
        ("ProgressFn", "redwarfs_progress"),
        ("Summary", "redwarfs_summary"),
    ] {
        config.export.rename.insert(from.to_owned(), to.to_owned());
    }
    config
}

fn generated(sources: &[&str], config: Config) -> String {
    let mut builder = Builder::new().with_config(config);
    for source in sources {
        builder = builder.with_src(root().join("src").join(source));
    }
    let mut bytes = Vec::new();
    builder.generate().unwrap().write(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

fn check(name: &str, wanted: &str) {
    let path = root().join("include").join(name);
    if std::env::var_os("REDWARFS_UPDATE").is_some() {
        fs::write(&path, wanted).unwrap();
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == wanted,
        "include/{name} is not current: run this test with REDWARFS_UPDATE=1"
    );
}

#[test]
fn the_headers_are_current() {
    let mut reader = config(READER, "REDWARFS_H");
    reader.sys_includes = vec!["stddef.h".into(), "stdint.h".into()];
    let sources = ["error.rs", "source.rs", "image.rs", "directory.rs"];
    check("redwarfs.h", &generated(&sources, reader));
    let mut writer = config(WRITER, "REDWARFS_WRITER_H");
    writer.includes = vec!["redwarfs.h".into()];
    check("redwarfs_writer.h", &generated(&["writer.rs"], writer));
}
