//! A second start with a cache on disk: what is asked for, and what happens when the cache is wrong.

#![cfg(feature = "remote")]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::driver;
use crate::driver::{Mount, can_mount, dwarfs, stderr, wait_until};
use crate::support::{DWARFSCK, DWARFSEXTRACT, build, must, run};
use redwarfs_format::BlockNo;
use redwarfs_io::DiskCache;
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_remote::{Limits, RemoteSource};
use redwarfs_testkit::web::{WebFault, WebServer};

/// An image with several blocks on a server, and a cache.
struct Site {
    dir: tempfile::TempDir,
    path: PathBuf,
    server: WebServer,
    image: Vec<u8>,
}

fn noise(length: usize, seed: u32) -> Vec<u8> {
    let mut x = seed;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

impl Site {
    fn new() -> Self {
        let dir = driver::temp();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("sub")).unwrap();
        fs::write(tree.join("large"), noise(900_000, 1)).unwrap();
        for i in 0..50 {
            let text = format!("{i} some text\n").repeat(800);
            fs::write(tree.join(format!("sub/{i}")), text).unwrap();
        }
        let path = dir.path().join("tree.dwarfs");
        build(&tree, &path, &["-S17", "--no-progress"]);
        let image = fs::read(path).unwrap();
        let server = WebServer::start().unwrap();
        server.put("/a", image.clone());
        Self {
            path: dir.path().join("cache"),
            dir,
            server,
            image,
        }
    }

    fn cache(&self) -> DiskCache {
        DiskCache::open(&self.path, 1 << 30).unwrap()
    }

    fn open(&self, cache: &DiskCache) -> io::Result<Image> {
        let mut limits = Limits::default();
        limits.open = Duration::from_secs(5);
        let url = self.server.url("/a");
        let source = RemoteSource::open_cached(&url, limits, Some(cache))?;
        let mut options = OpenOptions::default();
        options.disk_cache = Some(cache.clone());
        let opened = Image::from_source(Arc::new(source), &options);
        opened.map_err(|e| match e {
            redwarfs_format::Error::Io(e) => e,
            other => io::Error::other(other.to_string()),
        })
    }

    /// Opens the image and decodes all of its blocks.
    fn read(&self, cache: &DiskCache) -> io::Result<Vec<Vec<u8>>> {
        let image = self.open(cache)?;
        let blocks = (0..image.container().block_count()).map(BlockNo);
        let blocks = blocks.map(|block| image.decode_block(block));
        let blocks: Result<Vec<_>, _> = blocks.collect();
        cache.flush();
        blocks.map_err(|e| io::Error::other(e.to_string()))
    }

    fn files(&self) -> Vec<PathBuf> {
        let list = |path: &Path| -> Vec<PathBuf> {
            let all = fs::read_dir(path).unwrap();
            all.map(|entry| entry.unwrap().path()).collect()
        };
        list(&self.path)
            .iter()
            .filter(|path| path.is_dir())
            .flat_map(|path| list(path))
            .collect()
    }
}

#[test]
fn a_second_start_is_one_question() {
    let site = Site::new();
    let first = site.read(&site.cache()).unwrap();
    assert!(first.len() > 1);
    assert!(site.server.take_requests().len() > 1);

    // Another process.
    let cache = site.cache();
    assert_eq!(site.read(&cache).unwrap(), first);
    let requests = site.server.take_requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert_eq!(requests[0].header("if-none-match"), Some("\"v1\""));
    assert_eq!(requests[0].sent, 0);
    assert_eq!(cache.stats().stored, 0);

    // Offline, not even that one.
    let offline = site.cache().offline(true);
    assert_eq!(site.read(&offline).unwrap(), first);
    assert_eq!(site.server.take_requests(), []);
}

#[test]
fn what_the_cache_lacks_is_an_error_offline() {
    let site = Site::new();
    let e = site.open(&site.cache().offline(true)).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::NotConnected);
    assert!(e.to_string().contains("not in the cache"), "{e}");

    let cache = site.cache();
    site.open(&cache).unwrap();
    cache.flush();
    site.server.take_requests();
    let image = site.open(&site.cache().offline(true)).unwrap();
    let e = image.decode_block(BlockNo(0)).unwrap_err().to_string();
    assert!(e.contains("not in the cache"), "{e}");
    assert_eq!(site.server.take_requests(), []);
}

