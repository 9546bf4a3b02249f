//! Objects of a web server: what is asked for, and what happens when something goes wrong.

// A list of one range is meant.
#![allow(clippy::single_range_in_vec_init, clippy::unwrap_used)]

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64ct::Encoding as _;
use redwarfs_io::Source;
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_remote::{Limits, RemoteSource};
use redwarfs_testkit::web::{WebFault, WebRequest, WebServer};

const SIZE: usize = 3 << 20;

fn bytes() -> Vec<u8> {
    (0..SIZE as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

/// Limits that do not hold up a test.
fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.open = Duration::from_secs(20);
    limits.read = Duration::from_secs(20);
    limits.silence = Duration::from_secs(10);
    limits
}

fn server() -> (WebServer, Vec<u8>) {
    let (server, bytes) = (WebServer::start().unwrap(), bytes());
    server.put("/a", bytes.clone());
    (server, bytes)
}

fn open(server: &WebServer) -> RemoteSource {
    RemoteSource::open(&server.url("/a"), limits()).unwrap()
}

fn read(source: &RemoteSource, at: usize, len: usize) -> io::Result<Vec<u8>> {
    let mut out = vec![0; len];
    source.read_exact_at(at as u64, &mut out).map(|()| out)
}

#[test]
fn opening_is_one_request_for_the_end() {
    let (server, bytes) = server();
    let source = open(&server);
    assert_eq!(source.len().unwrap(), SIZE as u64);
    assert!(source.is_remote());
    // The end is there already.
    assert!(read(&source, SIZE - 1000, 1000).unwrap() == bytes[SIZE - 1000..]);
    let requests = server.take_requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].header("range"), Some("bytes=-12288"));
    assert_eq!(requests[0].header("accept-encoding"), Some("identity"));

    assert!(read(&source, 5, 10).unwrap() == bytes[5..15]);
    let requests = server.take_requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].header("range"), Some("bytes=5-65540"));
    assert_eq!(requests[0].header("if-match"), Some("\"v1\""));
    for (at, len) in [(SIZE, 1), (SIZE - 1, 2), (usize::MAX, 1)] {
        let e = read(&source, at, len).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof, "{at}");
    }
    read(&source, SIZE, 0).unwrap();
}

#[test]
fn objects_of_a_server_share_connections() {
    let (server, bytes) = server();
    for number in 0..10_u32 {
        let path = format!("/{number}");
        server.put(&path, bytes[..100_000].to_vec());
        // What one object needs to be read is nothing to another one.
        let url = server
            .url(&path)
            .replace("//", &format!("//user{number}:word@"));
        let source = RemoteSource::open(&url, limits()).unwrap();
        assert!(read(&source, 0, 100_000).unwrap() == bytes[..100_000]);
        let mut logins = Vec::new();
        for request in server.take_requests() {
            assert_eq!(request.header("accept-encoding"), Some("identity"));
            logins.push(request.header("authorization").unwrap().to_owned());
        }
        logins.dedup();
        let login = format!("user{number}:word");
        let encoded = base64ct::Base64::encode_string(login.as_bytes());
        assert_eq!(logins, [format!("Basic {encoded}")]);
    }
    assert!(server.connections() <= 5, "{}", server.connections());
}

#[test]
fn small_objects_and_objects_without_ranges_come_as_a_whole() {
    let (server, bytes) = server();
    server.put("/small", bytes[..100].to_vec());
    let source = RemoteSource::open(&server.url("/small"), limits()).unwrap();
    assert!(read(&source, 0, 100).unwrap() == bytes[..100]);
    assert_eq!(server.take_requests().len(), 1);

    server.put("/empty", Vec::new());
    let e = RemoteSource::open(&server.url("/empty"), limits()).unwrap_err();
    assert!(e.to_string().starts_with("http://127.0.0.1:"), "{e}");

    server.take_requests();
    server.without_ranges();
    let source = open(&server);
    for _ in 0..2 {
        assert!(read(&source, 0, SIZE).unwrap() == bytes);
    }
    assert_eq!(server.take_requests().len(), 2);
}

