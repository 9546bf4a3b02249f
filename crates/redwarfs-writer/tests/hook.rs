//! A hook leaves entries out, gives files categories and puts them into order.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use crate::common::{blocks, build, compare, open};
use redwarfs_format::BlockNo;
use redwarfs_reader::Image;
use redwarfs_testkit::layout::placed_files;
use redwarfs_testkit::media::{Samples, wav};
use redwarfs_testkit::tree::Random;
use redwarfs_writer::{
    BuildOptions, Builder, Categorizer, Category, CategoryOptions, Decision, EntryHook, Error,
    FileType, HookEntry, Incompressible, MemoryNode, MemoryTree, Order, OrderKey, Result,
    SilentProgress,
};

type Say = Box<dyn Fn(&HookEntry<'_>) -> Result<Decision> + Send + Sync>;

/// Says what a closure says, and remembers what it was asked about.
struct Hook {
    asked: Mutex<Vec<String>>,
    say: Say,
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

impl EntryHook for Hook {
    fn entry(&self, entry: &HookEntry<'_>) -> Result<Decision> {
        let path = String::from_utf8(entry.path.to_vec()).unwrap();
        self.asked.lock().unwrap().push(path);
        (self.say)(entry)
    }
}

fn hook(say: impl Fn(&HookEntry<'_>) -> Result<Decision> + Send + Sync + 'static) -> Arc<Hook> {
    Arc::new(Hook {
        asked: Mutex::default(),
        say: Box::new(say),
    })
}

fn options(hook: &Arc<Hook>) -> BuildOptions {
    let mut options = BuildOptions::level(3);
    options.block_size_bits = 16;
    options.workers = 2;
    options.hook = Some(Arc::clone(hook) as Arc<dyn EntryHook>);
    options
}

fn keep(keep: bool) -> Decision {
    Decision {
        keep,
        ..Decision::default()
    }
}

fn category(name: &str) -> Decision {
    Decision {
        category: Some(Category::named(name).unwrap()),
        ..Decision::default()
    }
}

fn key(key: OrderKey) -> Decision {
    Decision {
        key: Some(key),
        ..Decision::default()
    }
}

/// Files with different contents of this size; names that end in `/` are directories.
fn tree(paths: &[&str], size: usize) -> MemoryTree {
    let mut random = Random::new(1);
    let mut tree = MemoryTree::new();
    for path in paths {
        match path.strip_suffix('/') {
            Some(path) => tree.insert(path, MemoryNode::new(FileType::Directory)),
            None => tree.insert(*path, MemoryNode::file(random.text(size))),
        }
    }
    tree
}

fn paths(image: &Image) -> Vec<String> {
    let all = image.walk().map(|entry| entry.unwrap().path.clone());
    let all = all.map(|path| String::from_utf8(path).unwrap());
    all.filter(|path| !path.is_empty()).collect()
}

/// Paths of files by where their data begins.
fn sequence(image: &Image) -> Vec<String> {
    let files = placed_files(image).into_iter();
    files.map(|file| file.path).collect()
}

#[test]
fn every_entry_is_asked_about_once_in_a_fixed_order() {
    let mut tree = tree(&["b/", "b/z/", "b/z/1", "b/a", "b/c", "a/", "a/x", "c"], 10);
    tree.insert("fifo", MemoryNode::new(FileType::Fifo));
    tree.insert("link", MemoryNode::symlink("c"));
    let ask = |workers| {
        let hook = hook(|entry| Ok(keep(entry.path != b"b/z")));
        let mut options = options(&hook);
        options.workers = workers;
        let (bytes, summary) = build(&options, &tree);
        assert_eq!(summary.errors, 0);
        (bytes, hook.asked.lock().unwrap().clone())
    };
    let (bytes, asked) = ask(1);
    // The FIFO is not stored, and what is below `b/z` is out of reach.
    let want = ["a", "b", "c", "link", "a/x", "b/a", "b/c", "b/z"];
    assert_eq!(asked, want);
    let image = open(bytes.clone());
    assert_eq!(paths(&image), ["a", "a/x", "b", "b/a", "b/c", "c", "link"]);
    assert_eq!(ask(4), (bytes, asked));
}

#[test]
fn what_is_left_out_leaves_no_trace() {
    let names = ["a/", "a/gone", "b/", "b/stays", "c/", "gone"];
    let hook = hook(|entry| Ok(keep(!entry.path.ends_with(b"gone"))));
    let full = tree(&names, 5000);
    let mut rest = MemoryTree::new();
    for (path, node) in full.iter() {
        if path.starts_with(b"b") {
            rest.insert(path, node.clone());
        }
    }
    let mut options = options(&hook);
    options.remove_empty_dirs = true;
    let (bytes, summary) = build(&options, &full);
    assert_eq!((summary.errors, summary.original_size), (0, 5000));
    compare(&open(bytes.clone()), &rest, &options);
    // The same image as without the entries.
    options.hook = None;
    assert_eq!(build(&options, &rest).0, bytes);
}

#[test]
fn names_of_hard_links_are_decided_one_by_one() {
    let mut tree = tree(&["d/"], 0);
    let mut node = MemoryNode::file(Random::new(4).text(3000));
    node.meta.nlink = 3;
    node.meta.identity = (1, 9);
    for path in ["a", "b", "d/c"] {
        tree.insert(path, node.clone());
    }
    let hook = hook(|entry| {
        Ok(match entry.path {
            b"a" => keep(false),
            b"d/c" => category("late"),
            b"b" => category("early"),
            _ => Decision::default(),
        })
    });
    let (bytes, _) = build(&options(&hook), &tree);
    let image = open(bytes);
    assert_eq!(paths(&image), ["b", "d", "d/c"]);
    let inode = image.find_path(b"b").unwrap().unwrap();
    assert_eq!(image.find_path(b"d/c").unwrap(), Some(inode));
    assert_eq!(image.stat(inode).unwrap().nlink, 2);
    let found = blocks(&image);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, "early");
}

#[test]
fn categories_have_streams_and_settings_of_their_own() {
    let mut tree = tree(&["a.txt", "b.vid", "c.txt", "d.vid", "e.log"], 3000);
    let audio = wav(&Samples::CD, &Samples::CD.walk(2000, 1));
    for path in ["f.wav", "g-plain.wav"] {
        // Not equal, or else they would be one content.
        let mut data = audio.clone();
        data.extend_from_slice(path.as_bytes());
        tree.insert(path, MemoryNode::file(data));
    }
    tree.insert("copy", tree.get(b"b.vid").unwrap().clone());
    tree.insert("empty.vid", MemoryNode::file([]));
    let hook = hook(|entry| {
        Ok(match entry.path {
            path if path.ends_with(b".vid") => category("video"),
            path if path.ends_with(b".log") => category("incompressible"),
            path if path.starts_with(b"g") => category("<default>"),
            _ => Decision::default(),
        })
    });
    let mut options = options(&hook);
    options.categorizers = vec![
        Categorizer::PcmAudio,
        Categorizer::Incompressible(Incompressible::default()),
    ];
    let mut own = CategoryOptions::default();
    own.compression = Some("lzma:level=1".parse().unwrap());
    own.order = Some(Order::RevPath);
    options
        .categories
        .insert(Category::named("video").unwrap(), own);
    let (bytes, summary) = build(&options, &tree);
    assert_eq!(summary.errors, 0);
    let image = open(bytes);
    compare(&image, &tree, &options);
    let found: Vec<(String, String)> = blocks(&image)
        .into_iter()
        .map(|(name, codec)| (name, codec.to_string()))
        .collect();
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    // By name.
    let want = [
        "<default>",
        "incompressible",
        "pcmaudio/metadata",
        "pcmaudio/waveform",
        "video",
    ];
    assert_eq!(names, want);
    assert_eq!(found[4].1, "LZMA");
    let size = |block: u32| image.decode_block(BlockNo(block)).unwrap().len();
    assert_eq!((size(1), size(4)), (3000, 6000));
    // Without categorizers the script alone makes categories.
    options.categorizers.clear();
    let image = open(build(&options, &tree).0);
    compare(&image, &tree, &options);
    let names: Vec<String> = blocks(&image).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["<default>", "incompressible", "video"]);
    // And none if it makes none: the image is that of a build without a hook.
    let silent = self::hook(|_| Ok(Decision::default()));
    options.hook = Some(silent);
    let with = build(&options, &tree).0;
    options.hook = None;
    assert!(with == build(&options, &tree).0);
}

#[test]
fn keys_put_files_into_order() {
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let mut tree = tree(&names, 3000);
    tree.insert("z-copy-of-e", tree.get(b"e").unwrap().clone());
    let hook = hook(|entry| {
        Ok(match entry.path {
            b"g" => key(OrderKey::float(-2.5).unwrap()),
            b"f" | b"c" => key(OrderKey::integer(7)),
            b"d" => key(OrderKey::bytes(b"x")),
            // The smaller one of a content counts.
            b"e" => key(OrderKey::bytes(b"y")),
            b"z-copy-of-e" => key(OrderKey::integer(6)),
            _ => Decision::default(),
        })
    });
    let mut options = options(&hook);
    for rest in [
        Order::RevPath,
        Order::Path,
        Order::Similarity,
        Order::Nilsimsa(Default::default()),
    ] {
        let without = |order: Order| {
            let mut plain = BuildOptions::level(3);
            plain.block_size_bits = 16;
            plain.order = order;
            let found = sequence(&open(build(&plain, &tree).0));
            let free = found.into_iter().filter(|path| path == "a" || path == "b");
            free.collect::<Vec<_>>()
        };
        let keyed = ["g", "e", "z-copy-of-e", "c", "f", "d"];
        let mut want: Vec<String> = keyed.map(Into::into).into();
        want.extend(without(rest.clone()));
        for workers in [1, 4] {
            options.workers = workers;
            options.order = Order::Script(Box::new(rest.clone()));
            let image = open(build(&options, &tree).0);
            compare(&image, &tree, &options);
            assert_eq!(sequence(&image), want, "{rest:?}");
        }
    }
    // Without such an order keys have no effect.
    options.order = Order::Path;
    let with = build(&options, &tree).0;
    options.hook = None;
    assert!(with == build(&options, &tree).0);
    options.order = Order::Script(Box::default());
    assert!(matches!(options.check(), Err(Error::InvalidOption(_))));
}

#[test]
fn errors_end_the_build() {
    let tree = tree(&["a", "b"], 10);
    let fail = |say: Say| {
        let hook = Arc::new(Hook {
            asked: Mutex::default(),
            say,
        });
        let mut out = Vec::new();
        let builder = Builder::new(options(&hook));
        let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
        let made = builder.build(&tree, &mut out, &progress, &stop);
        assert!(out.is_empty());
        made.unwrap_err().to_string()
    };
    let say: Say = Box::new(|entry| match entry.path {
        b"b" => Err(Error::Hook("b is wrong".to_owned())),
        _ => Ok(Decision::default()),
    });
    assert_eq!(fail(say), "b is wrong");
    for name in ["pcmaudio/waveform", "fits/image"] {
        let text = fail(Box::new(move |_| Ok(category(name))));
        assert!(
            text.starts_with(&format!("category '{name}' cannot be")),
            "{text}"
        );
    }
}