#[test]
fn a_changed_object_is_fetched_anew() {
    let site = Site::new();
    let first = site.read(&site.cache()).unwrap();
    site.server.put("/a", site.image.clone());
    site.server.take_requests();
    assert_eq!(site.read(&site.cache()).unwrap(), first);
    let requests = site.server.take_requests();
    assert!(requests.len() > 1, "{requests:?}");
    // The first answer is used.
    assert_eq!(requests[0].header("if-none-match"), Some("\"v1\""));
    assert!(requests[0].sent > 0);
    assert!(
        requests[1..]
            .iter()
            .all(|r| r.header("if-match") == Some("\"v2\""))
    );
    assert_eq!(site.read(&site.cache()).unwrap(), first);
    assert_eq!(site.server.take_requests().len(), 1);
}

#[test]
fn servers_without_tags_or_ranges() {
    let site = Site::new();
    site.server.without_ranges();
    let first = site.read(&site.cache()).unwrap();
    site.server.take_requests();
    assert_eq!(site.read(&site.cache()).unwrap(), first);
    let requests = site.server.take_requests();
    assert_eq!((requests.len(), requests[0].sent), (1, 0), "{requests:?}");

    // Nothing says that it is the same.
    let site = Site::new();
    site.server.without_tags();
    site.read(&site.cache()).unwrap();
    let all = site.server.take_requests().len();
    assert_eq!(site.read(&site.cache()).unwrap(), first);
    assert_eq!(site.server.take_requests().len(), all);
    assert_eq!(site.files(), Vec::<PathBuf>::new());
}

#[test]
fn damage_in_the_cache_is_fetched_anew() {
    let site = Site::new();
    let first = site.read(&site.cache()).unwrap();
    let files = site.files();
    assert!(files.len() > first.len());
    for path in &files {
        let good = fs::read(path).unwrap();
        for damage in [0, 40, good.len() / 2, good.len() - 1] {
            let mut bad = good.clone();
            bad[damage] ^= 0x10;
            fs::write(path, &bad).unwrap();
            let cache = site.cache();
            assert_eq!(
                site.read(&cache).unwrap(),
                first,
                "{}: {damage}",
                path.display()
            );
            assert_eq!(cache.stats().damaged, 1, "{}: {damage}", path.display());
            assert_eq!(
                fs::read(path).unwrap(),
                good,
                "{}: {damage}",
                path.display()
            );
        }
        // A process that was killed by a power failure.
        fs::write(path, &good[..good.len() - 1]).unwrap();
        assert_eq!(site.read(&site.cache()).unwrap(), first);
    }
    // Offline, damage is an error, unless the block is in the end of the image, which opening has fetched.
    let mut errors = 0;
    for path in &files {
        let good = fs::read(path).unwrap();
        let mut bad = good.clone();
        *bad.last_mut().unwrap() ^= 1;
        fs::write(path, &bad).unwrap();
        match site.read(&site.cache().offline(true)) {
            Ok(blocks) => assert_eq!(blocks, first),
            Err(_) => errors += 1,
        }
        fs::write(path, &good).unwrap();
    }
    assert!(errors > files.len() / 2, "{errors}");
}

#[test]
fn faults_of_the_question_are_those_of_the_first_request() {
    let site = Site::new();
    let first = site.read(&site.cache()).unwrap();
    site.server
        .fail([WebFault::Status(503, vec![]), WebFault::Cut(0)]);
    assert_eq!(site.read(&site.cache()).unwrap(), first);
    site.server.fail([WebFault::Status(404, vec![])]);
    let e = site.open(&site.cache()).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::NotFound);
    // A server that does not know the question.
    site.server.fail([WebFault::Whole]);
    assert_eq!(site.read(&site.cache()).unwrap(), first);
}

#[test]
fn images_with_digests_share_their_blocks() {
    let site = Site::new();
    let image = site.dir.path().join("tree.dwarfs");
    must(DWARFSCK, [image.as_os_str(), "--add-digests".as_ref()]);
    let digested = fs::read(&image).unwrap();
    assert!(digested.len() > site.image.len());
    site.server.put("/a", digested.clone());
    let first = site.read(&site.cache()).unwrap();
    site.server.take_requests();
    // The same bytes as another object.
    site.server.put("/a", digested);
    let cache = site.cache();
    assert_eq!(site.read(&cache).unwrap(), first);
    let requests = site.server.take_requests();
    let sent: u64 = requests.iter().map(|r| r.sent).sum();
    assert!(sent < 200_000, "{requests:?}");
    // Only what opening needs.
    assert_eq!(cache.stats().stored, 1);
}