#[test]
fn numbers_without_successor_are_errors() {
    let (server, _) = server();
    let source = open(&server);
    let most = u64::MAX.to_string();
    server.fail([WebFault::Status(503, vec![("Retry-After", most)])]);
    let e = read(&source, 0, 10).unwrap_err().to_string();
    assert!(e.contains("503"), "{e}");
    server.fail([WebFault::WrongRange(u64::MAX - 65545)]);
    let e = read(&source, 10, 10).unwrap_err().to_string();
    assert!(e.contains("a range that cannot be"), "{e}");
    read(&source, 10, 10).unwrap();

    let mut limits = Limits::default();
    (limits.open, limits.read, limits.silence) = (Duration::MAX, Duration::MAX, Duration::MAX);
    let source = RemoteSource::open(&server.url("/a"), limits).unwrap();
    read(&source, 10, 10).unwrap();
}

#[test]
fn a_failed_announcement_is_not_remembered() {
    let (server, bytes) = server();
    let source = open(&server);
    server.take_requests();
    server.fail([WebFault::Status(403, vec![])]);
    source.will_need(&[0..1000]);
    while server.take_requests().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(read(&source, 0, 1000).unwrap() == bytes[..1000]);
}

#[test]
fn asynchronous_programs_may_open_and_read() {
    let (server, bytes) = server();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    runtime.block_on(async {
        let source = open(&server);
        assert!(read(&source, 5, 10).unwrap() == bytes[5..15]);
    });
}

#[test]
fn a_server_does_not_learn_who_sent_a_request_to_it() {
    let (first, second) = (server().0, server().0);
    let to = vec![("Location", second.url("/a"))];
    first.fail([WebFault::Status(302, to)]);
    RemoteSource::open(&first.url("/a?signature=hidden"), limits()).unwrap();
    let requests = second.take_requests();
    assert_eq!(requests.len(), 1);
    let headers = format!("{:?}", requests[0].headers);
    assert!(
        !headers.contains("hidden") && !headers.contains("referer"),
        "{headers}"
    );
}

#[test]
fn announced_ranges_are_fetched_together() {
    let (server, bytes) = server();
    let source = open(&server);
    server.take_requests();
    source.will_need(&[0..100_000, 150_000..400_000, 2_000_000..2_100_000]);
    assert!(read(&source, 0, 400_000).unwrap() == bytes[..400_000]);
    assert!(read(&source, 2_000_000, 100_000).unwrap() == bytes[2_000_000..2_100_000]);
    let mut ranges: Vec<_> = server
        .take_requests()
        .iter()
        .map(|request| request.header("range").unwrap().to_owned())
        .collect();
    ranges.sort();
    assert_eq!(ranges, ["bytes=0-399999", "bytes=2000000-2099999"]);
    // What is there is not fetched again.
    source.will_need(&[10..20]);
    source.will_need(&[10..20]);
    read(&source, 10, 10).unwrap();
    assert!(server.take_requests().len() <= 1);
    assert_eq!(source.requests(), 4);
}

#[test]
fn long_ranges_are_few_requests() {
    let (server, _) = server();
    server.put("/a", vec![7; 20 << 20]);
    let source = open(&server);
    let blocks: Vec<_> = (0..16_u64).map(|i| i << 20..(i + 1) << 20).collect();
    for (urgent, number) in [(true, 2), (false, 4)] {
        let source = if urgent {
            source.clone()
        } else {
            open(&server)
        };
        server.take_requests();
        match urgent {
            true => source.will_need(&blocks),
            false => source.may_need(&blocks),
        }
        assert!(
            read(&source, 0, 16 << 20)
                .unwrap()
                .iter()
                .all(|byte| *byte == 7)
        );
        assert_eq!(server.take_requests().len(), number);
    }
}

#[test]
fn no_more_than_eight_requests_run_at_once() {
    let (server, _) = server();
    server.put("/a", vec![7; 64 << 20]);
    let source = open(&server);
    server.delay(Duration::from_millis(30));
    let ranges: Vec<_> = (0..20)
        .map(|i| i * (3 << 20)..i * (3 << 20) + 1000)
        .collect();
    source.will_need(&ranges);
    for range in &ranges {
        read(&source, range.start as usize, 1000).unwrap();
    }
    assert!((6..=8).contains(&server.most_at_once()));
}

