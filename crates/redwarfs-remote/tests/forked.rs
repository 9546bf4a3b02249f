//! A child of the process that opened an object. A program of its own: the other tests do not expect to be in a child.
#![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

use redwarfs_io::Source as _;
use redwarfs_io::process::forked;
use redwarfs_remote::{Limits, RemoteSource};
use redwarfs_testkit::web::WebServer;

#[test]
fn a_child_opens_what_its_parent_has_opened() {
    let server = WebServer::start().unwrap();
    server.put("/a", vec![7; 100_000]);
    let open = || RemoteSource::open(&server.url("/a"), Limits::default()).unwrap();
    let (of_parent, mut out) = (open(), [0; 10]);
    of_parent.read_exact_at(0, &mut out).unwrap();

    forked();
    server.take_requests();
    let e = of_parent.read_exact_at(50_000, &mut out).unwrap_err();
    assert!(e.to_string().contains("open the image again"), "{e}");
    of_parent.will_need(&[0..10]);
    assert!(server.take_requests().is_empty());
    let (first, second) = (open(), open());
    for source in [first, second] {
        source.read_exact_at(50_000, &mut out).unwrap();
        assert_eq!(out, [7; 10]);
    }
}
