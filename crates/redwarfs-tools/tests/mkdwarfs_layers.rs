//! Archives as input of `mkdwarfs`: several of them, layers with whiteouts, attributes, and packages.

use std::fs;

use crate::archives::{has, image, place, run, shell};
use crate::builder::TestDir;
use redwarfs_testkit::skip;

#[test]
fn several_archives_make_one_tree() {
    let place = place();
    assert!(shell(
        &place,
        "mkdir -p one/d two/d all/x/y && echo 1 >one/d/same && echo 1 >one/first"
    ));
    assert!(shell(
        &place,
        "echo 22 >two/d/same && echo 2 >two/second && chmod 700 two/d"
    ));
    assert!(shell(
        &place,
        "find one two -exec touch -h -d @1700000000 {} +"
    ));
    assert!(shell(
        &place,
        "tar -C one -cf one.tar . && tar -C two -czf two.tar.gz ."
    ));
    // On top of each other: the later one counts.
    assert!(shell(
        &place,
        "mkdir merged && tar -xf one.tar -C merged && tar -xf two.tar.gz -C merged"
    ));
    let want = image(&place, &["-i", "merged"]);
    assert!(image(&place, &["-i", "one.tar", "-i", "two.tar.gz"]) == want);
    // Each under a name.
    assert!(shell(&place, "cp -a one all/x/y/one && cp -a two all/two"));
    assert!(shell(&place, "touch -d @1700000000 all all/x all/x/y"));
    let want = image(&place, &["-i", "all"]);
    assert!(image(&place, &["-i", "x/y/one=one.tar", "-i", "two=two.tar.gz"]) == want);
    // A file with such a name counts as a file.
    fs::copy(place.path("one.tar"), place.path("a=b")).unwrap();
    let want = image(&place, &["-i", "one"]);
    assert!(image(&place, &["-i", "a=b"]) == want);
}

