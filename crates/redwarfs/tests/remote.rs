//! Images on a server, with the feature `remote`.
#![cfg(feature = "remote")]
#![allow(clippy::unwrap_used)]

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs::{Builder, Image};
use redwarfs_testkit::web::{WebFault, WebServer};

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
    assert_eq!(e.to_string().matches("http://").count(), 1, "{e}");
}

#[test]
fn an_opening_that_waits_for_a_server_can_be_ended() {
    let server = WebServer::start().unwrap();
    server.put("/a.dwarfs", vec![0; 1000]);
    server.fail([WebFault::Stall(0)]);
    let (url, stop) = (server.url("/a.dwarfs"), Arc::new(AtomicBool::new(false)));
    std::thread::scope(|scope| {
        let opening =
            scope.spawn(|| redwarfs::open_source(&url, None, Some(Arc::clone(&stop))).unwrap_err());
        while server.take_requests().is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        stop.store(true, Ordering::Relaxed);
        let e = opening.join().unwrap();
        assert_eq!(
            e.to_string(),
            format!("cannot open image: {url}: interrupted")
        );
    });
}

#[test]
fn an_object_that_is_gone_is_no_missing_entry() {
    let dir = tempfile::tempdir().unwrap();
    let many: Vec<u8> = (0..2_000_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    std::fs::write(dir.path().join("note"), many).unwrap();
    let mut bytes = Vec::new();
    Builder::new(dir.path()).level(0).write(&mut bytes).unwrap();
    let server = WebServer::start().unwrap();
    server.put("/a.dwarfs", bytes);
    let image = Image::open(server.url("/a.dwarfs")).unwrap();
    server.fail(std::iter::repeat_n(WebFault::Status(404, Vec::new()), 100));
    let read = image.file("note").unwrap().read_exact(&mut [0; 10]);
    assert!(read.unwrap_err().to_string().contains("404"));
    let entry = image.entry("note").unwrap();
    let mut buffer = [0; 10];
    let e = image.read_many([(entry, &mut buffer[..])], 1).unwrap_err();
    assert_eq!(e.errno(), rustix::io::Errno::STALE.raw_os_error(), "{e}");
}