#[test]
fn files_have_a_cache_too() {
    let site = Site::new();
    let path = site.dir.path().join("tree.dwarfs");
    let read = |cache: &DiskCache| {
        let mut options = OpenOptions::default();
        options.disk_cache = Some(cache.clone());
        let image = Image::open(&path, &options).unwrap();
        let blocks = (0..image.container().block_count()).map(BlockNo);
        let blocks: Vec<_> = blocks.map(|n| image.decode_block(n).unwrap()).collect();
        cache.flush();
        blocks
    };
    let first = site.cache();
    let blocks = read(&first);
    assert_eq!(first.stats().stored, blocks.len() as u64);
    let again = site.cache();
    assert_eq!(read(&again), blocks);
    assert_eq!((again.stats().stored, again.stats().misses), (0, 0));
    // A file that was written to is another one.
    fs::write(&path, &site.image).unwrap();
    let other = site.cache();
    assert_eq!(read(&other), blocks);
    assert_eq!(other.stats().stored, blocks.len() as u64);
}

fn same_trees(one: &Path, two: &Path) {
    must("diff", ["-r".as_ref(), one.as_os_str(), two.as_os_str()]);
}

#[test]
fn mounts_keep_blocks_and_work_offline() {
    if !can_mount("mount with a cache") {
        return;
    }
    let site = Site::new();
    let (url, tree) = (site.server.url("/a"), site.dir.path().join("tree"));
    let options = format!("cache_dir={},cache_limit=50m", site.path.display());
    {
        let mount = Mount::background(Path::new(&url), &options);
        same_trees(&tree, mount.point());
        // Another process reads what the first one has stored, while both are mounted.
        let second = Mount::background(Path::new(&url), &options);
        same_trees(&tree, second.point());
        let blocks = || site.files().len() >= 10;
        wait_until("the blocks", blocks);
    }
    site.server.take_requests();
    {
        let mount = Mount::background(Path::new(&url), &options);
        same_trees(&tree, mount.point());
        assert_eq!(site.server.take_requests().len(), 1);
    }
    {
        let log = site.dir.path().join("log");
        let offline = format!(
            "{options},offline,debuglevel=verbose,log_file={}",
            log.display()
        );
        let mount = Mount::background(Path::new(&url), &offline);
        same_trees(&tree, mount.point());
        assert_eq!(site.server.take_requests(), []);
        drop(mount);
        wait_until("the end of the log", || {
            fs::read_to_string(&log).unwrap().contains("0 damaged")
        });
    }
    // An extraction finds them, too.
    let out = site.dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let cache = format!("--cache-dir={}", site.path.display());
    let input = format!("--input={url}");
    let output = format!("--output={}", out.display());
    must(DWARFSEXTRACT, [&input, &output, &cache, "--offline"]);
    same_trees(&tree, &out);
    assert_eq!(site.server.take_requests(), []);
}

#[test]
fn a_cache_that_cannot_be_used_is_not_in_the_way() {
    let site = Site::new();
    let url = site.server.url("/a");
    let file = site.dir.path().join("file");
    fs::write(&file, "").unwrap();
    let options = format!("cache_dir={}", file.display());
    let refused = dwarfs()
        .args([&url, "/mnt", "-f", "-o", &format!("{options},offline")])
        .output()
        .unwrap();
    assert!(!refused.status.success());
    let text = stderr(&refused);
    assert!(
        text.contains("dwarfs: cannot use the cache: ") && text.contains("file"),
        "{text}"
    );
    let refused = dwarfs()
        .args([&url, "/mnt", "-f", "-o", "offline"])
        .output()
        .unwrap();
    let text = stderr(&refused);
    assert!(text.contains("dwarfs: offline needs cache_dir\n"), "{text}");

    if can_mount("mount with a cache") {
        let mount = Mount::background(Path::new(&url), &options);
        same_trees(&site.dir.path().join("tree"), mount.point());
    }
    // A disk without room.
    let small = site.dir.path().join("small");
    fs::create_dir(&small).unwrap();
    let room = [
        "-t",
        "tmpfs",
        "-o",
        "size=300k,mode=700",
        "none",
        small.to_str().unwrap(),
    ];
    if run("mount", room).status.success() {
        let out = site.dir.path().join("out");
        fs::create_dir(&out).unwrap();
        let cache = format!("--cache-dir={}", small.display());
        let input = format!("--input={url}");
        let output = format!("--output={}", out.display());
        let done = run(DWARFSEXTRACT, [&input, &output, &cache]);
        must("umount", [small.as_os_str()]);
        let text = stderr(&done);
        assert!(done.status.success(), "{text}");
        assert_eq!(
            text.matches("cannot write to the cache").count(),
            1,
            "{text}"
        );
        same_trees(&site.dir.path().join("tree"), &out);
    }
}

