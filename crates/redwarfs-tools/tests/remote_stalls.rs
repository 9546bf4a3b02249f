//! Servers that fail, stall or cannot be trusted.
#![cfg(feature = "remote")]

use crate::driver;
use crate::driver::{Mount, can_mount, driver_of, dwarfs, stderr, temp, wait_until};
use crate::remote::Site;
use crate::support::{DWARFSCK, build};
use redwarfs_testkit::web::{WebFault, WebServer};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

#[test]
fn a_fault_is_an_error_of_one_read() {
    if !can_mount("remote mount") {
        return;
    }
    let site = Site::new(&[]);
    let log = site.path("log");
    let mount = Mount::background(Path::new(&site.url), &format!("log_file={}", log.display()));
    site.server
        .fail([WebFault::Cut(1000), WebFault::Status(503, vec![])]);
    assert!(
        fs::read(mount.point().join("sub/text"))
            .unwrap()
            .starts_with(b"some text\n")
    );

    // Another image in its place.
    site.server.put("/tree.dwarfs", vec![0; 5 << 20]);
    let e = fs::read(mount.point().join("large")).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::EIO));
    let text = fs::read_to_string(&log).unwrap();
    assert!(
        text.contains(&format!("{}: bytes ", site.url)) && text.contains("has changed"),
        "{text}"
    );
    // What is in the cache stays.
    assert!(fs::read(mount.point().join("sub/text")).is_ok());
}

#[test]
fn a_stalled_server_holds_nobody() {
    if !can_mount("remote mount") {
        return;
    }
    let site = Site::new(&[]);
    for how in ["reader", "driver", "unmount"] {
        let mount = Mount::background(Path::new(&site.url), "");
        let driver = driver_of(mount.point());
        site.server
            .fail(std::iter::repeat_n(WebFault::Stall(100), 50));
        let mut reader = std::process::Command::new("cat")
            .arg(mount.point().join("large"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        site.server.take_requests();
        wait_until("the read", || !site.server.take_requests().is_empty());
        let began = Instant::now();
        match how {
            "reader" => reader.kill().unwrap(),
            "driver" => driver::kill(driver, rustix::process::Signal::TERM),
            _ => {
                rustix::mount::unmount(mount.point(), rustix::mount::UnmountFlags::DETACH).unwrap();
            }
        }
        if how == "unmount" {
            reader.kill().unwrap();
        }
        reader.wait().unwrap();
        if how != "reader" {
            wait_until("the end of the driver", || {
                driver::stat_field(driver, 0).is_none_or(|state| state == "Z")
            });
        }
        assert!(
            began.elapsed() < Duration::from_secs(8),
            "{how}: {:?}",
            began.elapsed()
        );
        site.server.release();
    }
}

#[test]
fn images_on_servers_that_do_not_answer_stop_no_other() {
    const CLOSED: usize = 10;
    if !can_mount("several remote images") {
        return;
    }
    let sites = [Site::new(&[]), Site::new(&[])];
    let image = sites[0].path("tree.dwarfs");
    let bytes = fs::read(&image).unwrap();
    let mut images = vec![
        format!("a={}", sites[0].url),
        format!("b={}", sites[1].url),
        format!("good={}", image.display()),
        format!("late={}", image.display()),
    ];
    for number in 0..CLOSED {
        let path = format!("/{number}.dwarfs");
        sites[0].server.put(&path, bytes.clone());
        images.push(format!("c{number}={}", sites[0].server.url(&path)));
    }
    let mount = Mount::on(Mount::new_dir());
    let root = mount.point().to_owned();
    let options = format!("dir={},workers=2", root.display());
    let output = dwarfs().args(["-o", &options]).args(&images).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    for name in ["a", "b", "good"] {
        fs::metadata(root.join(name).join("large")).unwrap();
    }
    for site in &sites {
        let stalls = std::iter::repeat_n(WebFault::Stall(0), 1000);
        site.server.fail(stalls);
        site.server.take_requests();
    }
    let mut stalled = Vec::new();
    for (name, site) in ["a", "b"].into_iter().zip(&sites) {
        for number in 0..5 {
            let path = root.join(format!("{name}/sub/{}", number * 40));
            stalled.push(std::thread::spawn(move || drop(fs::read(path))));
        }
        wait_until("a read that stalls", || {
            !site.server.take_requests().is_empty()
        });
    }
    for number in 0..CLOSED {
        let path = root.join(format!("c{number}/large"));
        stalled.push(std::thread::spawn(move || drop(fs::metadata(path))));
    }
    let mut opening = 0;
    wait_until("images that are being opened", || {
        opening += sites[0].server.take_requests().len();
        opening >= CLOSED
    });
    let (send, received) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for name in ["good", "late"] {
            for path in ["large", "sub/0", "sub/text"] {
                send.send(fs::read(root.join(name).join(path)).unwrap().len())
                    .unwrap();
            }
        }
    });
    for length in [3 << 20, 3000, 50_000, 3 << 20, 3000, 50_000] {
        assert_eq!(received.recv_timeout(driver::PATIENCE), Ok(length));
    }
    assert!(stalled.iter().all(|thread| !thread.is_finished()));
    sites.iter().for_each(|site| site.server.release());
    for thread in stalled {
        thread.join().unwrap();
    }
}

