//! Mounts of several images of which none can be opened, and images that are added and cannot be opened.
#![cfg(target_os = "linux")]

use std::fs;

use crate::driver::{can_mount, stderr, table_line};
use crate::several_images::{Images, ctl, list, mount, names, try_mount};

/// A directory with an image, whose path is the second value, and three that cannot be opened.
fn damaged_images() -> (Images, String) {
    let images = Images::new();
    let good = images.text("good.dwarfs");
    images.make("good.dwarfs", "good");
    let mut cut = fs::read(&good).unwrap();
    cut.truncate(cut.len() / 2);
    fs::write(images.path("cut.dwarfs"), cut).unwrap();
    fs::write(images.path("broken.dwarfs"), "no image").unwrap();
    fs::write(images.path("empty.dwarfs"), "").unwrap();
    (images, good)
}

#[test]
fn a_mount_needs_an_image_that_opens() {
    if !can_mount("a_mount_needs_an_image_that_opens") {
        return;
    }
    let (images, good) = damaged_images();
    let [broken, empty, cut] =
        ["broken", "empty", "cut"].map(|name| images.text(&format!("{name}.dwarfs")));
    let absent = images.text("absent.dwarfs");
    let causes = [
        (&*broken, "not a DwarFS image"),
        (&*absent, "no such file"),
        (&*empty, "not a DwarFS image"),
        (&*cut, "truncated"),
    ];
    // Each alone, as a single image would fail.
    for (image, cause) in causes {
        let (mount, output) = try_mount("", &[image]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{image}: {text}");
        let start = format!("dwarfs: cannot open image: {image}: ");
        assert!(text.starts_with(&start) && text.contains(cause), "{text}");
        assert!(table_line(mount.point()).is_none(), "{text}");
    }
    // All: each is named with its cause.
    let all = causes.map(|(image, _)| image);
    for options in ["", "debuglevel=error"] {
        let (mount, output) = try_mount(options, &all);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        for (image, cause) in causes {
            let line = text.lines().find(|line| line.contains(image)).unwrap();
            assert!(line.starts_with("E ") && line.contains(cause), "{text}");
        }
        let last =
            format!("dwarfs: none of 4 images can be opened: cannot open image: {broken}: not a");
        assert!(text.lines().last().unwrap().starts_with(&last), "{text}");
        assert!(table_line(mount.point()).is_none(), "{text}");
    }
    // One that opens is enough, wherever it is, and nothing says that others do not.
    for place in 0..=all.len() {
        let mut all = all.to_vec();
        all.insert(place, &good);
        let (mount, output) = try_mount("", &all);
        let text = stderr(&output);
        assert!(output.status.success(), "{place}: {text}");
        assert!(
            !text.contains("broken") && !text.contains("so far"),
            "{text}"
        );
        // What was tried is closed.
        assert!(
            list(mount.point())
                .iter()
                .all(|one| one["status"] == "closed")
        );
        let who = mount.point().join("good/who");
        assert_eq!(fs::read_to_string(who).unwrap(), "good");
    }
    // Many that do not open take little time.
    for number in 0..300 {
        fs::write(images.path(&format!("many{number}.dwarfs")), "no image").unwrap();
    }
    let (_mount, output) = try_mount("", &[&images.text("many*.dwarfs")]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("none of 300 images can be opened") && text.lines().count() <= 21,
        "{text}"
    );
}

#[test]
fn an_image_that_cannot_be_opened_is_not_added() {
    if !can_mount("an_image_that_cannot_be_opened_is_not_added") {
        return;
    }
    let (images, good) = damaged_images();
    let mount = mount("", &[&good]);
    let root = mount.point();
    for (name, cause) in [
        ("broken", "not a DwarFS image"),
        ("empty", "not a DwarFS image"),
        ("cut", "truncated"),
    ] {
        let image = images.text(&format!("{name}.dwarfs"));
        let text = ctl(root, &["add", &image]).unwrap_err();
        let start = format!("dwarfs: cannot add image: {image}: ");
        assert!(text.starts_with(&start) && text.contains(cause), "{text}");
        assert_eq!(names(root), ["good"]);
        // Those before it are there, and what comes behind it is not tried.
        let before = format!("before-{name}={good}");
        let text = ctl(root, &["add", &before, &image, "behind=/nowhere"]).unwrap_err();
        assert!(text.starts_with(&start), "{text}");
        let before = format!("before-{name}");
        assert_eq!(names(root), [&*before, "good"]);
        ctl(root, &["remove", &before]).unwrap();
    }
    // The name is looked at first.
    let taken = format!("good={}", images.text("broken.dwarfs"));
    let text = ctl(root, &["add", &taken]).unwrap_err();
    assert!(text.contains("there is an image 'good' already"), "{text}");
    // Once it can be opened, it can be added. It is closed until somebody uses it.
    images.make("broken.dwarfs", "repaired");
    ctl(root, &["add", &images.text("broken.dwarfs")]).unwrap();
    assert!(list(root).iter().all(|one| one["status"] == "closed"));
    let who = root.join("broken/who");
    assert_eq!(fs::read_to_string(who).unwrap(), "repaired");
}

#[cfg(feature = "remote")]
#[test]
fn a_server_that_does_not_answer_holds_up_only_its_image() {
    use redwarfs_testkit::web::{WebFault, WebServer};
    use std::time::{Duration, Instant};

    if !can_mount("a_server_that_does_not_answer_holds_up_only_its_image") {
        return;
    }
    let images = Images::new();
    let good = images.text("good.dwarfs");
    let image = fs::read(images.make("good.dwarfs", "good")).unwrap();
    let server = WebServer::start().unwrap();
    server.put("/far.dwarfs", image);
    let url = server.url("/far.dwarfs");
    // At the start: the mount does not wait for long, and says so.
    server.fail(std::iter::repeat_n(WebFault::Stall(0), 100));
    let began = Instant::now();
    let (alone, output) = try_mount("", &[&url]);
    let text = stderr(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("no image could be opened so far"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(8));
    server.release();
    let who = alone.point().join("far/who");
    crate::driver::wait_until("the image", || {
        fs::read_to_string(&who).is_ok_and(|text| text == "good")
    });
    // What the server refuses is an error, and what is beside it is mounted.
    let missing = server.url("/missing.dwarfs");
    let (_mount, output) = try_mount("", &[&missing]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("404 Not Found"), "{text}");
    let mount = mount("", &[&missing, &good]);
    let root = mount.point();
    let text = ctl(root, &["add", &format!("x={missing}")]).unwrap_err();
    assert!(
        text.contains("cannot add image: ") && text.contains("404 Not Found"),
        "{text}"
    );
    // While one is added, others are added, listed and removed.
    server.fail(std::iter::repeat_n(WebFault::Stall(0), 100));
    server.take_requests();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| ctl(root, &["add", &url]));
        crate::driver::wait_until("the request", || !server.take_requests().is_empty());
        ctl(root, &["add", &format!("more={good}")]).unwrap();
        assert_eq!(list(root).len(), 3);
        ctl(root, &["remove", "more"]).unwrap();
        assert!(!slow.is_finished());
        server.release();
        slow.join().unwrap().unwrap();
    });
    assert_eq!(names(root), ["far", "good", "missing"]);
}
