//! Images on a server, with the feature `remote`.
#![cfg(feature = "remote")]
#![allow(clippy::unwrap_used)]

use std::io::Read as _;

use redwarfs::{Builder, Image};
use redwarfs_testkit::web::WebServer;

#[test]
fn a_url_is_a_path() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("note"), "some text").unwrap();
    let mut bytes = Vec::new();
    Builder::new(dir.path()).level(1).write(&mut bytes).unwrap();
    let server = WebServer::start().unwrap();
    server.put("/a.dwarfs", bytes);

    let image = Image::open(server.url("/a.dwarfs")).unwrap();
    assert_eq!(image.metadata("note").unwrap().size, 9);
    let mut text = String::new();
    image
        .file("note")
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "some text");

    let url = server
        .url("/none?hidden")
        .replace("http://", "http://hidden:hidden@");
    let e = Image::open(url).unwrap_err();
    let text = format!("{e} {:?}", std::error::Error::source(&e));
    assert!(text.contains("404") && text.contains("/none?..."), "{text}");
    assert!(!text.contains("hidden"), "{text}");
}