#[test]
fn the_background_is_never_in_the_way() {
    let (server, _) = server();
    server.put("/a", vec![7; 64 << 20]);
    let source = open(&server);
    server.delay(Duration::from_millis(100));
    server.take_requests();
    let ranges: Vec<_> = (0..20_u64)
        .map(|i| i * (3 << 20)..i * (3 << 20) + 1000)
        .collect();
    source.may_need(&ranges);
    // One of those that wait for their turn, and one that nobody has announced.
    read(&source, 19 * (3 << 20), 1000).unwrap();
    read(&source, 2 << 20, 1000).unwrap();
    let before = server.take_requests();
    let place = |start: &str| {
        let of = |request: &WebRequest| request.header("range").unwrap().starts_with(start);
        before.iter().position(of).unwrap()
    };
    assert!(place("bytes=59768832-") <= 7, "{before:?}");
    assert!(place("bytes=2097152-") < 19, "{before:?}");
    for range in &ranges {
        read(&source, range.start as usize, 1000).unwrap();
    }
    assert!(server.most_at_once() <= 8);
    // It takes half of the memory for bytes that were not read so far.
    server.delay(Duration::ZERO);
    server.take_requests();
    let large: Vec<_> = (0..16_u64)
        .map(|i| i * (4 << 20)..(i + 1) * (4 << 20))
        .collect();
    source.may_need(&large);
    std::thread::sleep(Duration::from_millis(300));
    let asked = server.take_requests();
    let bytes: u64 = asked.iter().map(|request| request.sent).sum();
    assert!((1..=32 << 20).contains(&bytes), "{bytes}");
}

#[test]
fn what_was_announced_is_never_before_a_read() {
    let (server, _) = server();
    server.put("/a", vec![7; 64 << 20]);
    let source = open(&server);
    server.delay(Duration::from_millis(100));
    server.take_requests();
    let ranges: Vec<_> = (0..20_u64)
        .map(|i| i * (3 << 20)..i * (3 << 20) + 1000)
        .collect();
    source.will_need(&ranges);
    read(&source, 2 << 20, 1000).unwrap();
    let before = server.take_requests();
    let is_read = |request: &WebRequest| {
        request
            .header("range")
            .unwrap()
            .starts_with("bytes=2097152-")
    };
    assert!(before.iter().position(is_read).unwrap() <= 7, "{before:?}");
    for range in &ranges {
        read(&source, range.start as usize, 1000).unwrap();
    }
    assert!(server.most_at_once() <= 8);
}

#[test]
fn a_walk_back_frees_what_it_has_read() {
    let (server, _) = server();
    server.put("/a", vec![7; 64 << 20]);
    let source = open(&server);
    server.take_requests();
    for group in (0..15_u64).rev() {
        let blocks: Vec<_> = (4 * group..4 * group + 4)
            .map(|block| block << 20..(block << 20) + (1 << 20))
            .collect();
        source.may_need(&blocks);
        assert!(
            blocks.iter().all(|block| source.is_coming(block)),
            "{group}"
        );
        for block in blocks.iter().rev() {
            read(&source, block.start as usize, 1 << 20).unwrap();
        }
        assert!(
            !blocks.iter().any(|block| source.is_coming(block)),
            "{group}"
        );
    }
    assert_eq!(server.take_requests().len(), 15);
    // What does not fit is not on its way.
    let large: Vec<_> = (0..15_u64).map(|i| i << 22..(i + 1) << 22).collect();
    source.may_need(&large);
    let coming = large.iter().filter(|range| source.is_coming(range)).count();
    assert_eq!(coming, 7);
}

#[test]
fn an_outage_is_as_long_for_what_was_announced() {
    let (server, _) = server();
    server.put("/a", vec![7; 20 << 20]);
    let mut limits = limits();
    limits.read = Duration::from_secs(4);
    let source = RemoteSource::open(&server.url("/a"), limits).unwrap();
    server.fail(std::iter::repeat_n(WebFault::Stall(0), 100));
    let blocks: Vec<_> = (0..8_u64).map(|i| i << 20..(i + 1) << 20).collect();
    source.will_need(&blocks);
    // A read has all its time, although its bytes were announced long ago.
    std::thread::sleep(Duration::from_secs(3));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&source, 1 << 20, 1000));
        std::thread::sleep(Duration::from_secs(2));
        server.release();
        reader.join().unwrap().unwrap();
    });
    // And no more, although the request is for much else.
    server.fail(std::iter::repeat_n(WebFault::Stall(0), 100));
    let blocks: Vec<_> = (9..19_u64).map(|i| i << 20..(i + 1) << 20).collect();
    source.will_need(&blocks);
    let began = Instant::now();
    let e = read(&source, 9 << 20, 1000).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::TimedOut, "{e}");
    assert!(began.elapsed() < Duration::from_secs(12));
    server.release();
    read(&source, 9 << 20, 1000).unwrap();
}

