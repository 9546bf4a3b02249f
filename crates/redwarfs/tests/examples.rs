//! The example programs do what they say.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::thread;

use redwarfs::{Builder, Image};

#[allow(dead_code, reason = "the program around it is not called")]
#[path = "../examples/async_read.rs"]
mod async_read;
#[allow(dead_code, reason = "the program around it is not called")]
#[path = "../examples/pack_and_list.rs"]
mod pack_and_list;
#[allow(dead_code, reason = "the program around it is not called")]
#[path = "../examples/serve.rs"]
mod serve;

/// A directory with a file of 300,000 bytes and a link.
fn tree() -> (tempfile::TempDir, PathBuf, Vec<u8>) {
    let work = tempfile::tempdir().unwrap();
    let dir = work.path().join("tree");
    fs::create_dir_all(dir.join("a")).unwrap();
    let contents: Vec<u8> = (0..300_000_u32)
        .flat_map(|i| (i % 251).to_le_bytes())
        .collect();
    fs::write(dir.join("a/data"), &contents).unwrap();
    symlink("a/data", dir.join("link")).unwrap();
    (work, dir, contents)
}

#[test]
fn packing_and_listing() {
    let (work, dir, contents) = tree();
    let path = work.path().join("tree.dwarfs");
    let mut out = Vec::new();
    pack_and_list::pack_and_list(&dir, &path, &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines.contains(&format!("100644 {:>10} a/data", contents.len()).as_str()));
    assert!(lines.iter().any(|line| line.ends_with(" link -> a/data")));
    let size = fs::metadata(&path).unwrap().len();
    let last = lines.last().unwrap();
    assert!(
        last.ends_with(&format!("in an image of {size} bytes")),
        "{last}"
    );
}

#[test]
fn asynchronous_reading() {
    let (work, dir, contents) = tree();
    fs::write(dir.join("empty"), "").unwrap();
    let path = work.path().join("tree.dwarfs");
    Builder::new(&dir).level(1).write_to(&path).unwrap();
    let image = Image::open(&path).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    let paths = ["a/data", "link", "empty"].map(str::to_owned);
    let read = runtime
        .block_on(async_read::read_all(&image, &paths))
        .unwrap();
    assert!(read == [contents.clone(), contents, Vec::new()]);
    let missing = runtime.block_on(async_read::read_all(&image, &["none".to_owned()]));
    assert!(missing.unwrap_err().to_string().contains("not found"));
}

#[test]
fn serving() {
    let (work, dir, contents) = tree();
    let path = work.path().join("tree.dwarfs");
    Builder::new(&dir).level(1).write_to(&path).unwrap();
    let image = Image::open(&path).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || serve::serve(&image, &listener));

    let get = |request: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    };
    let head = format!(
        "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n",
        contents.len()
    );
    let whole = [head.as_bytes(), &contents].concat();
    assert!(get("GET /a/data HTTP/1.0\r\n") == whole);
    assert!(get("GET /link HTTP/1.0\r\n") == whole);
    for (request, answer) in [
        (
            "GET /../../../etc/passwd HTTP/1.0\r\n",
            "HTTP/1.0 404 Not Found",
        ),
        ("GET /a HTTP/1.0\r\n", "HTTP/1.0 404 Not Found"),
        ("PUT /a/data HTTP/1.0\r\n", "HTTP/1.0 400 Bad Request"),
    ] {
        let got = String::from_utf8(get(request)).unwrap();
        assert!(got.starts_with(answer), "{request}: {got}");
    }
}