#[test]
fn a_killed_mount_leaves_a_cache_that_works() {
    if !can_mount("mount with a cache") {
        return;
    }
    let site = Site::new();
    let (url, tree) = (site.server.url("/a"), site.dir.path().join("tree"));
    let options = format!("cache_dir={}", site.path.display());
    for _ in 0..3 {
        let mount = Mount::background(Path::new(&url), &options);
        let process = driver::driver_of(mount.point());
        let reader = std::process::Command::new("cat")
            .arg(mount.point().join("large"))
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn();
        wait_until("a block", || !site.files().is_empty());
        driver::kill(process, rustix::process::Signal::KILL);
        reader.unwrap().wait().unwrap();
    }
    let mount = Mount::background(Path::new(&url), &options);
    same_trees(&tree, mount.point());
}

/// An image that states the digest of another one's block does not bring its own bytes into that image.
#[test]
fn digests_that_are_wrong_are_no_keys() {
    let site = Site::new();
    let image = site.dir.path().join("tree.dwarfs");
    must(DWARFSCK, [image.as_os_str(), "--add-digests".as_ref()]);
    let good = fs::read(&image).unwrap();
    let mut forged = good.clone();
    // In the payload of the first block, which is stored as it is.
    forged[200] ^= 1;
    redwarfs_testkit::mutate::reseal(&mut forged);
    site.server.put("/a", forged);
    let bad = site.read(&site.cache()).unwrap();
    site.server.put("/a", good);
    let mut found = site.read(&site.cache()).unwrap();
    assert_ne!(found, bad);
    fs::remove_dir_all(&site.path).unwrap();
    found.extend(site.read(&site.cache()).unwrap());
    let (one, two) = found.split_at(bad.len());
    assert!(one == two);
}

#[test]
fn sequential_reads_fetch_neighbouring_blocks_together() {
    let site = Site::new();
    let tree = site.dir.path().join("long");
    fs::create_dir(&tree).unwrap();
    let bytes = noise(8 << 20, 7);
    fs::write(tree.join("file"), &bytes).unwrap();
    let path = site.dir.path().join("long.dwarfs");
    build(&tree, &path, &["-S14", "--no-progress"]);
    site.server.put("/long", fs::read(path).unwrap());
    site.server.delay(Duration::from_millis(20));
    let source = RemoteSource::open(&site.server.url("/long"), Limits::default()).unwrap();
    let image = Image::from_source(Arc::new(source), &OpenOptions::default()).unwrap();
    let inode = image.find_path(b"file").unwrap().unwrap();
    let mut piece = vec![0; 128 << 10];
    for at in (0..bytes.len()).step_by(piece.len()) {
        let read = image.read_at(inode, at as u64, &mut piece).unwrap();
        assert!(read == piece.len() && piece == bytes[at..at + read], "{at}");
    }
    let requests = site.server.take_requests();
    // Of 512 blocks: the first 64 come eight at a time, the others in long requests.
    assert!(requests.len() < 64, "{}", requests.len());
    let sent: u64 = requests.iter().map(|r| r.sent).sum();
    assert!(sent < (9 << 20), "{sent}");
    assert!(site.server.most_at_once() > 1);
}