#[test]
fn reads_in_a_row_ask_for_more_and_more() {
    let (server, bytes) = server();
    let source = open(&server);
    server.take_requests();
    for at in (0..SIZE).step_by(4096) {
        assert!(read(&source, at, 4096).unwrap() == bytes[at..at + 4096]);
    }
    let number = server.take_requests().len();
    assert!((5..=7).contains(&number), "{number}");
}

#[test]
fn passing_faults_are_overcome() {
    let (server, bytes) = server();
    let source = open(&server);
    server.take_requests();
    let faults = [
        vec![WebFault::Cut(1000)],
        vec![WebFault::Refuse],
        vec![
            WebFault::Status(500, vec![]),
            WebFault::Status(503, vec![("Content-Encoding", "gzip".into())]),
        ],
        vec![WebFault::Cut(0), WebFault::Cut(5), WebFault::Refuse],
    ];
    for (i, faults) in faults.into_iter().enumerate() {
        let at = i * 300_000;
        server.fail(faults.clone());
        let got = read(&source, at, 200_000).unwrap_or_else(|e| panic!("{faults:?}: {e}"));
        assert!(got == bytes[at..at + 200_000], "{faults:?}");
    }
    // After a cut it goes on from there.
    let ranges: Vec<_> = server
        .take_requests()
        .iter()
        .map(|request| request.header("range").unwrap().to_owned())
        .collect();
    assert_eq!(ranges[0], "bytes=0-199999");
    assert!(
        ranges[1].ends_with("-199999") && ranges[1] != ranges[0],
        "{}",
        ranges[1]
    );
}

#[test]
fn the_server_is_left_alone_for_as_long_as_it_wants() {
    let (server, _) = server();
    let source = open(&server);
    server.fail([WebFault::Status(429, vec![("Retry-After", "1".into())])]);
    let began = Instant::now();
    read(&source, 0, 10).unwrap();
    assert!(
        began.elapsed() >= Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );

    // Longer than the read may take.
    server.fail([WebFault::Status(429, vec![("Retry-After", "3600".into())])]);
    let began = Instant::now();
    let e = read(&source, 1_000_000, 10).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(5));
    assert!(e.to_string().contains("429"), "{e}");
    read(&source, 1_000_000, 10).unwrap();
}

#[test]
fn wrong_answers_are_errors_at_once() {
    let (server, _) = server();
    let source = open(&server);
    server.take_requests();
    for (fault, cause) in [
        (WebFault::WrongRange(1), "equested"),
        (WebFault::TooLong(10), "65546 instead of 65536 bytes"),
        (WebFault::TooShort(7), "65543 instead of 65536 bytes"),
        (WebFault::Encoded, "compressed"),
        (WebFault::Whole, "does not support range requests"),
        (WebFault::Status(403, vec![]), "403"),
        (WebFault::Status(404, vec![]), "404"),
    ] {
        server.fail([fault.clone()]);
        let e = read(&source, 10, 10).unwrap_err().to_string();
        assert!(e.contains(cause), "{fault:?}: {e}");
        let place = format!("{}: bytes 10..65546: ", server.url("/a"));
        assert!(e.starts_with(&place), "{e}");
        assert_eq!(server.take_requests().len(), 1, "{fault:?}");
    }
    // None of it stays.
    read(&source, 10, 10).unwrap();
}

#[test]
fn a_changed_object_is_an_error_and_never_mixed() {
    let (server, _) = server();
    let source = open(&server);
    read(&source, 0, 10).unwrap();
    server.put("/a", vec![0; SIZE]);
    let e = read(&source, 1_000_000, 10).unwrap_err();
    assert!(e.to_string().contains("has changed"), "{e}");

    // In the middle of a range.
    let source = open(&server);
    server.fail([WebFault::Stall(1000)]);
    let reader = {
        let source = source.clone();
        std::thread::spawn(move || read(&source, 0, 200_000))
    };
    std::thread::sleep(Duration::from_millis(100));
    server.put("/a", vec![1; SIZE]);
    server.hang_up();
    server.release();
    let e = reader.join().unwrap().unwrap_err();
    assert!(e.to_string().contains("has changed"), "{e}");

    // Without tags, its length still counts.
    server.without_tags();
    let source = open(&server);
    read(&source, 0, 10).unwrap();
    server.put("/a", vec![1; SIZE + 1]);
    let e = read(&source, 1_000_000, 10).unwrap_err();
    assert!(e.to_string().contains("has changed"), "{e}");
}

