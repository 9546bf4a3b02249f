//! Mounts of several images of which none can be opened, and images that are added and cannot be opened.
#![cfg(target_os = "linux")]

use std::fs;

use crate::driver::{can_mount, stderr, table_line};
use crate::several_images::{Images, list, try_mount};

#[test]
fn a_mount_needs_an_image_that_opens() {
    if !can_mount("a_mount_needs_an_image_that_opens") {
        return;
    }
    let images = Images::new();
    let good = images.text("good.dwarfs");
    images.make("good.dwarfs", "good");
    let mut cut = fs::read(&good).unwrap();
    cut.truncate(cut.len() / 2);
    fs::write(images.path("cut.dwarfs"), cut).unwrap();
    fs::write(images.path("broken.dwarfs"), "no image").unwrap();
    fs::write(images.path("empty.dwarfs"), "").unwrap();
    let [broken, empty, cut] = ["broken", "empty", "cut"].map(|name| images.text(&format!("{name}.dwarfs")));
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
        let last = format!("dwarfs: none of 4 images can be opened: cannot open image: {broken}: not a");
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
        assert!(!text.contains("broken") && !text.contains("so far"), "{text}");
        // What was tried is closed.
        assert!(list(mount.point()).iter().all(|one| one["status"] == "closed"));
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
    assert!(text.contains("none of 300 images can be opened") && text.lines().count() <= 21, "{text}");
}