#[test]
fn files_are_prefetched() {
    if !can_mount("prefetch") {
        return;
    }
    let site = Site::new();
    let (url, tree) = (site.server.url("/a"), site.dir.path().join("tree"));
    let log = site.dir.path().join("log");
    let options = format!(
        "cache_dir={},debuglevel=verbose,log_file={}",
        site.path.display(),
        log.display()
    );
    let fetched = || fs::read_to_string(&log).is_ok_and(|text| text.contains("prefetched "));
    {
        let patterns = format!("{options},prefetch=sub,prefetch=none/*");
        let _mount = Mount::background(Path::new(&url), &patterns);
        wait_until("the blocks", fetched);
    }
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("no file matches: none/*"), "{text}");
    assert!(text.contains(", 0 failed"), "{text}");
    let count = |text: &str| -> usize {
        let (_, rest) = text.split_once("prefetched ").unwrap();
        rest.split(' ').next().unwrap().parse().unwrap()
    };
    let some = count(&text);
    assert!(some >= 1, "{text}");
    // What was fetched needs no server.
    wait_until("the files", || site.files().len() > some);
    site.server.take_requests();
    {
        let mount = Mount::background(Path::new(&url), &format!("{options},offline"));
        same_trees(&tree.join("sub"), &mount.point().join("sub"));
        assert!(fs::read(mount.point().join("large")).is_err());
        assert_eq!(site.server.take_requests(), []);
    }
    // Everything, with the long option, and only in memory.
    fs::remove_file(&log).unwrap();
    let mount = Mount::on(Mount::new_dir());
    let memory = format!("debuglevel=verbose,log_file={}", log.display());
    let out = dwarfs()
        .args(["--prefetch=**", "-o", &memory, &url])
        .arg(mount.point())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
    wait_until("the blocks", fetched);
    let all = count(&fs::read_to_string(&log).unwrap());
    assert!(all > some);
    // Neighbouring blocks are one request.
    let asked = site.server.take_requests().len();
    assert!(asked < all / 2, "{asked} requests for {all} blocks");
    same_trees(&tree, mount.point());
    assert_eq!(site.server.take_requests(), []);
}

#[test]
fn a_signal_logs_the_use_of_the_cache() {
    if !can_mount("the use of a cache") {
        return;
    }
    let site = Site::new();
    let log = site.dir.path().join("log");
    let url = site.server.url("/a");
    let report = |options: &str| {
        let _ = fs::remove_file(&log);
        let options = format!("log_file={},debuglevel=error{options}", log.display());
        let mount = Mount::background(Path::new(&url), &options);
        fs::read(mount.point().join("large")).unwrap();
        let said = || {
            driver::kill(
                driver::driver_of(mount.point()),
                rustix::process::Signal::USR1,
            );
            std::thread::sleep(Duration::from_millis(50));
            let text = fs::read_to_string(&log).unwrap_or_default();
            let last = text.lines().rfind(|line| line.contains(" cache /"));
            (last.map(str::to_owned), text.contains("miss rate"))
        };
        let mut last = None;
        wait_until("the statistics", || {
            let (line, reported) = said();
            last = line;
            // Blocks are written in the background.
            reported && last.as_ref().is_none_or(|line| !line.contains(" 0 stored"))
        });
        last
    };
    assert_eq!(report(""), None);
    let cache = format!(",cache_dir={},cache_limit=2g", site.path.display());
    let line = report(&cache).unwrap();
    let start = format!(" cache {}: ", site.path.display());
    assert!(line.starts_with("I ") && line.contains(&start), "{line}");
    assert!(line.contains(" of 2 GiB used; 0 found, "), "{line}");

    // The second mount finds what the first one has stored.
    let mount = Mount::background(
        Path::new(&url),
        &format!("log_file={}{cache}", log.display()),
    );
    fs::read(mount.point().join("large")).unwrap();
    driver::kill(
        driver::driver_of(mount.point()),
        rustix::process::Signal::USR1,
    );
    let found = || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let line = text.lines().rfind(|line| line.contains(&start));
        line.map(str::to_owned)
    };
    wait_until("the line", || {
        found().is_some_and(|line| !line.contains(" 0 found,"))
    });
}

#[test]
fn the_use_of_a_cache_is_that_of_its_files() {
    let site = Site::new();
    let cache = site.cache();
    assert_eq!(cache.usage(), (0, 0));
    site.read(&cache).unwrap();
    let lengths = site
        .files()
        .into_iter()
        .map(|file| fs::metadata(file).unwrap().len());
    let lengths: Vec<u64> = lengths.collect();
    assert_eq!(cache.usage(), (lengths.len() as u64, lengths.iter().sum()));
    assert_eq!((lengths.is_empty(), cache.limit()), (false, 1 << 30));
    // A file that another process is writing stays, and does not count.
    let writing = site.files()[0].with_file_name(".new-1-1");
    fs::write(&writing, "half").unwrap();
    assert_eq!(cache.usage().0, lengths.len() as u64);
    assert!(writing.exists());
}