#[test]
fn a_stalled_server_is_given_up() {
    let (server, bytes) = server();
    let mut limits = limits();
    limits.silence = Duration::from_millis(300);
    limits.read = Duration::from_millis(2500);
    let source = RemoteSource::open(&server.url("/a"), limits).unwrap();
    // Another connection helps.
    server.fail([WebFault::Stall(1000)]);
    assert!(read(&source, 0, 100_000).unwrap() == bytes[..100_000]);
    server.fail(std::iter::repeat_n(WebFault::Stall(0), 100));
    let began = Instant::now();
    let e = read(&source, 1_000_000, 10).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::TimedOut, "{e}");
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "{:?}",
        began.elapsed()
    );
    server.release();
    read(&source, 1_000_000, 10).unwrap();
}

#[test]
fn an_abandoned_source_holds_nobody() {
    let (server, _) = server();
    let source = open(&server);
    server.fail([WebFault::Stall(0)]);
    server.take_requests();
    let began = Instant::now();
    let reader = {
        let source = source.clone();
        std::thread::spawn(move || read(&source, 0, 10))
    };
    while server.take_requests().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    source.abandon();
    let e = reader.join().unwrap().unwrap_err();
    assert!(e.to_string().contains("no longer in use"), "{e}");
    assert!(read(&source, 1_000_000, 10).is_err());
    source.will_need(&[0..10]);
    assert!(server.take_requests().is_empty());
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn what_waits_for_its_turn_is_not_fetched_for_an_abandoned_source() {
    let (server, _) = server();
    let source = open(&server);
    server.fail(std::iter::repeat_n(WebFault::Stall(0), 8));
    server.take_requests();
    let ranges: Vec<_> = (0..20_u64)
        .map(|i| i * 150_000..i * 150_000 + 1000)
        .collect();
    source.may_need(&ranges);
    let mut sent = 0;
    while sent < 6 {
        std::thread::sleep(Duration::from_millis(5));
        sent += server.take_requests().len();
    }
    source.abandon();
    server.release();
    std::thread::sleep(Duration::from_millis(300));
    assert!(server.take_requests().is_empty());
}

#[test]
fn nothing_secret_is_shown() {
    let (server, _) = server();
    let address = server.address();
    let url = format!("http://someone:hidden@{address}/a?signature=hidden");
    let source = RemoteSource::open(&url, limits()).unwrap();
    let requests = server.take_requests();
    assert_eq!(requests[0].target, "/a?signature=hidden");
    assert_eq!(
        requests[0].header("authorization"),
        Some("Basic c29tZW9uZTpoaWRkZW4=")
    );
    let mut texts = vec![format!("{source:?}"), source.shown().to_owned()];
    for fault in [
        WebFault::Status(403, vec![]),
        WebFault::WrongRange(5),
        WebFault::Encoded,
        WebFault::TooLong(1),
        WebFault::Whole,
    ] {
        server.fail([fault]);
        let e = read(&source, 10, 10).unwrap_err();
        texts.push(format!("{e} {e:?}"));
    }
    let e = RemoteSource::open(
        &format!("http://someone:hidden@{address}/none?hidden"),
        limits(),
    )
    .unwrap_err();
    texts.push(format!("{e} {e:?}"));
    for text in texts {
        assert!(
            !text.contains("hidden") && !text.contains("someone"),
            "{text}"
        );
        assert!(text.contains("127.0.0.1"), "{text}");
    }
}

#[test]
fn golden_images_are_the_same_through_the_network() {
    let server = WebServer::start().unwrap();
    let images = redwarfs_testkit::golden_images().into_iter();
    for golden in images.chain(redwarfs_testkit::compat_images()) {
        let path = format!("/{}", golden.name);
        server.put(&path, std::fs::read(&golden.image).unwrap());
        let source = RemoteSource::open(&server.url(&path), limits()).unwrap();
        let options = OpenOptions::default();
        let local = Image::open(&golden.image, &options).unwrap();
        let image = Image::from_source(Arc::new(source), &options).unwrap();
        let mut entries = 0;
        for (one, two) in local.walk().zip(image.walk()) {
            let (one, two) = (one.unwrap(), two.unwrap());
            assert_eq!(one, two);
            let stat = image.stat(two.inode).unwrap();
            assert_eq!(local.stat(one.inode).unwrap(), stat);
            let all = |image: &Image| {
                let mut bytes = vec![0; stat.size.min(32 << 20) as usize];
                let read = image.read_at(two.inode, 0, &mut bytes);
                read.ok().map(|n| bytes[..n].to_vec())
            };
            assert!(all(&local) == all(&image), "{path}");
            entries += 1;
        }
        assert!(entries > 0, "{path}");
    }
}
