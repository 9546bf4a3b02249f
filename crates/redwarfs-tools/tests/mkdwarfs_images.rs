//! Container images as input of `mkdwarfs`, in the forms that Docker and OCI programs write.

use std::fs;

use crate::archives::{has, image, piped, run, shell};
use crate::builder::TestDir;
use redwarfs_testkit::skip;

/// Layers `l1.tar` and `l2.tar.gz`, their digests in `d1` and so on, and what they show in `want`.
fn layers() -> Option<TestDir> {
    let place = TestDir::new(&[]);
    if !["sha256sum", "gzip", "tar"].iter().all(|name| has(name)) {
        skip("container images", "there is no sha256sum, gzip or tar");
        return None;
    }
    let make = "set -e; mkdir -p l1/etc l1/opaque l2/opaque want/etc want/opaque; \
        echo one >l1/etc/one; echo old >l1/opaque/old; echo gone >l1/gone; head -c 70000 /dev/zero >l1/big; \
        echo new >l2/opaque/new; touch l2/.wh.gone l2/opaque/.wh..wh..opq; \
        echo one >want/etc/one; echo new >want/opaque/new; head -c 70000 /dev/zero >want/big; \
        find l1 l2 want -exec touch -h -d @1700000000 {} +; \
        for l in l1 l2; do tar -C $l -cf $l.tar .; done; gzip -nk l2.tar; \
        for f in l1.tar l2.tar l2.tar.gz; do sha256sum <$f | cut -d' ' -f1 >$f.sum; done";
    assert!(shell(&place, make));
    Some(place)
}

/// An OCI layout `oci.tar`; the index has the given descriptors besides.
fn oci(place: &TestDir, more: &str) {
    let sum = |name: &str| {
        fs::read_to_string(place.path(name))
            .unwrap()
            .trim()
            .to_owned()
    };
    let size = |name: &str| fs::metadata(place.path(name)).unwrap().len();
    let layer = |name: &str| {
        let (sum, size) = (sum(&format!("{name}.sum")), size(name));
        format!("{{\"mediaType\":\"x\",\"digest\":\"sha256:{sum}\",\"size\":{size}}}")
    };
    let manifest = format!(
        "{{\"schemaVersion\":2,\"config\":{{}},\"layers\":[{},{}]}}",
        layer("l1.tar"),
        layer("l2.tar.gz")
    );
    fs::write(place.path("manifest"), &manifest).unwrap();
    assert!(shell(
        place,
        "sha256sum <manifest | cut -d' ' -f1 >manifest.sum"
    ));
    let descriptor = |name: &str, platform: &str| {
        let (sum, size) = (sum(&format!("{name}.sum")), size(name));
        format!("{{\"digest\":\"sha256:{sum}\",\"size\":{size},\"platform\":{platform}}}")
    };
    let linux = descriptor("manifest", "{\"os\":\"linux\",\"architecture\":\"amd64\"}");
    let about = descriptor(
        "manifest",
        "{\"os\":\"unknown\",\"architecture\":\"unknown\"}",
    );
    // An index in the index, with a statement about the image.
    let inner = format!("{{\"manifests\":[{linux},{about}]}}");
    fs::write(place.path("inner"), &inner).unwrap();
    assert!(shell(place, "sha256sum <inner | cut -d' ' -f1 >inner.sum"));
    let outer = descriptor("inner", "{\"os\":\"linux\",\"architecture\":\"amd64\"}");
    fs::write(
        place.path("index"),
        format!("{{\"manifests\":[{outer}{more}]}}"),
    )
    .unwrap();
    let pack = "set -e; rm -rf oci; mkdir -p oci/blobs/sha256; echo '{}' >oci/oci-layout; cp index oci/index.json; \
        for f in l1.tar l2.tar.gz manifest inner; do cp $f oci/blobs/sha256/$(cat $f.sum); done; \
        tar -C oci -cf oci.tar .";
    assert!(shell(place, pack));
}