#[test]
fn layers_with_whiteouts() {
    let place = TestDir::new(&[]);
    // What the layers show together, as an overlay of directories would: files that layers remove,
    // directories that they empty, and entries that take the place of others.
    let lower = "mkdir -p l1/keep l1/opaque/deep l1/gone/deep l1/swap && cd l1 && \
                 for f in keep/a opaque/b opaque/deep/c gone/d gone/deep/e swap/f top plain; do echo $f >$f; done";
    let upper = "mkdir -p l2/keep l2/opaque l2/gone l2/.wh..wh.plnk && cd l2 && \
                 echo new >opaque/new && touch opaque/.wh..wh..opq .wh.top keep/.wh.a .wh.swap .wh.none && \
                 echo again >gone/again && touch .wh.gone && echo x >.wh..wh.aufs && echo s >swap";
    let top = "mkdir -p l3/keep && cd l3 && echo back >top && echo a >keep/a && touch opaque.wh.x";
    let want = "mkdir -p want/keep want/opaque want/gone && cd want && \
                echo plain >plain && echo new >opaque/new && echo again >gone/again && echo s >swap && \
                echo back >top && echo a >keep/a && touch opaque.wh.x";
    for command in [lower, upper, top, want] {
        assert!(shell(&place, command), "{command}");
    }
    assert!(shell(
        &place,
        "find l1 l2 l3 want -exec touch -h -d @1700000000 {} +"
    ));
    assert!(shell(
        &place,
        "for l in l1 l2 l3; do tar -C $l -cf $l.tar .; done"
    ));
    let want = image(&place, &["-i", "want"]);
    let layers = ["-i", "l1.tar", "-i", "l2.tar", "-i", "l3.tar"];
    let apply = [&layers[..], &["--whiteouts=apply"]].concat();
    assert!(image(&place, &apply) == want);
    // In any order within a layer.
    let reverse = "cd l2 && find . -mindepth 1 | sort -r | tar --no-recursion -T - -cf ../l2.tar";
    assert!(shell(&place, reverse));
    assert!(image(&place, &apply) == want);
    // By default they are files like others.
    let kept = image(&place, &["-i", "l2.tar"]);
    assert!(image(&place, &["-i", "l2"]) == kept);
    // What overlayfs takes for whiteouts.
    let done = run(&place, &["-i", "l2.tar", "--whiteouts=overlay"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let built = place.built();
    let whiteout = built.stat("top");
    assert_eq!((whiteout.mode & 0o170_000, whiteout.rdev), (0o020_000, 0));
    assert_eq!(built.stat("keep/a").mode & 0o170_000, 0o020_000);
    assert!(!built.paths().iter().any(|path| path.contains(".wh.")));
    let inode = built.0.find_path(b"opaque").unwrap().unwrap();
    let value = built.0.xattr(inode, b"trusted.overlay.opaque").unwrap();
    assert_eq!(value.as_deref(), Some(&b"y"[..]));
}

#[test]
fn applied_layers_are_what_overlayfs_shows() {
    let place = TestDir::new(&[]);
    // A container engine makes a layer of the upper directory of an overlay in this way.
    let prepare = "set -e; mkdir l1 upper work merged l2 && mkdir -p l1/a/b l1/c/d l1/e l1/keep && \
        for f in a/1 a/b/2 c/3 c/d/4 e/5 keep/6 top; do echo $f >l1/$f; done; \
        ln -s keep l1/link; find l1 -exec touch -h -d @1700000000 {} +; \
        mount -t tmpfs none work; mkdir work/u work/w; \
        mount -t overlay -o lowerdir=l1,upperdir=work/u,workdir=work/w none merged";
    if !rustix::process::geteuid().is_root() || !has("getfattr") || !shell(&place, prepare) {
        skip(
            "layers as overlayfs shows them",
            "not root, or no overlayfs",
        );
        shell(&place, "umount merged; umount work");
        return;
    }
    let change = "set -e; cd merged; rm -r a top; mkdir a; echo new >a/new; rm c/3; rm -r c/d; \
        echo file >c/d; rm -r e; ln -s keep e; rm link; mkdir link; echo x >link/x; echo more >>keep/6; \
        chmod 700 keep; cd ..; find merged -exec touch -h -d @1700000000 {} +; \
        cp -a merged want; cp -a work/u/. l2; \
        cd work/u; find . -type c | while read -r f; do \
          rm ../../l2/$f; echo >\"../../l2/$(dirname $f)/.wh.$(basename $f)\"; done; \
        find . -type d | while read -r d; do \
          if getfattr -n trusted.overlay.opaque $d >/dev/null 2>&1; then \
            echo >../../l2/$d/.wh..wh..opq; fi; done; \
        cd ../../l2; find . -exec setfattr -h -x trusted.overlay.opaque {} \\; 2>/dev/null || true; \
        find . -exec touch -h -d @1700000000 {} +";
    let changed = shell(&place, change);
    assert!(shell(&place, "umount merged; umount work"));
    assert!(changed);
    assert!(shell(
        &place,
        "for l in l1 l2; do tar --format=pax -C $l -cf $l.tar .; done"
    ));
    let same = ["--xattrs=none"];
    let want = image(&place, &[&["-i", "want"], &same[..]].concat());
    let layers = ["-i", "l1.tar", "-i", "l2.tar", "--whiteouts=apply"];
    let found = image(&place, &[&layers[..], &same[..]].concat());
    let paths = place.built().paths();
    assert!(found == want, "{paths:?}");
    assert!(paths.contains(&"a/new".to_owned()) && !paths.contains(&"a/1".to_owned()));
}

#[test]
fn attributes_come_with_pax_archives() {
    let place = place();
    let set = "setfattr -n user.a -v b in/docs/a.txt && setfattr -n user.dir -v 0x00ff in/docs && \
               setfacl -m u:12345:rw,g:54321:r in/z.bin && setfacl -d -m u:12345:rwx in/empty && \
               setfattr -n trusted.t -v t in/sym -h && \
               find in -exec touch -h -d @1700000000 {} +";
    if !has("setfacl") || !has("bsdtar") || !shell(&place, set) {
        skip("attributes of archives", "no attributes, or no bsdtar");
        return;
    }
    let want = image(&place, &["-i", "in"]);
    assert!(want != image(&place, &["-i", "in", "--xattrs=none"]));
    for command in [
        "tar --format=pax --xattrs --xattrs-include='*' --acls -C in -cf a.tar .",
        "bsdtar --format=pax --xattrs --acls -C in -cf a.tar .",
    ] {
        assert!(shell(&place, command));
        assert!(image(&place, &["-i", "a.tar"]) == want, "{command}");
        let user = image(&place, &["-i", "a.tar", "--xattrs=user"]);
        assert!(
            user == image(&place, &["-i", "in", "--xattrs=user"]),
            "{command}"
        );
    }
}

#[test]
fn packages_are_what_they_install() {
    let place = TestDir::new(&["usr/share/doc/x", "usr/bin/prog"]);
    assert!(shell(&place, "find in -exec touch -d @1700000000 {} +"));
    let want = image(&place, &["-i", "in"]);
    let control = "mkdir p && cp -a in/usr p && mkdir p/DEBIAN && \
                   printf 'Package: x\\nVersion: 1\\nArchitecture: all\\nMaintainer: x\\nDescription: x\\n' >p/DEBIAN/control && \
                   touch -d @1700000000 p";
    let mut packages = 0;
    if has("dpkg-deb") {
        assert!(shell(&place, control));
        for compression in ["gzip", "xz", "zstd", "none"] {
            let build = format!("dpkg-deb -Z{compression} -b p x.deb");
            if !shell(&place, &build) {
                continue;
            }
            assert!(image(&place, &["-i", "x.deb"]) == want, "{compression}");
            packages += 1;
        }
        // As an archive, it has three members.
        image(&place, &["-i", "x.deb", "--input-format=ar"]);
        let members = place.built().paths();
        assert_eq!((members.len(), members[2].as_str()), (3, "debian-binary"));
    }
    if has("ar") {
        let long = "a_name_that_is_longer_than_the_header";
        assert!(shell(
            &place,
            &format!("cp in/usr/bin/prog {long} && ar rcU x.a {long} in/usr/bin/prog")
        ));
        image(&place, &["-i", "x.a"]);
        assert_eq!(place.built().paths(), [long, "prog"]);
        assert_eq!(place.built().read("prog"), b"usr/bin/prog");
        packages += 1;
    }
    if has("bsdtar") {
        // A package of RPM is a cpio archive behind two headers.
        assert!(shell(
            &place,
            "bsdtar --format=newc -C in -cf - . | gzip >payload"
        ));
        let header = |end: &[u8]| {
            [
                b"\x8e\xad\xe8\x01\0\0\0\0\0\0\0\x01\0\0\0\x04" as &[u8],
                &[0; 16],
                b"data",
                end,
            ]
            .concat()
        };
        let lead = [b"\xed\xab\xee\xdb" as &[u8], &[0; 92]].concat();
        let payload = fs::read(place.path("payload")).unwrap();
        let rpm = [lead, header(&[0; 4]), header(b""), payload].concat();
        place.file("x.rpm", rpm);
        assert!(image(&place, &["-i", "x.rpm"]) == want);
        packages += 1;
    }
    if packages == 0 {
        skip("packages", "no dpkg-deb, ar and bsdtar");
    }
}