#[test]
fn copies_to_a_writable_layer_that_stall_stop_nobody() {
    const COUNT: usize = 20;
    if !can_mount("remote writable mount") {
        return;
    }
    let site = Site::new(&[]);
    let options = format!("rw={},workers=2", site.path("layer").display());
    let mount = Mount::background(Path::new(&site.url), &options);
    let root = mount.point();
    fs::metadata(root.join("large")).unwrap();
    site.server
        .fail(std::iter::repeat_n(WebFault::Stall(0), 1000));
    site.server.take_requests();
    let file = |number: usize| root.join(format!("sub/{}", number / 2));
    // Two programs for each file.
    let append = |number: usize| {
        std::process::Command::new("sh")
            .args(["-c", "echo x >>\"$0\""])
            .arg(file(number))
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut writers: Vec<_> = (0..COUNT).map(append).collect();
    wait_until("a copy that stalls", || {
        !site.server.take_requests().is_empty()
    });
    let (send, received) = std::sync::mpsc::channel();
    std::thread::spawn({
        let root = root.to_owned();
        move || {
            for number in 0..COUNT {
                let dir = root.join(format!("sub/new-{number}"));
                fs::create_dir(&dir).unwrap();
                let file = fs::File::create(dir.join("file")).unwrap();
                file.sync_all().unwrap();
                fs::rename(dir.join("file"), dir.join("renamed")).unwrap();
                let found = fs::read_dir(&dir).unwrap().count();
                send.send(found + fs::read_dir(root.join("sub")).unwrap().count())
                    .unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
    for number in 0..COUNT {
        let found = received.recv_timeout(driver::PATIENCE);
        assert_eq!(found, Ok(1 + 201 + number + 1));
    }
    // One that copies, or waits for one that does, ends when it is killed.
    let began = Instant::now();
    for number in [0, 1, COUNT - 2, COUNT - 1] {
        writers[number].kill().unwrap();
        writers[number].wait().unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(8));
    let others = 2..COUNT - 2;
    assert!(
        others
            .clone()
            .all(|number| writers[number].try_wait().unwrap().is_none())
    );
    site.server.release();
    for number in others {
        assert!(writers[number].wait().unwrap().success());
    }
    for number in (0..COUNT).step_by(2) {
        let added = if (2..COUNT - 2).contains(&number) {
            4
        } else {
            0
        };
        let length = fs::metadata(file(number)).unwrap().len();
        assert_eq!(length, 3000 + added, "{number}");
    }
}

#[test]
fn certificates_are_checked() {
    let dir = temp();
    let image = dir.path().join("image");
    fs::write(dir.path().join("file"), "hello").unwrap();
    build(dir.path(), &image, &["--no-progress"]);
    let server = WebServer::start_tls().unwrap();
    server.put("/a", fs::read(&image).unwrap());
    let authority = dir.path().join("authority.pem");
    fs::write(&authority, WebServer::AUTHORITY).unwrap();
    let check = |url: &str, trusted: bool| {
        let mut check = std::process::Command::new(DWARFSCK);
        check.args([url, "--check-integrity"]);
        match trusted {
            true => check.env("SSL_CERT_FILE", &authority),
            false => check.env_remove("SSL_CERT_FILE"),
        };
        check.output().unwrap()
    };
    let url = server.url("/a");
    let out = check(&url, true);
    assert!(out.status.success(), "{}", stderr(&out));
    assert!(!server.take_requests().is_empty());

    // Nobody knows this authority, and it is not tried again.
    let port = server.address().port();
    for (url, why) in [
        (url.clone(), "UnknownIssuer"),
        (format!("https://127.0.0.1:{port}/a"), "not valid for name"),
    ] {
        let trusted = why != "UnknownIssuer";
        let out = check(&url, trusted);
        let text = stderr(&out);
        assert_eq!(out.status.code(), Some(1), "{text}");
        assert!(text.contains(why) && text.contains(&url), "{text}");
        assert!(!text.contains("attempt"), "{text}");
    }
    assert!(server.take_requests().is_empty());
}

#[test]
fn the_driver_can_be_killed_while_it_opens() {
    let site = Site::new(&[]);
    site.server.fail([WebFault::Stall(0)]);
    let dir = temp();
    let mut driver = dwarfs()
        .arg("-f")
        .arg(&site.url)
        .arg(dir.path())
        .spawn()
        .unwrap();
    wait_until("the request", || !site.server.take_requests().is_empty());
    driver::kill(driver.id(), rustix::process::Signal::TERM);
    let began = Instant::now();
    driver.wait().unwrap();
    assert!(began.elapsed() < Duration::from_secs(5));
}