#[test]
fn an_oci_layout_is_what_its_layers_show() {
    let Some(place) = layers() else { return };
    oci(&place, "");
    let want = image(&place, &["-i", "want"]);
    let format = "--input-format=oci";
    assert!(image(&place, &["-i", "oci.tar", format]) == want);
    // Compressed, and through a pipe, it waits in a temporary file.
    assert!(shell(&place, "gzip -k oci.tar"));
    assert!(image(&place, &["-i", "oci.tar.gz", format]) == want);
    let done = piped(&place, "oci.tar", &["-i", "-", format]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(fs::read(place.path("out")).unwrap() == want);
    // Under a name, and as whiteouts of overlayfs.
    assert!(shell(
        &place,
        "mkdir all && cp -a want all/root && touch -d @1700000000 all"
    ));
    let named = image(&place, &["-i", "all"]);
    assert!(image(&place, &["-i", "root=oci.tar", format]) == named);
    let done = run(&place, &["-i", "oci.tar", format, "--whiteouts=overlay"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(place.built().stat("gone").mode & 0o170_000, 0o020_000);

    // Without the option, the blobs are files, and a line says what there is instead.
    let done = run(&place, &["-i", "oci.tar"]);
    assert_eq!(done.code, Some(0));
    assert!(
        done.stderr
            .contains("oci.tar: a container image; --input-format=oci"),
        "{}",
        done.stderr
    );
    let done = run(&place, &["-i", "l1.tar", format]);
    assert_eq!(done.code, Some(1));
    let line = "no container image: there is neither manifest.json nor index.json in it";
    assert!(done.stderr.contains(line), "{}", done.stderr);
}

#[test]
fn several_images_and_damage_are_refused() {
    let Some(place) = layers() else { return };
    let other =
        ",{\"digest\":\"sha256:0\",\"platform\":{\"os\":\"linux\",\"architecture\":\"arm64\"}}";
    oci(&place, other);
    let said = |what: &str| {
        let done = run(&place, &["-i", "oci.tar", "--input-format=oci"]);
        assert_eq!(done.code, Some(1), "{}", done.stderr);
        assert!(done.stderr.contains(what), "{}", done.stderr);
        assert!(!place.path("out").exists());
    };
    said("it holds 2 container images (linux/amd64, linux/arm64); save one of them");
    // A blob with another byte, one that is missing, and a manifest that is no JSON.
    oci(&place, "");
    let sum = fs::read_to_string(place.path("l1.tar.sum")).unwrap();
    let blob = format!("oci/blobs/sha256/{}", sum.trim());
    let change = format!(
        "printf x | dd of={blob} bs=1 seek=600 conv=notrunc status=none; tar -C oci -cf oci.tar ."
    );
    assert!(shell(&place, &change));
    said("has another digest than the manifest says");
    assert!(shell(
        &place,
        &format!("rm {blob}; tar -C oci -cf oci.tar .")
    ));
    said("is not in the archive");
    assert!(shell(
        &place,
        "echo x >oci/index.json; tar -C oci -cf oci.tar ."
    ));
    said("the container image is broken: 'index.json': ");
    assert!(shell(
        &place,
        "echo '{\"manifests\":[]}' >oci/index.json; tar -C oci -cf oci.tar ."
    ));
    said("it holds no container image");
}

#[test]
fn docker_save_is_what_its_layers_show() {
    let Some(place) = layers() else { return };
    let want = image(&place, &["-i", "want"]);
    let sum = |name: &str| {
        fs::read_to_string(place.path(name))
            .unwrap()
            .trim()
            .to_owned()
    };
    let ids = format!(
        "[\"sha256:{}\",\"sha256:{}\"]",
        sum("l1.tar.sum"),
        sum("l2.tar.sum")
    );
    fs::write(
        place.path("config"),
        format!("{{\"rootfs\":{{\"diff_ids\":{ids}}}}}"),
    )
    .unwrap();
    let entry = "{\"Config\":\"c.json\",\"RepoTags\":[\"name:tag\"],\"Layers\":[\"a/layer.tar\",\"b/layer.tar\"]}";
    fs::write(place.path("one"), format!("[{entry}]")).unwrap();
    fs::write(place.path("two"), format!("[{entry},{entry}]")).unwrap();
    // A layer may be a link to that of another image.
    let pack = "set -e; mkdir -p d/a d/b d/c; cp config d/c.json; cp one d/manifest.json; cp l1.tar d/c/layer.tar; \
        ln -s ../c/layer.tar d/a/layer.tar; cp l2.tar d/b/layer.tar; tar -C d -cf docker.tar a b c c.json manifest.json";
    assert!(shell(&place, pack));
    let args = ["-i", "docker.tar", "--input-format=oci"];
    assert!(image(&place, &args) == want);
    assert!(shell(
        &place,
        "cp l2.tar.gz d/b/layer.tar; tar -C d -cf docker.tar ."
    ));
    assert!(image(&place, &args) == want);
    assert!(shell(
        &place,
        "cp l1.tar d/b/layer.tar; tar -C d -cf docker.tar ."
    ));
    let done = run(&place, &args);
    assert_eq!(done.code, Some(1));
    assert!(
        done.stderr.contains("'b/layer.tar' has another digest"),
        "{}",
        done.stderr
    );
    assert!(shell(
        &place,
        "cp two d/manifest.json; tar -C d -cf docker.tar ."
    ));
    let done = run(&place, &args);
    assert!(
        done.stderr
            .contains("(name:tag, name:tag); save one of them"),
        "{}",
        done.stderr
    );
}
