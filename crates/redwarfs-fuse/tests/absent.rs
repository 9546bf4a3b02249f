//! A build without the features `layer` and `several` says so, and mounts nothing.
#![cfg(all(target_os = "linux", not(any(feature = "layer", feature = "several"))))]

mod support;

use redwarfs_fuse::{Error, ImageSet, Layer, LayerDriver, MountOptions, mount, mount_images};
use redwarfs_reader::{Image, OpenOptions};
use support::{Gate, Maker};

fn image() -> Image {
    Image::from_source(Gate::new(Maker::new().image().0), &OpenOptions::default()).unwrap()
}

fn refuses(result: Result<redwarfs_fuse::Mounted, Error>, wanted: &str) {
    let error = result.map(drop).unwrap_err().to_string();
    assert!(error.contains(wanted), "{error}");
}

#[test]
fn a_layer_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for driver in [LayerDriver::Own, LayerDriver::Kernel, LayerDriver::Auto] {
        let mut options = MountOptions::default();
        options.access = redwarfs_fuse::Access::Everyone;
        options.layer = Some(Layer::Directory(directory.path().join("layer")));
        options.layer_driver = driver;
        let wanted = match driver {
            LayerDriver::Kernel if !rustix::process::geteuid().is_root() => {
                "cannot mount an overlay"
            }
            _ => "this program was built without writable layers",
        };
        refuses(mount(image(), directory.path(), &options), wanted);
    }
    assert!(!directory.path().join("layer").exists());
}

#[test]
fn several_images_and_snapshots_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let wanted = "this program was built without mounts of several images or snapshots";
    let mut snapshots = MountOptions::default();
    snapshots.snapshots = Some(".snapshots".into());
    refuses(mount(image(), directory.path(), &snapshots), wanted);
    let mut newest = MountOptions::default();
    newest.follow_newest = true;
    refuses(mount(image(), directory.path(), &newest), wanted);
    let first = image();
    let set = ImageSet {
        images: Vec::new(),
        cache: first.cache_group(),
        perfmon: first.perfmon().clone(),
    };
    refuses(
        mount_images(set, directory.path(), &MountOptions::default(), None),
        wanted,
    );
}
