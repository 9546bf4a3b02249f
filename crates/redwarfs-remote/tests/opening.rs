//! Opening an object while its server is away, refuses, or cannot do what is needed.

#![allow(clippy::unwrap_used)]

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redwarfs_io::Source;
use redwarfs_remote::{Limits, RemoteSource};
use redwarfs_testkit::web::{WebFault, WebServer};

const SIZE: usize = 1 << 20;

fn server() -> (WebServer, String) {
    let server = WebServer::start().unwrap();
    server.put("/a", vec![7; SIZE]);
    let url = server.url("/a");
    (server, url)
}

fn within(open: Duration) -> Limits {
    let mut limits = Limits::default();
    limits.open = open;
    limits
}

fn refused(url: &str, open: Duration) -> (String, Duration) {
    let began = Instant::now();
    let e = RemoteSource::open(url, within(open)).unwrap_err();
    let text = e.to_string();
    assert!(text.starts_with(&format!("{url}: ")), "{text}");
    (text, began.elapsed())
}

#[test]
fn a_server_that_comes_back_is_waited_for() {
    assert_eq!(Limits::default().open, Duration::from_secs(30));
    let (server, url) = server();
    for fault in [
        WebFault::Refuse,
        WebFault::Cut(5),
        WebFault::Status(408, vec![]),
        WebFault::Status(429, vec![]),
        WebFault::Status(500, vec![]),
        WebFault::Status(502, vec![]),
        WebFault::Status(503, vec![]),
        WebFault::Status(504, vec![]),
    ] {
        server.take_requests();
        // More than half a second of pauses.
        server.fail(std::iter::repeat_n(fault.clone(), 5));
        let source = RemoteSource::open(&url, Limits::default());
        let source = source.unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        assert_eq!(source.len().unwrap(), SIZE as u64);
        assert!(server.take_requests().len() >= 6, "{fault:?}");
    }
}

#[test]
fn a_server_that_is_not_there_yet_is_waited_for() {
    let place = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = place.local_addr().unwrap();
    drop(place);
    let url = format!("http://{address}/a");
    let opening = {
        let url = url.clone();
        std::thread::spawn(move || RemoteSource::open(&url, Limits::default()).unwrap_err())
    };
    std::thread::sleep(Duration::from_millis(900));
    assert!(!opening.is_finished());
    let Ok(place) = TcpListener::bind(address) else {
        return redwarfs_testkit::skip(
            "a_server_that_is_not_there_yet_is_waited_for",
            "another program has taken the port",
        );
    };
    let (mut stream, _) = place.accept().unwrap();
    let answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    io::Read::read(&mut stream, &mut [0; 4096]).unwrap();
    io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
    let text = opening.join().unwrap().to_string();
    assert!(text.contains("404 Not Found"), "{text}");
}

#[test]
fn waiting_has_an_end() {
    let limit = Duration::from_millis(2500);
    let (server, url) = server();
    for fault in [
        WebFault::Refuse,
        WebFault::Status(503, vec![]),
        WebFault::Status(429, vec![]),
    ] {
        server.fail(std::iter::repeat_n(fault.clone(), 100));
        let (text, time) = refused(&url, limit);
        assert!(
            text.contains(" attempts in ") && text.ends_with(" s)"),
            "{text}"
        );
        assert!(
            time <= limit + Duration::from_secs(1),
            "{fault:?}: {time:?}"
        );
        // Not given up long before.
        assert!(time >= limit / 4, "{fault:?}: {time:?}");
        server.release();
    }
    server.fail(std::iter::repeat_n(WebFault::Stall(0), 100));
    let (text, time) = refused(&url, limit);
    assert!(text.contains("does not answer in time"), "{text}");
    assert!(time <= limit + Duration::from_secs(1), "{time:?}");
    server.release();
    drop(server);
    let (text, _) = refused(&url, limit);
    assert!(
        text.to_lowercase().contains("connection refused ("),
        "{text}"
    );
    // Longer than the server may take at all.
    let (server, url) = self::server();
    server.fail([WebFault::Status(503, vec![("Retry-After", "3600".into())])]);
    let (text, time) = refused(&url, Duration::from_secs(30));
    assert!(
        text.contains("503 Service Unavailable (1 attempt in 0 s)"),
        "{text}"
    );
    assert!(time < Duration::from_secs(5));
}

#[test]
fn what_waiting_does_not_change_is_an_error_at_once() {
    let (server, url) = server();
    for status in [400, 401, 403, 404, 405, 410, 451] {
        server.take_requests();
        server.fail(std::iter::repeat_n(WebFault::Status(status, vec![]), 2));
        let (text, _) = refused(&url, Duration::from_secs(30));
        assert!(
            text.contains(&status.to_string()) && !text.contains("attempt"),
            "{text}"
        );
        assert_eq!(server.take_requests().len(), 1, "{status}");
        server.release();
    }
    for host in ["no-such-host.invalid", &"x".repeat(64)] {
        let (text, _) = refused(&format!("http://{host}/a"), Duration::from_secs(30));
        assert!(
            text.contains(&format!("no address for the host '{host}': ")),
            "{text}"
        );
        assert!(
            !text.contains("attempt") && !text.contains("os error"),
            "{text}"
        );
    }
}

#[test]
fn a_server_without_ranges_says_what_to_do() {
    let (server, url) = server();
    server.without_ranges();
    // Small objects come as a whole.
    assert_eq!(
        RemoteSource::open(&url, Limits::default())
            .unwrap()
            .len()
            .unwrap(),
        SIZE as u64
    );
    server.put("/a", vec![7; 65 << 20]);
    let (text, _) = refused(&url, Duration::from_secs(30));
    for part in [
        "range requests",
        "65 MiB",
        "download it to a file",
        "a server that supports them",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_request_to_stop_ends_opening_and_reads() {
    let (server, url) = server();
    for fault in [WebFault::Stall(0), WebFault::Refuse] {
        for read in [false, true] {
            let stop = Arc::new(AtomicBool::new(false));
            let open =
                || RemoteSource::open_until(&url, Limits::default(), None, Some(Arc::clone(&stop)));
            let source = read.then(|| open().unwrap());
            server.fail(std::iter::repeat_n(fault.clone(), 200));
            server.take_requests();
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| match source {
                    Some(source) => source.read_exact_at(0, &mut [0; 10]),
                    None => open().map(drop),
                });
                while server.take_requests().is_empty() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let began = Instant::now();
                stop.store(true, Ordering::Relaxed);
                let text = waiting.join().unwrap().unwrap_err().to_string();
                assert!(text.ends_with(": interrupted"), "{text}");
                assert!(
                    began.elapsed() < Duration::from_secs(5),
                    "{:?}",
                    began.elapsed()
                );
            });
            server.release();
        }
    }
}
